"""Functions of numbers that Spark does not have, or has for doubles only.

Roots, powers and logarithms of numeric are computed as doubles, so they agree with PostgreSQL to
15 digits; everything else here is exact.
"""

from headwater.model import types
from headwater.model.types import DataType, Kind
from headwater.sql.expression import json_text as jt
from headwater.sql.expression.call import Call, Function
from headwater.sql.expression.coercion import (
    DECIMALS,
    FLOATS,
    INTEGERS,
    as_decimal_type,
    become,
    common_type,
    converted,
    number,
    numeric_to_decimal,
    unify,
)
from headwater.sql.expression.problem import Text
from headwater.sql.expression.typed import Typed, made

INT, DOUBLE = types.INTEGER, types.DOUBLE
RESULT = types.decimal(38, 18)
"""What an inexact function of numeric gives."""


def is_exact(value: Typed) -> bool:
    """Whether this is a numeric, which PostgreSQL then computes with as such."""
    return value.type is not None and value.type.kind in DECIMALS


def _as_double(value: Typed) -> Typed:
    exact = numeric_to_decimal(value) if value.known.kind is Kind.NUMERIC else value
    return made(f"cast({exact.text} as double)", DOUBLE, value)


def _from_double(body: str) -> str:
    return f"cast(format_string('%.17e', {body}) as {RESULT.spark})"


def inexact(template: str, domain: str, call: Call) -> Typed:
    """A function of numeric by way of doubles."""
    value = _as_double(call.args[0])
    body = jt.bound(value.text, "v", f"if(v is null, null, {_from_double(template.format('v'))})")
    if domain:
        error = f"cast(raise_error('input is out of range for {call.name}') as {RESULT.spark})"
        body = f"if({domain.format(value.text)}, {error}, {body})"
    return made(body, RESULT, value)


def root(value: str) -> str:
    """The square root of a decimal, as a decimal."""
    error = f"cast(raise_error('cannot take square root of a negative number') as {RESULT.spark})"
    found = _from_double("sqrt(v)")
    body = f"if(v is null, null, if(v < 0, {error}, {found}))"
    return jt.bound(f"cast({value} as double)", "v", body)


def number_of(value: Typed) -> Typed:
    """Stored numerics as decimals."""
    return numeric_to_decimal(value) if value.known.kind is Kind.NUMERIC else value


def _sqrt(call: Call) -> Typed:
    call.count(1)
    if is_exact(call.args[0]):
        return made(root(number_of(call.args[0]).text), RESULT, call.args[0])
    value = call.arg(0, DOUBLE)
    error = "cast(raise_error('cannot take square root of a negative number') as double)"
    return made(f"if({value.text} < 0, {error}, sqrt({value.text}))", DOUBLE, value)


def power(left: Typed, right: Typed, text: Text, node: object) -> Typed:
    """PostgreSQL raises doubles to powers, and numerics too where one operand is numeric."""
    exact = is_exact(left) or is_exact(right)
    if exact and not any(value.known.kind in FLOATS for value in (left, right)):
        one, two = _as_double(number(left, text, node)), _as_double(number(right, text, node))
        body = f"if({one.text} is null or {two.text} is null, null, "
        return made(f"{body}{_from_double(f'power({one.text}, {two.text})')})", RESULT, one, two)
    left, right = become(left, DOUBLE, text, node), become(right, DOUBLE, text, node)
    return made(f"power({left.text}, {right.text})", DOUBLE, left, right)


def _log(call: Call) -> Typed:
    call.count(1, 2)
    if len(call.args) == 2:
        base, value = (_as_double(number(arg, call.text, call.node)) for arg in call.args)
        body = f"if({base.text} is null or {value.text} is null, null, "
        ratio = _from_double(f"ln({value.text}) / ln({base.text})")
        return made(f"{body}{ratio})", RESULT, base, value)
    return _inexact_or_double("log10({0})", "{0} <= 0")(call)


def _inexact_or_double(template: str, domain: str = "") -> Function:
    def function(call: Call) -> Typed:
        call.count(1)
        if is_exact(call.args[0]):
            return inexact(template, domain, call)
        value = call.arg(0, DOUBLE)
        body = template.format(value.text)
        if domain:
            error = f"cast(raise_error('input is out of range for {call.name}') as double)"
            body = f"if({domain.format(value.text)}, {error}, {body})"
        return made(body, DOUBLE, value)

    return function


def _bucket(call: Call) -> Typed:
    call.count(2, 4)
    if len(call.args) == 2:
        return _bucket_of_array(call)
    if any(value.known.kind in FLOATS for value in call.args[:3]):
        value, low, high = (call.arg(place, DOUBLE).text for place in range(3))
        place = "cast(floor({0} / {1} * {2}) as bigint)"
    else:
        exact = [number(arg, call.text, call.node) for arg in call.args[:3]]
        value, low, high = (converted(each, as_decimal_type(each.known)).text for each in exact)
        place = "(({0} * {2}) div {1})"
    count = call.arg(3, INT).text
    up = place.format(f"({value} - {low})", f"({high} - {low})", count)
    down = place.format(f"({low} - {value})", f"({low} - {high})", count)
    equal = "cast(raise_error('lower bound cannot equal upper bound') as int)"
    nulls = " or ".join(f"{each} is null" for each in (value, low, high, count))
    rising = f"if({value} < {low}, 0, if({value} >= {high}, {count} + 1, {up} + 1))"
    falling = f"if({value} > {low}, 0, if({value} <= {high}, {count} + 1, {down} + 1))"
    body = (
        f"case when {nulls} then null when {low} = {high} then {equal} "
        f"when {low} < {high} then {rising} else {falling} end"
    )
    return made(f"cast({body} as int)", INT, *call.args)


def _bucket_of_array(call: Call) -> Typed:
    value, array = call.args
    if array.type is None or array.type.kind is not Kind.LIST or array.type.element is None:
        call.no_such()
    shared = common_type(value.type, array.type.element)
    if shared is None:
        call.no_such()
    one = become(value, shared, call.text, call.node)
    bounds = become(array, types.list_of(shared), call.text, call.node)
    body = f"size(filter({bounds.text}, e -> e <= {one.text}))"
    return made(f"if({one.text} is null or {bounds.text} is null, null, {body})", INT, one, bounds)


def _divisor(call: Call, wide: str) -> tuple[str, DataType, list[Typed]]:
    call.count(2)
    values, shared = unify(list(call.args), call.text, call.node, call.name)
    if shared.kind not in INTEGERS:
        call.refuse(f"{call.name} is supported for integers only")
    # Euclid needs at most 92 steps for numbers of 64 bits.
    start = f"struct(cast(abs({wide.format(values[0].text)}) as decimal(20,0)) as a, "
    start += f"cast(abs({wide.format(values[1].text)}) as decimal(20,0)) as b)"
    step = "if(s.b = 0, s, struct(s.b as a, cast(s.a % s.b as decimal(20,0)) as b))"
    found = f"aggregate(sequence(1, 93), {start}, (s, i) -> {step}, s -> s.a)"
    return found, shared, values


def _gcd(call: Call) -> Typed:
    found, shared, values = _divisor(call, "cast({0} as decimal(20,0))")
    nulls = " or ".join(f"{value.text} is null" for value in values)
    return made(f"if({nulls}, null, cast({found} as {shared.spark}))", shared, *values)


def _lcm(call: Call) -> Typed:
    found, shared, (one, two) = _divisor(call, "cast({0} as decimal(20,0))")
    product = f"abs(cast({one.text} as decimal(19,0)) * cast({two.text} as decimal(19,0)))"
    body = f"if({one.text} = 0 or {two.text} = 0, 0, {product} div {found})"
    nulls = f"{one.text} is null or {two.text} is null"
    return made(f"if({nulls}, null, cast({body} as {shared.spark}))", shared, one, two)


def _factorial(call: Call) -> Typed:
    call.count(1)
    value = call.arg(0, types.BIGINT)
    negative = "cast(raise_error('factorial of a negative number is undefined') as bigint)"
    large = "cast(raise_error('factorial of more than 20 is not supported') as bigint)"
    body = (
        f"if({value.text} < 0, {negative}, if({value.text} > 20, {large}, "
        f"factorial(cast({value.text} as int))))"
    )
    return made(f"cast({body} as decimal(38,0))", types.decimal(38, 0), value)


def _exact(call: Call) -> Typed:
    call.count(1)
    value = call.args[0]
    if value.type is None or value.type.kind not in (*DECIMALS, *INTEGERS):
        call.no_such()
    return converted(number_of(value), as_decimal_type(value.known))


def _scale(call: Call) -> Typed:
    value = _exact(call)
    return made(f"if({value.text} is null, null, {value.known.scale or 0})", INT, value)


def _min_scale(call: Call) -> Typed:
    value = _exact(call)
    fraction = f"regexp_extract(cast({value.text} as string), '[.]([0-9]*?)0*$', 1)"
    return made(f"length({fraction})", INT, value)


def _nulls(*, wanted: bool) -> Function:
    def function(call: Call) -> Typed:
        if not call.args:
            call.no_such()
        sign = "is null" if wanted else "is not null"
        terms = " + ".join(f"if({arg.text} {sign}, 1, 0)" for arg in call.args)
        return made(f"({terms})", INT, *call.args, nullable=False)

    return function


FUNCTIONS: dict[str, Function] = {
    "sqrt": _sqrt,
    "exp": _inexact_or_double("exp({0})"),
    "ln": _inexact_or_double("ln({0})", "{0} <= 0"),
    "log": _log,
    "log10": _inexact_or_double("log10({0})", "{0} <= 0"),
    "width_bucket": _bucket,
    "gcd": _gcd,
    "lcm": _lcm,
    "factorial": _factorial,
    "scale": _scale,
    "min_scale": _min_scale,
    "num_nulls": _nulls(wanted=True),
    "num_nonnulls": _nulls(wanted=False),
}

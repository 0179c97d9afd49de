"""Numbers: operators and functions.

integers    overflow and division by zero are errors; division cuts toward zero, and the
remainder has the dividend's sign: Spark in ANSI mode agrees
decimals    sums and products keep all their digits, up to 38; a sum or product that needs
more is an error of the row, or refused when the types alone say so
quotients   of decimals have 16 to 20 digits after the point, rounded half away from zero
(PostgreSQL chooses 16 significant digits or more for each value by itself)
"""

from headwater.model import types
from headwater.model.types import DataType, Kind
from headwater.sql.expression.call import (
    ANY_DECIMAL,
    Call,
    Function,
    pick,
    simple,
)
from headwater.sql.expression.coercion import (
    DECIMALS,
    FLOATS,
    INTEGERS,
    as_decimal_type,
    become,
    common_type,
    converted,
    number,
)
from headwater.sql.expression.problem import Text, shown
from headwater.sql.expression.typed import Typed, made

_MOST = 38
_QUOTIENT_SCALE = 20
_QUOTIENT_WHOLE = 22


def numbers_together(
    left: Typed, right: Typed, text: Text, node: object
) -> tuple[Typed, Typed, DataType]:
    """Two operands as numbers, and the type that they share."""
    if left.type is None and right.type is None:
        text.mistake("the operator is not unique for these literals", node, sqlstate="42725")
    if left.type is None:
        left = become(left, right.known, text, node)
    if right.type is None:
        right = become(right, left.known, text, node)
    left, right = number(left, text, node), number(right, text, node)
    shared = common_type(left.type, right.type)
    assert shared is not None
    if shared.kind is not Kind.DECIMAL:
        return converted(left, shared), converted(right, shared), shared
    return (
        converted(left, as_decimal_type(left.known)),
        converted(right, as_decimal_type(right.known)),
        shared,
    )


def _whole(type_: DataType) -> int:
    return (type_.precision or 0) - (type_.scale or 0)


def _cut(value: Typed, precision: int) -> Typed:
    """Fewer digits before the point: a value that needs more is an error."""
    type_ = value.known
    if (type_.precision or 0) <= precision:
        return value
    return made(
        f"cast({value.text} as decimal({precision},{type_.scale}))",
        types.decimal(precision, type_.scale or 0),
        value,
    )


def add(operator: str, left: Typed, right: Typed, text: Text, node: object) -> Typed:
    """A sum or difference of numbers."""
    left, right, shared = numbers_together(left, right, text, node)
    if shared.kind is not Kind.DECIMAL:
        return _machine(operator, left, right, shared)
    scale = max(left.known.scale or 0, right.known.scale or 0)
    wanted = max(_whole(left.known), _whole(right.known)) + 1
    whole = min(wanted, _MOST - scale)
    cut_left = _cut(left, min(whole - 1 + (left.known.scale or 0), _MOST))
    cut_right = _cut(right, min(whole - 1 + (right.known.scale or 0), _MOST))
    if whole < min(wanted, 2):
        text.refuse("the sum needs more than 38 digits", node, hint="Use round(value, digits).")
    result = types.decimal(whole + scale, scale)
    return made(f"({cut_left.text} {operator} {cut_right.text})", result, left, right)


def _machine(operator: str, left: Typed, right: Typed, shared: DataType) -> Typed:
    # Spark adds two smallints as smallints and raises on overflow, as PostgreSQL does.
    text = f"({left.text} {operator} {right.text})"
    if shared.kind in FLOATS:
        text = _finite(text, left, right, shared)
    return made(text, shared, left, right)


def _finite(text: str, left: Typed, right: Typed, shared: DataType) -> str:
    infinity = f"cast('Infinity' as {shared.spark})"
    fine = f"abs({left.text}) = {infinity} or abs({right.text}) = {infinity}"
    return (
        f"if(abs{text} = {infinity} and not ({fine}), "
        f"cast(raise_error('value out of range: overflow') as {shared.spark}), {text})"
    )


def multiply(left: Typed, right: Typed, text: Text, node: object) -> Typed:
    """A product of numbers."""
    left, right, shared = numbers_together(left, right, text, node)
    if shared.kind is not Kind.DECIMAL:
        return _machine("*", left, right, shared)
    scales = (left.known.scale or 0, right.known.scale or 0)
    precisions = [left.known.precision or 0, right.known.precision or 0]
    spare = sum(precisions) + 1 - _MOST
    if spare > 0:
        larger = 0 if precisions[0] >= precisions[1] else 1
        smallest = [scale + min(9, p - scale) for scale, p in zip(scales, precisions, strict=True)]
        precisions[larger] = max(precisions[larger] - spare, smallest[larger])
        spare = sum(precisions) + 1 - _MOST
        if spare > 0:
            other = 1 - larger
            precisions[other] = max(precisions[other] - spare, smallest[other])
        if sum(precisions) + 1 > _MOST:
            text.refuse(
                "the product needs more than 38 digits", node, hint="Use round(value, digits)."
            )
    left, right = _cut(left, precisions[0]), _cut(right, precisions[1])
    result = types.decimal(min(_MOST, sum(precisions) + 1), sum(scales))
    return made(f"({left.text} * {right.text})", result, left, right)


def divide(left: Typed, right: Typed, text: Text, node: object) -> Typed:
    """A quotient: whole for integers."""
    left, right, shared = numbers_together(left, right, text, node)
    if shared.kind in INTEGERS:
        body = f"({left.text} div {right.text})"
        if shared.kind is not Kind.BIGINT:
            body = f"cast({body} as {shared.spark})"
        return made(body, shared, left, right)
    if shared.kind in FLOATS:
        zero = f"cast(raise_error('division by zero') as {shared.spark})"
        body = f"(cast({left.text} as double) / cast({right.text} as double))"
        if shared.kind is Kind.REAL:
            body = f"cast({body} as float)"
        return made(f"if({right.text} = 0, {zero}, {body})", shared, left, right)
    return decimal_quotient(left, right, text, node)


def decimal_quotient(left: Typed, right: Typed, text: Text, node: object) -> Typed:
    """A quotient of decimals, with 16 to 20 digits after the point."""
    divisor_scale = right.known.scale or 0
    if divisor_scale > 12:
        text.refuse(
            "a divisor with more than 12 digits after the point is not supported",
            node,
            hint="Use round(divisor, 12), or cast it to double precision.",
        )
    left = _cut(left, min(_MOST, _QUOTIENT_WHOLE + (left.known.scale or 0) - divisor_scale))
    whole = _whole(left.known) + divisor_scale
    scale = min(_QUOTIENT_SCALE, _MOST - whole)
    body = f"({left.text} / cast({right.text} as decimal(38,{divisor_scale})))"
    result = types.decimal(_MOST, scale)
    return made(f"cast({body} as {result.spark})", result, left, right)


def remainder(left: Typed, right: Typed, text: Text, node: object) -> Typed:
    """What is left of a division."""
    left, right, shared = numbers_together(left, right, text, node)
    if shared.kind in FLOATS:
        text.mistake("operator does not exist: double precision %", node, sqlstate="42883")
    if shared.kind in DECIMALS:
        left, right = converted(left, shared), converted(right, shared)
    return made(f"({left.text} % {right.text})", shared, left, right)


def negate(value: Typed, text: Text, node: object) -> Typed:
    """Minus a number."""
    if value.type is None:
        text.mistake("operator is not unique: - unknown", node, sqlstate="42725")
    value = number(value, text, node)
    return made(f"(- {value.text})", value.known, value, nullable=value.nullable)


def bitwise(operator: str, left: Typed, right: Typed, text: Text, node: object) -> Typed:
    """Bits of integers."""
    left, right, shared = numbers_together(left, right, text, node)
    if shared.kind not in INTEGERS:
        text.mistake(f"operator {operator} needs integers, not {shown(shared)}", node)
    return made(f"({left.text} {operator} {right.text})", shared, left, right)


def _abs(call: Call) -> Typed:
    call.count(1)
    value = number(call.arg(0, types.DOUBLE) if call.args[0].type is None else call.args[0],
                   call.text, call.node)  # fmt: skip
    return made(f"abs({value.text})", value.known, value)


def _round(call: Call) -> Typed:
    call.count(1, 2)
    if len(call.args) == 2:
        return _round_to(call)
    value = call.args[0]
    if value.type is not None and value.type.kind in DECIMALS:
        value = number(value, call.text, call.node)
        result = types.decimal(min(_MOST, _whole(value.known) + 1), 0)
        return made(f"cast(round({value.text}, 0) as {result.spark})", result, value)
    value = call.arg(0, types.DOUBLE)
    return made(f"rint({value.text})", types.DOUBLE, value)


def _places(call: Call) -> int:
    digits = call.args[1].text.strip("()")
    if not digits.lstrip("-").isdigit():
        call.refuse(f"{call.name} needs a constant number of digits")
    return int(digits)


def _exact(call: Call) -> Typed:
    value = call.args[0]
    if value.type is None or value.type.kind not in (*DECIMALS, *INTEGERS):
        call.no_such()
    value = number(value, call.text, call.node)
    return converted(value, as_decimal_type(value.known))


def _round_to(call: Call) -> Typed:
    value, places = _exact(call), _places(call)
    type_ = value.known
    scale = max(0, min(places, _MOST))
    result = types.decimal(min(_MOST, _whole(type_) + 1 + scale), scale)
    return made(f"cast(round({value.text}, {places}) as {result.spark})", result, value)


def _trunc(call: Call) -> Typed:
    call.count(1, 2)
    if len(call.args) == 1 and call.args[0].known.kind not in DECIMALS:
        value = call.arg(0, types.DOUBLE)
        whole = f"rint(abs({value.text}))"
        body = f"if({whole} > abs({value.text}), {whole} - 1.0D, {whole})"
        return made(f"(sign({value.text}) * {body})", types.DOUBLE, value)
    value = _exact(call)
    places = _places(call) if len(call.args) == 2 else 0
    scale = max(0, min(places, _MOST))
    result = types.decimal(min(_MOST, _whole(value.known) + 1 + scale), scale)
    body = f"if({value.text} < 0, ceil({value.text}, {places}), floor({value.text}, {places}))"
    return made(f"cast({body} as {result.spark})", result, value)


def _ceiling(spark: str) -> Function:
    def function(call: Call) -> Typed:
        call.count(1)
        if call.args[0].known.kind in DECIMALS:
            value = _exact(call)
            result = types.decimal(min(_MOST, _whole(value.known) + 1), 0)
            return made(f"cast({spark}({value.text}) as {result.spark})", result, value)
        value = call.arg(0, types.DOUBLE)
        step = ("<", "+ 1.0D") if spark == "ceil" else (">", "- 1.0D")
        rounded = f"rint({value.text})"
        body = f"if({rounded} {step[0]} {value.text}, {rounded} {step[1]}, {rounded})"
        return made(body, types.DOUBLE, value)

    return function


def _sign(call: Call) -> Typed:
    call.count(1)
    if call.args[0].known.kind in DECIMALS:
        value = _exact(call)
        return made(f"cast(sign({value.text}) as decimal(1,0))", types.decimal(1, 0), value)
    value = call.arg(0, types.DOUBLE)
    return made(f"sign({value.text})", types.DOUBLE, value)


def _mod(call: Call) -> Typed:
    call.count(2)
    return remainder(call.args[0], call.args[1], call.text, call.node)


def _power(call: Call) -> Typed:
    call.count(2)
    from headwater.sql.expression.number_functions import power  # noqa: PLC0415

    return power(call.args[0], call.args[1], call.text, call.node)


def _double(template: str, domain: str = "") -> Function:
    """A function of doubles; `domain` says, in Spark, where PostgreSQL raises."""

    def function(call: Call) -> Typed:
        call.count(1)
        value = call.arg(0, types.DOUBLE)
        body = template.format(value.text)
        if domain:
            error = f"cast(raise_error('input is out of range for {call.name}') as double)"
            body = f"if({domain.format(value.text)}, {error}, {body})"
        return made(body, types.DOUBLE, value)

    return function


_DIV = simple(
    (ANY_DECIMAL, ANY_DECIMAL), types.decimal(38, 0), "cast({0} div {1} as decimal(38,0))"
)

FUNCTIONS: dict[str, Function] = {
    "abs": _abs,
    "round": _round,
    "trunc": _trunc,
    "ceil": _ceiling("ceil"),
    "ceiling": _ceiling("ceil"),
    "floor": _ceiling("floor"),
    "sign": _sign,
    "mod": _mod,
    "div": pick((_DIV,)),
    "power": _power,
    "pow": _power,
    "cbrt": _double("cbrt({0})"),
    "degrees": _double("degrees({0})"),
    "radians": _double("radians({0})"),
    **{
        name: _double(f"{name}({{0}})")
        for name in ("sin", "cos", "tan", "atan", "sinh", "cosh", "tanh")
    },
    "cot": _double("cot({0})"),
    "asinh": _double("asinh({0})"),
    "acosh": _double("acosh({0})", "{0} < 1"),
    "atanh": _double("atanh({0})", "abs({0}) > 1"),
    "asin": _double("asin({0})", "abs({0}) > 1"),
    "acos": _double("acos({0})", "abs({0}) > 1"),
    "atan2": pick((simple((types.DOUBLE, types.DOUBLE), types.DOUBLE, "atan2({0}, {1})"),)),
    "pi": pick((simple((), types.DOUBLE, "pi()"),)),
}

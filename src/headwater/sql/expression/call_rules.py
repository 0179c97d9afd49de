"""Rules for calls, literals and casts."""

import difflib
from decimal import Decimal, InvalidOperation
from typing import Any

from sqlglot import exp

from headwater.model import types
from headwater.model.types import Kind
from headwater.sql.expression import (
    arithmetic,
    arrays,
    comparison,
    json_building,
    json_values,
    number_functions,
    strings,
    text_functions,
    time_functions,
    time_patterns,
)
from headwater.sql.expression.call import Call, Function
from headwater.sql.expression.casting import cast
from headwater.sql.expression.coercion import (
    DECIMALS,
    FLOATS,
    INTEGERS,
    as_decimal_type,
    converted,
    number,
)
from headwater.sql.expression.interval_text import interval_of
from headwater.sql.expression.literals import literal_as
from headwater.sql.expression.translator import Translator, function_name
from headwater.sql.expression.typed import Typed, integer, string_literal
from headwater.sql.expression.written_types import written_type

_FUNCTIONS: dict[str, Function] = {
    **arithmetic.FUNCTIONS,
    **number_functions.FUNCTIONS,
    **comparison.FUNCTIONS,
    **strings.FUNCTIONS,
    **text_functions.FUNCTIONS,
    **time_functions.FUNCTIONS,
    **time_patterns.FUNCTIONS,
    **arrays.FUNCTIONS,
    **json_values.FUNCTIONS,
    **json_building.FUNCTIONS,
}
_NAMED_ARGUMENTS = frozenset({"make_interval"})
_CLOCKS = {
    "now": ("current_timestamp()", types.TIMESTAMPTZ),
    "transaction_timestamp": ("current_timestamp()", types.TIMESTAMPTZ),
    "statement_timestamp": ("current_timestamp()", types.TIMESTAMPTZ),
    "proctime": ("current_timestamp()", types.TIMESTAMPTZ),
    "random": ("rand()", types.DOUBLE),
    "gen_random_uuid": ("uuid()", types.UUID),
}


def known_functions() -> list[str]:
    """The names of all scalar functions."""
    return sorted((*_FUNCTIONS, *_CLOCKS))


def call_rule(t: Translator, node: Any) -> Typed:
    """A call of a function by its name."""
    name = function_name(node)
    if name in _CLOCKS:
        t.around.impure(name, node)
        body, type_ = _CLOCKS[name]
        return Typed(body, type_, nullable=False)
    if name == "row":
        t.text.refuse("a row value can only be compared with another row", node)
    function = _FUNCTIONS.get(name)
    if function is None:
        close = difflib.get_close_matches(name, known_functions(), 1)
        hint = f"Did you mean {close[0]}?" if close else ""
        t.text.mistake(
            f"function {name} does not exist or is not supported",
            node,
            hint=hint,
            sqlstate="42883",
        )
    values, names = [], []
    for each in node.expressions:
        named = isinstance(each, exp.Kwarg)
        names.append(each.this.name.lower() if named else "")
        values.append(t(each.expression if named else each))
    if any(names) and name not in _NAMED_ARGUMENTS:
        t.text.refuse(f"named arguments of {name} are not supported", node)
    return function(Call(name, tuple(values), node, t.text, tuple(names)))


def literal_rule(t: Translator, node: Any) -> Typed:
    """A text or a number."""
    if node.args.get("is_string"):
        return Typed(string_literal(node.this), None, literal=node.this, nullable=False)
    digits = str(node.this).replace("_", "")
    if digits.isdigit():
        return integer(int(digits))
    return _decimal_literal(t, node, digits)


def _decimal_literal(t: Translator, node: Any, digits: str) -> Typed:
    try:
        value = Decimal(digits)
    except InvalidOperation:
        t.text.refuse(f"the number {digits} is not supported", node)
    exponent = value.as_tuple().exponent
    scale = max(0, -exponent) if isinstance(exponent, int) else 0
    precision = max(len(f"{value:f}".replace(".", "").lstrip("0")), scale, 1)
    if precision > types.MAX_PRECISION:
        t.text.refuse("a number of more than 38 digits is not supported", node)
    type_ = types.decimal(precision, scale)
    return Typed(f"cast('{value:f}' as {type_.spark})", type_, nullable=False)


def cast_rule(t: Translator, node: Any) -> Typed:
    """CAST(a AS b) and a::b."""
    target, length = written_type(node.args["to"], t.text)
    inner = node.this
    if (
        isinstance(inner, exp.Literal)
        and not inner.args.get("is_string")
        and (target.kind in FLOATS)
    ):
        return literal_as(str(inner.this), target, t.text, node)
    if isinstance(inner, exp.Array) and not inner.expressions and target.kind is Kind.LIST:
        return Typed(f"cast(array() as {target.spark})", target, nullable=False, items=())
    value = t(inner)
    if target.kind is Kind.NUMERIC:
        return _to_numeric(t, value, node)
    return cast(value, target, t.text, node, length=length)


def _to_numeric(t: Translator, value: Typed, node: Any) -> Typed:
    """A plain ::numeric keeps what is exact already."""
    if value.type is None and value.literal is not None:
        return _decimal_literal(t, node, value.literal.strip())
    if value.type is not None and value.type.kind in (*INTEGERS, *DECIMALS):
        value = number(value, t.text, node)
        return converted(value, as_decimal_type(value.known))
    return cast(value, types.decimal(38, 18), t.text, node)


def interval_rule(t: Translator, node: Any) -> Typed:
    """INTERVAL '...'."""
    unit = node.args.get("unit")
    value = node.this
    if not isinstance(value, exp.Literal):
        t.text.refuse("an interval must be a constant", node)
    try:
        return interval_of(str(value.this), unit.name if unit is not None else None)
    except ValueError:
        t.text.mistake(
            f'invalid input syntax for type interval: "{value.this}"', node, sqlstate="22007"
        )

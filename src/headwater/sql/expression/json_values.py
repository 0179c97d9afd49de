"""jsonb, which is stored as PostgreSQL spells it.

Spark reads JSON into values of its own and spells them anew: a text, a boolean, a whole number
and null come out as PostgreSQL's, but a fraction may lose trailing zeros, and objects and arrays
their spaces. `->>` of these is an error of the row; `->` is only allowed on the way to `->>`.
"""

from headwater.model import types
from headwater.model.types import Kind
from headwater.sql.expression.call import Call, Function
from headwater.sql.expression.problem import Text
from headwater.sql.expression.typed import Typed, made, string_literal


def path_step(key: Typed, text: Text, node: object) -> str:
    """One step of a path, for a constant key or place."""
    if key.type is None and key.literal is not None:
        if any(sign in key.literal for sign in "'\"[]\\*") or not key.literal.isprintable():
            text.refuse(f"the key {key.literal!r} is not supported", node)
        return f"['{key.literal}']"
    if key.type is not None and key.type.kind is Kind.INTEGER and key.text.isdigit():
        return f"[{key.text}]"
    text.refuse("a key must be a constant text or a number that is not negative", node)


def extract_text(value: Typed, steps: list[str], text: Text, node: object) -> Typed:
    """`->>`: a value inside as text."""
    if value.known.kind is not Kind.JSONB:
        text.mistake("->> needs jsonb", node, sqlstate="42883")
    path = string_literal("$" + "".join(steps))
    variant = f"try_variant_get(parse_json({value.text}), {path}, 'variant')"
    inexact = f"rlike(schema_of_variant({variant}), '^(OBJECT|ARRAY|DECIMAL|DOUBLE|FLOAT)')"
    message = "->> of an object, an array or a fraction is not supported"
    error = f"cast(raise_error('{message}') as string)"
    return made(f"if({inexact}, {error}, cast({variant} as string))", types.VARCHAR, value)


def _typeof(call: Call) -> Typed:
    call.count(1)
    value = call.arg(0, types.JSONB)
    kind = f"schema_of_variant(parse_json({value.text}))"
    body = (
        f"case when {kind} like 'OBJECT%' then 'object' when {kind} like 'ARRAY%' then 'array' "
        f"when {kind} = 'STRING' then 'string' when {kind} = 'BOOLEAN' then 'boolean' "
        f"when {kind} = 'VOID' then 'null' when {value.text} is null then null else 'number' end"
    )
    return made(f"({body})", types.VARCHAR, value)


def _array_length(call: Call) -> Typed:
    call.count(1)
    value = call.arg(0, types.JSONB)
    return made(f"json_array_length({value.text})", types.INTEGER, value)


FUNCTIONS: dict[str, Function] = {
    "jsonb_typeof": _typeof,
    "json_typeof": _typeof,
    "jsonb_array_length": _array_length,
    "json_array_length": _array_length,
}

"""jsonb, which is stored as PostgreSQL spells it.

Spark reads a field that is asked for as a text exactly as it stands in the JSON, so `->>` gives
what PostgreSQL gives, digits and spaces included, and null where the path leads nowhere. What
would have to be spelled anew (`->`, `||`, `jsonb_build_object`, ...) is refused.
"""

from headwater.model import types
from headwater.model.types import Kind
from headwater.sql.expression.call import Call, Function
from headwater.sql.expression.problem import Text
from headwater.sql.expression.typed import Typed, made, string_literal


def path_step(key: Typed, text: Text, node: object) -> str | int:
    """One step of a path, for a constant key or place."""
    if key.type is None and key.literal is not None:
        if "`" in key.literal or not key.literal.isprintable():
            text.refuse(f"the key {key.literal!r} is not supported", node)
        return key.literal
    if key.type is not None and key.type.kind is Kind.INTEGER and key.text.isdigit():
        return int(key.text)
    text.refuse("a key must be a constant text or a number that is not negative", node)


def extract_text(value: Typed, steps: list[str | int], text: Text, node: object) -> Typed:
    """`->>`: a value inside as text."""
    if value.known.kind is not Kind.JSONB:
        text.mistake("->> needs jsonb", node, sqlstate="42883")
    schema = "string"
    for step in reversed(steps):
        schema = f"array<{schema}>" if isinstance(step, int) else f"struct<`{step}`: {schema}>"
    body = f"from_json({value.text}, {string_literal(schema)})"
    for step in steps:
        # A place beyond the array's end gives null.
        body = f"get({body}, {step})" if isinstance(step, int) else f"{body}.{_field(step)}"
    return made(body, types.VARCHAR, value)


def _field(name: str) -> str:
    return f"`{name}`"


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

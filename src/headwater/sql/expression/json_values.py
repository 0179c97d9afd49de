"""jsonb, which is stored as PostgreSQL spells it.

Spark reads JSON into its own numbers and spells them anew, so only what needs no spelling of
numbers is exact: a text or boolean by its path. A number read by `->>` is taken from the stored
text, so it keeps its digits. What is not exact is refused.
"""

from headwater.model import types
from headwater.model.types import Kind
from headwater.sql.expression.call import Call, Function
from headwater.sql.expression.problem import Text
from headwater.sql.expression.typed import Typed, made, string_literal


def path_step(key: Typed, text: Text, node: object) -> str:
    """One step of a path, for a constant key or place."""
    if key.type is None and key.literal is not None:
        if any(sign in key.literal for sign in "'\"[]\\*"):
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
    # As a variant a number keeps its digits; objects and arrays are spelled differently.
    variant = f"try_variant_get(parse_json({value.text}), {path}, 'variant')"
    kind = f"schema_of_variant({variant})"
    nested = f"({kind} like 'OBJECT%' or {kind} like 'ARRAY%')"
    error = "cast(raise_error('->> of a JSON object or array is not supported') as string)"
    scalar = f"cast({variant} as string)"
    return made(f"if({nested}, {error}, {scalar})", types.VARCHAR, value)


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

"""Text and bytes.

Differences that are translated: positions below 1 in `substring`, negative counts in `left` and
`right`, `concat` that skips nulls, `||` with a value that is not text, an empty delimiter of
`split_part`, trailing `''` of pads.
"""

from headwater.model import types
from headwater.model.types import Kind
from headwater.sql.expression.call import Call, Function, pick, simple
from headwater.sql.expression.casting import to_text
from headwater.sql.expression.coercion import become
from headwater.sql.expression.problem import Text
from headwater.sql.expression.typed import Typed, made

TEXT, INT, BYTES = types.VARCHAR, types.INTEGER, types.BYTEA


def concatenate(left: Typed, right: Typed, text: Text, node: object) -> Typed:
    """`||` of texts, of bytes, or of a text and anything; null if either is null."""
    if {left.known.kind, right.known.kind} == {Kind.BYTEA}:
        return made(f"concat({left.text}, {right.text})", BYTES, left, right)
    texts = (None, Kind.VARCHAR)
    kinds = [value.type.kind if value.type else None for value in (left, right)]
    if not any(kind in texts for kind in kinds):
        text.mistake("operator does not exist: || of two values that are not text", node)
    left, right = to_text(left, text, node), to_text(right, text, node)
    nullable = left.nullable or right.nullable
    return made(f"concat({left.text}, {right.text})", TEXT, left, right, nullable=nullable)


def _printed(call: Call) -> list[Typed]:
    """The arguments as concat prints them: a boolean is one letter there."""
    return [
        made(f"if({arg.text} is null, null, if({arg.text}, 't', 'f'))", TEXT, arg)
        if arg.known.kind is Kind.BOOLEAN
        else to_text(arg, call.text, call.node)
        for arg in call.args
    ]


def _concat(call: Call) -> Typed:
    parts = _printed(call)
    body = ", ".join(f"coalesce({part.text}, '')" for part in parts)
    return made(f"concat({body})", TEXT, *parts, nullable=False)


def _concat_ws(call: Call) -> Typed:
    if not call.args:
        call.no_such()
    parts = _printed(call)
    return made(f"concat_ws({', '.join(part.text for part in parts)})", TEXT, *parts)


def substring(value: Typed, start: Typed, length: Typed | None, text: Text, node: object) -> Typed:
    """Counting from 1, where places before the text count too; no negative lengths."""
    if value.type is not None and value.type.kind is Kind.BYTEA:
        kind = BYTES
    else:
        kind, value = TEXT, become(value, TEXT, text, node)
    if start.type is None or start.type.kind is Kind.VARCHAR:
        from headwater.sql.expression.text_functions import substring_match  # noqa: PLC0415

        if length is not None:
            text.refuse("SUBSTRING ... FOR with an escape is not supported", node)
        return substring_match(value, start, text, node)
    start = become(start, INT, text, node)
    first = f"greatest({start.text}, 1)"
    if length is None:
        return made(f"substring({value.text}, {first})", kind, value, start)
    length = become(length, INT, text, node)
    end = f"(cast({start.text} as bigint) + {length.text})"
    body = (
        f"if({length.text} < 0, cast(raise_error('negative substring length not allowed') "
        f"as {kind.spark}), substring({value.text}, {first}, "
        f"cast(least(greatest({end} - {first}, 0L), 2147483647L) as int)))"
    )
    # A null start or length gives null; greatest and least would skip it.
    checked = f"if({start.text} is null or {length.text} is null, null, {body})"
    return made(checked, kind, value, start, length)


def _substring(call: Call) -> Typed:
    call.count(2, 3)
    length = call.args[2] if len(call.args) == 3 else None
    return substring(call.args[0], call.args[1], length, call.text, call.node)


def _end(spark: str) -> Function:
    """`left` and `right`: a negative count leaves that many off."""

    def function(call: Call) -> Typed:
        call.count(2)
        value, count = call.arg(0, TEXT), call.arg(1, INT)
        rest = f"greatest(length({value.text}) + {count.text}, 0)"
        body = f"{spark}({value.text}, if({count.text} < 0, {rest}, {count.text}))"
        checked = f"if({count.text} is null, null, {body})"
        return made(checked, TEXT, value, count)

    return function


def trim(value: Typed, characters: Typed | None, side: str, text: Text, node: object) -> Typed:
    """TRIM of one side or both, spaces or any of some characters."""
    value = become(value, TEXT, text, node)
    spark = {"BOTH": "btrim", "LEADING": "ltrim", "TRAILING": "rtrim"}[side]
    if characters is None:
        return made(f"{spark}({value.text}, ' ')" if spark == "btrim" else
                    f"{spark}(' ', {value.text})", TEXT, value)  # fmt: skip
    characters = become(characters, TEXT, text, node)
    order = (value, characters) if spark == "btrim" else (characters, value)
    body = f"{spark}({order[0].text}, {order[1].text})"
    return made(f"if({characters.text} = '', {value.text}, {body})", TEXT, value, characters)


def _trim(side: str) -> Function:
    def function(call: Call) -> Typed:
        call.count(1, 2)
        characters = call.args[1] if len(call.args) == 2 else None
        return trim(call.args[0], characters, side, call.text, call.node)

    return function


def _split_part(call: Call) -> Typed:
    call.count(3)
    value, by, place = call.arg(0, TEXT), call.arg(1, TEXT), call.arg(2, INT)
    zero = "cast(raise_error('field position must not be zero') as string)"
    whole = f"if(abs({place.text}) = 1, {value.text}, '')"
    body = (
        f"if({place.text} = 0, {zero}, if({by.text} = '', {whole}, "
        f"split_part({value.text}, {by.text}, {place.text})))"
    )
    return made(body, TEXT, value, by, place)


def position(needle: Typed, hay: Typed, text: Text, node: object) -> Typed:
    """Where a text begins in another, from 1; 0 if nowhere."""
    needle, hay = become(needle, TEXT, text, node), become(hay, TEXT, text, node)
    return made(f"instr({hay.text}, {needle.text})", INT, needle, hay)


def _strpos(call: Call) -> Typed:
    call.count(2)
    return position(call.args[1], call.args[0], call.text, call.node)


def _pad(spark: str) -> Function:
    def function(call: Call) -> Typed:
        call.count(2, 3)
        value, size = call.arg(0, TEXT), call.arg(1, INT)
        fill = call.arg(2, TEXT) if len(call.args) == 3 else Typed("' '", TEXT)
        return made(f"{spark}({value.text}, {size.text}, {fill.text})", TEXT, value, size, fill)

    return function


def _chr(call: Call) -> Typed:
    call.count(1)
    code = call.arg(0, INT)
    # Spark's chr knows 255 characters; the UTF-32 bytes know all.
    body = f"decode(unhex(lpad(hex({code.text}), 8, '0')), 'UTF-32')"
    bad = f"({code.text} < 1 or {code.text} > 1114111)"
    error = "cast(raise_error('requested character is not valid') as string)"
    return made(f"if({bad}, {error}, {body})", TEXT, code)


def _octets(call: Call) -> Typed:
    call.count(1)
    value = call.args[0]
    if value.type is None or value.type.kind is not Kind.BYTEA:
        value = call.arg(0, TEXT)
    return made(f"octet_length({value.text})", INT, value)


def _one(result: types.DataType, template: str) -> Function:
    return pick((simple((TEXT,), result, template),))


FUNCTIONS: dict[str, Function] = {
    "concat": _concat,
    "concat_ws": _concat_ws,
    "substring": _substring,
    "substr": _substring,
    "left": _end("left"),
    "right": _end("right"),
    "btrim": _trim("BOTH"),
    "ltrim": _trim("LEADING"),
    "rtrim": _trim("TRAILING"),
    "split_part": _split_part,
    "strpos": _strpos,
    "lpad": _pad("lpad"),
    "rpad": _pad("rpad"),
    "chr": _chr,
    "octet_length": _octets,
    "upper": _one(TEXT, "upper({0})"),
    "lower": _one(TEXT, "lower({0})"),
    "length": pick(
        (simple((TEXT,), INT, "char_length({0})"), simple((BYTES,), INT, "octet_length({0})"))
    ),
    "char_length": _one(INT, "char_length({0})"),
    "character_length": _one(INT, "char_length({0})"),
    "bit_length": _one(INT, "(octet_length({0}) * 8)"),
    "reverse": _one(TEXT, "reverse({0})"),
    "ascii": _one(INT, "if({0} = '', 0, ascii({0}))"),
    "repeat": pick((simple((TEXT, INT), TEXT, "repeat({0}, {1})"),)),
    "replace": pick(
        (simple((TEXT, TEXT, TEXT), TEXT, "if({1} = '', {0}, replace({0}, {1}, {2}))"),)
    ),
    "translate": pick((simple((TEXT, TEXT, TEXT), TEXT, "translate({0}, {1}, {2})"),)),
    "starts_with": pick((simple((TEXT, TEXT), types.BOOLEAN, "startswith({0}, {1})"),)),
}

r"""jsonb taken apart and put together by Spark, without losing a digit or a space.

jsonb is stored as PostgreSQL spells it, and a part of such a text is spelled as it would be alone.
Spark's own reader would round numbers and drop spaces on the way, so it only gets to see texts:
before it reads, every string becomes `"S..."` and every other scalar `"N..."` (it is *marked*).
What it hands out is a *part*: `Sabc` for a string, `N1.50`, `Ntrue` or `Nnull` for another
scalar, or a marked object or array, without spaces. `as_json` and `as_text` undo the marks.

All functions take and give Spark texts.
"""

from headwater.sql.expression.typed import string_literal

_TOKENS = string_literal(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[^"]+')
_SCALARS = string_literal(r"(-?[0-9][-+0-9.eE]*|true|false|null)")
_SAME_NUMBERS = string_literal(
    r'("[^"\\]*+(?:\\.[^"\\]*+)*+")|(-?[0-9]++)(?:[.]0++(?![0-9])|([.][0-9]*?[1-9])0*(?![0-9]))?'
)
_SHORT_ESCAPES = (
    ("\\", "\\\\"), ('"', '\\"'), ("\b", "\\b"), ("\f", "\\f"), ("\n", "\\n"), ("\r", "\\r"),
    ("\t", "\\t"),
)  # fmt: skip
_OTHER_CONTROLS = [code for code in range(1, 32) if code not in (8, 9, 10, 12, 13)]


def bound(value: str, variable: str, body: str) -> str:
    """The body with a name for a value, which is computed once."""
    return f"get(transform(array({value}), {variable} -> {body}), 0)"


def marked(json: str) -> str:
    """An object or array with every scalar as a marked string."""
    one = (
        f"if(startswith(m, '\"'), concat('\"S', substring(m, 2)), "
        f"regexp_replace(replace(m, ' ', ''), {_SCALARS}, '\"N$1\"'))"
    )
    return f"array_join(transform(regexp_extract_all({json}, {_TOKENS}, 0), m -> {one}), '')"


def _unmarked(part: str) -> str:
    one = (
        "case when startswith(m, '\"S') then concat('\"', substring(m, 3)) "
        "when startswith(m, '\"N') then substring(m, 3, length(m) - 3) "
        "else replace(replace(m, ',', ', '), ':', ': ') end"
    )
    whole = f"array_join(transform(regexp_extract_all({part}, {_TOKENS}, 0), m -> {one}), '')"
    return bound(whole, "u", f"if(contains(u, '\\\\u00'), {_small_hex('u')}, u)")


def _small_hex(text: str) -> str:
    """Spark writes control characters with capital letters, PostgreSQL with small ones."""
    for code in _OTHER_CONTROLS:
        if f"{code:04X}" != f"{code:04x}":
            pattern = string_literal(rf"(?<!\\)((?:\\\\)*)\\u{code:04X}")
            small = string_literal(rf"$1\\u{code:04x}")
            text = f"regexp_replace({text}, {pattern}, {small})"
    return text


def part_of(json: str) -> str:
    """A whole jsonb as a part."""
    inside = "concat('S', get(from_json(concat('[', j, ']'), 'array<string>'), 0))"
    body = (
        f"case when left(j, 1) in ('{{', '[') then {marked('j')} "
        f"when left(j, 1) = '\"' then {inside} else concat('N', j) end"
    )
    return bound(json, "j", body)


def as_json(part: str) -> str:
    """A part as jsonb."""
    body = (
        f"case when startswith(p, 'S') then {json_string('substring(p, 2)')} "
        f"when startswith(p, 'N') then substring(p, 2) else {_unmarked('p')} end"
    )
    return bound(part, "p", body)


def as_text(part: str) -> str:
    """A part as `->>` gives it: a string without quotes, null for JSON's null."""
    body = (
        "case when p = 'Nnull' then null when left(p, 1) in ('S', 'N') then substring(p, 2) "
        f"else {_unmarked('p')} end"
    )
    return bound(part, "p", body)


def fields(part: str) -> str:
    """The fields of an object as a map from key to part, keys marked; null if it is none."""
    return f"from_json({part}, 'map<string,string>')"


def field(part: str, key: str) -> str:
    """One field; null if there is none."""
    return f"{fields(part)}[concat('S', {key})]"


def elements(part: str) -> str:
    """The elements of an array as parts; null if it is none."""
    return f"from_json({part}, 'array<string>')"


def element(part: str, place: str) -> str:
    """One element by its place from 0, or from the end when negative; null beyond the ends."""
    number = place.strip("()")
    if number.lstrip("-").isdigit():
        at = str(int(number) if int(number) < 0 else int(number) + 1)
    else:
        at = f"if({place} < 0, {place}, {place} + 1)"
    return f"try_element_at({elements(part)}, {at})"


def element_or_scalar(part: str, place: str) -> str:
    """One element as `->` gives it: a scalar counts as an array of itself."""
    body = f"if(left(s, 1) in ('S', 'N'), if({place} in (0, -1), s, null), {element('s', place)})"
    return bound(part, "s", body)


def step(part: str, key: str) -> str:
    """One step of a path: a field of an object, or an element of an array if it is a number."""
    place = bound(f"try_cast({key} as int)", "i", element("s", "i"))
    return bound(part, "s", f"if(startswith(s, '['), {place}, {field('s', key)})")


def json_string(text: str) -> str:
    """A text as a JSON string."""
    escaped = text
    for plain, short in _SHORT_ESCAPES:
        escaped = f"replace({escaped}, {string_literal(plain)}, {string_literal(short)})"
    rare = "t"
    for code in _OTHER_CONTROLS:
        escape = string_literal("\\u" + f"{code:04x}")
        rare = f"replace({rare}, char({code}), {escape})"
    control = string_literal(r"[\x01-\x1f]")
    whole = bound(escaped, "t", f"if(rlike(t, {control}), {rare}, t)")
    return f"concat('\"', {whole}, '\"')"


_KEYS_IN_ORDER = (
    "(l, r) -> case when octet_length(l.k) < octet_length(r.k) then -1 "
    "when octet_length(l.k) > octet_length(r.k) then 1 when l.k < r.k then -1 "
    "when l.k > r.k then 1 else 0 end"
)


def object_of(pairs: str) -> str:
    """An array of structs (k: text, v: jsonb) without equal keys, as an object."""
    one = f"concat({json_string('e.k')}, ': ', e.v)"
    sorted_ = f"array_sort({pairs}, {_KEYS_IN_ORDER})"
    return f"concat('{{', array_join(transform({sorted_}, e -> {one}), ', '), '}}')"


def array_of(items: str) -> str:
    """An array of jsonb texts as one jsonb."""
    return f"concat('[', array_join({items}, ', '), ']')"


def pairs_of(json: str) -> str:
    """The fields of a jsonb object as an array of structs (k: text, v: jsonb)."""
    entries = f"map_entries({fields(part_of(json))})"
    return (
        f"transform({entries}, e -> named_struct('k', substring(e.key, 2), "
        f"'v', {as_json('e.value')}))"
    )


def items_of(json: str) -> str:
    """The elements of a jsonb array as an array of jsonb."""
    return f"transform({elements(part_of(json))}, e -> {as_json('e')})"


_NULL_FIELDS = string_literal(
    r'("[^"\\]*+(?:\\.[^"\\]*+)*+": null, )|(, "[^"\\]*+(?:\\.[^"\\]*+)*+": null(?![a-z]))|'
    r'("[^"\\]*+(?:\\.[^"\\]*+)*+": null)|("[^"\\]*+(?:\\.[^"\\]*+)*+")'
)


def without_nulls(json: str) -> str:
    """A jsonb without the fields that are null, at any depth."""
    return f"regexp_replace({json}, {_NULL_FIELDS}, '$4')"


def same_numbers(json: str) -> str:
    """A form that is equal for equal jsonb: numbers without zeros at the end."""
    return f"regexp_replace({json}, {_SAME_NUMBERS}, '$1$2$3')"

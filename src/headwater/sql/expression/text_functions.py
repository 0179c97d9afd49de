"""Functions of text with a little language of their own: format, quotes, encodings, patterns."""

import re

from headwater.model import types
from headwater.model.types import Kind
from headwater.sql.expression import json_text as jt
from headwater.sql.expression.call import Call, Function, pick, simple
from headwater.sql.expression.casting import to_text
from headwater.sql.expression.coercion import become
from headwater.sql.expression.patterns import Pattern, pattern_of, similar
from headwater.sql.expression.problem import Text
from headwater.sql.expression.typed import Typed, made, string_literal

TEXT, INT, BYTES = types.VARCHAR, types.INTEGER, types.BYTEA
TEXTS = types.list_of(types.VARCHAR)
_KEYWORDS = frozenset(
    (
        "all analyse analyze and any array as asc asymmetric authorization between bigint binary "
        "bit boolean both case cast char character check coalesce collate collation column "
        "concurrently constraint create cross current_catalog current_date current_role "
        "current_schema current_time current_timestamp current_user dec decimal default "
        "deferrable desc distinct do else end except exists extract false fetch float for foreign "
        "freeze from full grant greatest group grouping having ilike in initially inner inout int "
        "integer intersect interval into is isnull join json json_array json_arrayagg json_exists "
        "json_object json_objectagg json_query json_scalar json_serialize json_table json_value "
        "lateral leading least left like limit localtime localtimestamp merge_action national "
        "natural nchar none normalize not notnull null nullif numeric offset on only or order out "
        "outer overlaps overlay placing position precision primary real references returning "
        "right row select session_user setof similar smallint some substring symmetric "
        "system_user table tablesample then time timestamp to trailing treat trim true union "
        "unique user using values varchar variadic verbose when where window with xmlattributes "
        "xmlconcat xmlelement xmlexists xmlforest xmlnamespaces xmlparse xmlpi xmlroot "
        "xmlserialize xmltable "
    ).split()
)
"""Words that PostgreSQL does not take for a name without quotes."""


def ident_text(text: str) -> str:
    """A name as SQL writes it, in Spark."""
    words = ", ".join(f"'{word}'" for word in sorted(_KEYWORDS))
    plain = string_literal("^[a-z_][a-z0-9_$]*$")
    return (
        f"if(rlike({text}, {plain}) and {text} not in ({words}), {text}, "
        f"concat('\"', replace({text}, '\"', '\"\"'), '\"'))"
    )


def literal_text(text: str) -> str:
    """A text as a SQL literal, in Spark."""
    quote, slash = string_literal("'"), string_literal("\\")
    two_quotes, two_slashes = string_literal("''"), string_literal("\\\\")
    body = f"replace(replace({text}, {slash}, {two_slashes}), {quote}, {two_quotes})"
    escaped = string_literal("E'")
    start = f"if(contains({text}, {slash}), {escaped}, {quote})"
    return f"concat({start}, {body}, {quote})"


def _quote(function: str) -> Function:
    def quote(call: Call) -> Typed:
        call.count(1)
        value = to_text(call.args[0], call.text, call.node)
        if function == "quote_ident":
            return made(ident_text(value.text), TEXT, value)
        body = literal_text(value.text)
        if function == "quote_nullable":
            body = f"coalesce({body}, 'NULL')"
        return made(body, TEXT, value)

    return quote


_DIRECTIVE = re.compile(r"%(?:(\d+)\$)?(-?)(\d*)([sIL%])")


def _format(call: Call) -> Typed:
    if not call.args or (form := _constant(call.args[0])) is None:
        call.refuse("the first argument of format must be a constant")
    pieces, at, following = [], 0, 1
    for found in _DIRECTIVE.finditer(form):
        pieces.append(string_literal(_plain_piece(call, form[at : found.start()])))
        at = found.end()
        if found[4] == "%":
            pieces.append("'%'")
            continue
        place = int(found[1]) if found[1] else following
        following = place + 1
        if place >= len(call.args):
            call.mistake("too few arguments for format()", sqlstate="22023")
        pieces.append(_formatted(call, call.args[place], found[4], found[2] + found[3]))
    pieces.append(string_literal(_plain_piece(call, form[at:])))
    return made(f"concat({', '.join(pieces)})", TEXT, *call.args, nullable=False)


def _plain_piece(call: Call, piece: str) -> str:
    if "%" in piece:
        call.mistake("unrecognized format() type specifier", sqlstate="22023")
    return piece


def _formatted(call: Call, arg: Typed, kind: str, width: str) -> str:
    if arg.known.kind is Kind.BOOLEAN:
        text = f"if({arg.text} is null, null, if({arg.text}, 't', 'f'))"
    else:
        text = to_text(arg, call.text, call.node).text
    if kind == "s":
        text = f"coalesce({text}, '')"
    elif kind == "L":
        text = f"coalesce({literal_text(text)}, 'NULL')"
    else:
        error = (
            "cast(raise_error('null values cannot be formatted as an SQL identifier') as string)"
        )
        text = f"coalesce({ident_text(text)}, {error})"
    if not width:
        return text
    pad = "rpad" if width.startswith("-") else "lpad"
    size = width.lstrip("-")
    return jt.bound(text, "f", f"if(length(f) >= {size}, f, {pad}(f, {size}, ' '))")


def _constant(value: Typed) -> str | None:
    return value.literal if value.type is None else value.constant


def _initcap(call: Call) -> Typed:
    call.count(1)
    value = call.arg(0, TEXT)
    words = string_literal(r"[\p{L}\p{N}]+|[^\p{L}\p{N}]+")
    body = (
        f"array_join(transform(regexp_extract_all({value.text}, {words}, 0), "
        "w -> concat(upper(left(w, 1)), lower(substring(w, 2)))), '')"
    )
    return made(body, TEXT, value)


def _string_to_array(call: Call) -> Typed:
    call.count(2, 3)
    value, by = call.arg(0, TEXT), call.arg(1, TEXT)
    split = f"split({value.text}, concat('\\\\Q', {by.text}, '\\\\E'), -1)"
    characters = f"if({value.text} = '', array(), split({value.text}, ''))"
    body = (
        f"case when {value.text} is null then null when {by.text} is null then {characters} "
        f"when {value.text} = '' then array() when {by.text} = '' then array({value.text}) "
        f"else {split} end"
    )
    parts = [value, by]
    if len(call.args) == 3:
        null = call.arg(2, TEXT)
        body = f"transform({body}, w -> if(w = {null.text}, null, w))"
        parts.append(null)
    return made(f"cast({body} as array<string>)", TEXTS, *parts)


def _digest(bits: int) -> Function:
    def function(call: Call) -> Typed:
        call.count(1)
        value = call.arg(0, BYTES)
        if bits == 0:
            return made(f"md5({value.text})", TEXT, value)
        return made(f"unhex(sha2({value.text}, {bits}))", BYTES, value)

    return function


def _md5(call: Call) -> Typed:
    call.count(1)
    if call.args[0].known.kind is Kind.BYTEA:
        return _digest(0)(call)
    value = call.arg(0, TEXT)
    return made(f"md5({value.text})", TEXT, value)


def _encode(call: Call) -> Typed:
    call.count(2)
    value, form = call.arg(0, BYTES), (_constant(call.args[1]) or "").lower()
    if form == "hex":
        return made(f"lower(hex({value.text}))", TEXT, value)
    if form == "base64":
        lines = string_literal("(.{76})(?=.)")
        body = f"regexp_replace(replace(base64({value.text}), '\\r\\n', ''), {lines}, '$1\\n')"
        return made(body, TEXT, value)
    if form == "escape":
        code = f"cast(conv(hex(substring({value.text}, i, 1)), 16, 10) as int)"
        octal = f"lpad(conv(hex(substring({value.text}, i, 1)), 16, 8), 3, '0')"
        one = (
            f"case when {code} = 0 or {code} > 127 then concat('\\\\', {octal}) "
            f"when {code} = 92 then '\\\\\\\\' else char({code}) end"
        )
        whole = f"array_join(transform(sequence(1, octet_length({value.text})), i -> {one}), '')"
        return made(f"if(octet_length({value.text}) = 0, '', {whole})", TEXT, value)
    call.refuse(f"encode to {form!r} is not supported", hint="Use 'hex', 'base64' or 'escape'.")


def _decode(call: Call) -> Typed:
    call.count(2)
    value, form = call.arg(0, TEXT), (_constant(call.args[1]) or "").lower()
    if form == "hex":
        return made(f"unhex({value.text})", BYTES, value)
    if form == "base64":
        return made(f"unbase64({value.text})", BYTES, value)
    call.refuse(f"decode from {form!r} is not supported", hint="Use 'hex' or 'base64'.")


_CHARSETS = {"utf8": "UTF-8", "utf-8": "UTF-8", "latin1": "ISO-8859-1", "sql_ascii": "US-ASCII"}


def _charset(call: Call) -> str:
    name = _CHARSETS.get((_constant(call.args[1]) or "").lower())
    if name is None:
        call.refuse("this encoding is not supported", hint="Use 'UTF8' or 'LATIN1'.")
    return name


def _convert(function: str) -> Function:
    def convert(call: Call) -> Typed:
        call.count(2)
        if function == "encode":
            value = call.arg(0, TEXT)
            return made(f"encode({value.text}, '{_charset(call)}')", BYTES, value)
        value = call.arg(0, BYTES)
        return made(f"decode({value.text}, '{_charset(call)}')", TEXT, value)

    return convert


def _radix(base: int) -> Function:
    def function(call: Call) -> Typed:
        call.count(1)
        value = call.args[0]
        if value.known.kind is Kind.BIGINT:
            body = value.text
        else:
            value = call.arg(0, INT)
            body = f"(cast({value.text} as bigint) & 4294967295L)"
        spelled = {16: f"lower(hex({body}))", 2: f"bin({body})", 8: f"conv({body}, 10, 8)"}
        return made(spelled[base], TEXT, value)

    return function


def _get_byte(call: Call) -> Typed:
    call.count(2)
    value, place = call.arg(0, BYTES), call.arg(1, INT)
    error = "cast(raise_error('index out of valid range') as int)"
    byte = f"cast(conv(hex(substring({value.text}, {place.text} + 1, 1)), 16, 10) as int)"
    outside = f"{place.text} < 0 or {place.text} >= octet_length({value.text})"
    return made(f"if({outside}, {error}, {byte})", INT, value, place)


# Regular expressions


def matches(
    value: Typed, expression: Typed, text: Text, node: object, *, fold: bool = False
) -> Typed:
    """`~` and `~*`."""
    value = become(value, TEXT, text, node)
    found = pattern_of(expression, text, node, flags="i" if fold else "")
    return made(f"rlike({value.text}, {found.text})", types.BOOLEAN, value)


def similar_to(value: Typed, expression: Typed, escape: str, text: Text, node: object) -> Typed:
    """SIMILAR TO."""
    constant = _constant(expression)
    if constant is None:
        text.refuse("the pattern of SIMILAR TO must be a constant", node)
    regular = similar(constant, escape)
    return matches(value, Typed("", None, literal=regular), text, node)


def substring_match(value: Typed, expression: Typed, text: Text, node: object) -> Typed:
    """SUBSTRING(a FROM 'pattern'): the first group, or the whole match."""
    value = become(value, TEXT, text, node)
    found = pattern_of(expression, text, node, taken_out=True)
    group = 1 if found.groups else 0
    body = f"regexp_extract({value.text}, {found.text}, {group})"
    return made(f"if(rlike({value.text}, {found.text}), {body}, null)", TEXT, value)


def _flags(call: Call, place: int) -> str:
    if len(call.args) <= place:
        return ""
    flags = _constant(call.args[place])
    if flags is None:
        call.refuse("the flags must be a constant")
    return flags


def _pattern(call: Call, flags: str = "", *, taken_out: bool = True) -> Pattern:
    return pattern_of(call.args[1], call.text, call.node, flags=flags, taken_out=taken_out)


def _regexp_replace(call: Call) -> Typed:
    call.count(3, 4)
    flags = _flags(call, 3)
    value, found = call.arg(0, TEXT), _pattern(call, flags)
    new = _constant(call.args[2])
    if new is None:
        call.refuse("the replacement must be a constant")
    shift = 0 if "g" in flags else 1
    spelled = _replacement(call, new, shift)
    if "g" in flags:
        body = f"regexp_replace({value.text}, {found.text}, {string_literal(spelled)})"
    else:
        # Spark replaces every match, so the one that counts is anchored to the beginning.
        spelled = "$1" + spelled
        body = f"regexp_replace({value.text}, {found.with_prefix()}, {string_literal(spelled)})"
    return made(body, TEXT, value)


def _replacement(call: Call, new: str, shift: int) -> str:
    r"""\1 and \& become $1 and $0; a dollar sign stands for itself."""
    out, at = "", 0
    while at < len(new):
        sign, following = new[at], new[at + 1 : at + 2]
        at += 1
        if sign == "$":
            out += "\\$"
        elif sign != "\\":
            out += sign
        elif following.isdigit():
            out += f"${int(following) + shift}"
            if new[at + 1 : at + 2].isdigit():
                call.refuse("a digit after a group's number is not supported")
            at += 1
        elif following == "&":
            if shift:
                call.refuse(r"\& without the flag 'g' is not supported", hint="Use a group.")
            out += "$0"
            at += 1
        else:
            out += "\\\\"
            at += 1 if following == "\\" else 0
    return out


def _regexp_match(call: Call) -> Typed:
    call.count(2, 3)
    value, found = call.arg(0, TEXT), _pattern(call, _flags(call, 2))
    return made(match_array(call, value.text, found), TEXTS, value)


def match_array(call: Call, value: str, found: Pattern) -> str:
    """The groups of the first match, or the whole match; null without one."""
    if found.groups and re.search(r"\)[?*{]|\|", found.java):
        call.refuse("a group that may be missing is not supported here")
    numbers = range(1, found.groups + 1) if found.groups else (0,)
    parts = ", ".join(f"regexp_extract({value}, {found.text}, {number})" for number in numbers)
    return f"if(rlike({value}, {found.text}), array({parts}), null)"


def all_matches(call: Call) -> Typed:
    """regexp_matches: an array of the arrays that it gives as rows."""
    call.count(2, 3)
    flags = _flags(call, 2)
    value, found = call.arg(0, TEXT), _pattern(call, flags)
    if "g" not in flags:
        first = match_array(call, value.text, found)
        return made(f"filter(array({first}), w -> w is not null)", types.list_of(TEXTS), value)
    if found.groups > 1:
        call.refuse("regexp_matches with 'g' and several groups is not supported")
    group = 1 if found.groups else 0
    body = f"transform(regexp_extract_all({value.text}, {found.text}, {group}), w -> array(w))"
    return made(body, types.list_of(TEXTS), value)


def split_array(call: Call) -> Typed:
    """regexp_split_to_array."""
    call.count(2, 3)
    value, found = call.arg(0, TEXT), _pattern(call, _flags(call, 2))
    if found.java == "":
        body = f"if({value.text} = '', array(''), split({value.text}, ''))"
        return made(body, TEXTS, value)
    if found.may_be_empty:
        call.refuse("splitting by a pattern that may match nothing is not supported")
    return made(f"split({value.text}, {found.text}, -1)", TEXTS, value)


def _regexp_like(call: Call) -> Typed:
    call.count(2, 3)
    value = call.arg(0, TEXT)
    found = _pattern(call, _flags(call, 2), taken_out=False)
    return made(f"rlike({value.text}, {found.text})", types.BOOLEAN, value)


def _regexp_count(call: Call) -> Typed:
    call.count(2)
    value, found = call.arg(0, TEXT), _pattern(call)
    return made(f"regexp_count({value.text}, {found.text})", INT, value)


def _regexp_instr(call: Call) -> Typed:
    call.count(2)
    value, found = call.arg(0, TEXT), _pattern(call)
    return made(f"regexp_instr({value.text}, {found.text})", INT, value)


def _regexp_substr(call: Call) -> Typed:
    call.count(2, 4)
    value, found = call.arg(0, TEXT), _pattern(call)
    start = call.arg(2, INT).text if len(call.args) > 2 else "1"
    number = call.arg(3, INT).text if len(call.args) > 3 else "1"
    source = value.text if start == "1" else f"substring({value.text}, {start})"
    body = f"get(regexp_extract_all({source}, {found.text}, 0), {number} - 1)"
    return made(body, TEXT, *call.args)


FUNCTIONS: dict[str, Function] = {
    "format": _format,
    "initcap": _initcap,
    "quote_ident": _quote("quote_ident"),
    "quote_literal": _quote("quote_literal"),
    "quote_nullable": _quote("quote_nullable"),
    "string_to_array": _string_to_array,
    "md5": _md5,
    "sha224": _digest(224),
    "sha256": _digest(256),
    "sha384": _digest(384),
    "sha512": _digest(512),
    "encode": _encode,
    "decode": _decode,
    "convert_to": _convert("encode"),
    "convert_from": _convert("decode"),
    "to_hex": _radix(16),
    "to_bin": _radix(2),
    "to_oct": _radix(8),
    "get_byte": _get_byte,
    "regexp_replace": _regexp_replace,
    "regexp_match": _regexp_match,
    "regexp_split_to_array": split_array,
    "regexp_like": _regexp_like,
    "regexp_count": _regexp_count,
    "regexp_instr": _regexp_instr,
    "regexp_substr": _regexp_substr,
    "casefold": pick((simple((TEXT,), TEXT, "lower({0})"),)),
}

"""to_char for numbers: digits (9, 0), a point, commas, a sign and FM."""

import re

from headwater.model import types
from headwater.sql.expression import json_text as jt
from headwater.sql.expression.call import Call
from headwater.sql.expression.coercion import FLOATS, as_decimal_type, converted, number
from headwater.sql.expression.typed import Typed, made

_PATTERN = re.compile(r"(FM)?(S|MI|SG)?([09,G]*)(?:([.D])([09]*))?(S|MI|SG)?", re.IGNORECASE)


def number_text(call: Call, value: Typed, pattern: str) -> Typed:
    """A number spelled by a pattern; what does not fit becomes #."""
    found = _PATTERN.fullmatch(pattern)
    if found is None or not found[3] or (found[2] or found[6] or "S").upper() != "S":
        call.refuse(f"the pattern {pattern!r} is not supported")
    bare, whole, fraction = bool(found[1]), found[3].replace("G", ","), found[5] or ""
    signed = bool(found[2])
    if found[6]:
        call.refuse(f"the pattern {pattern!r} is not supported")
    value = number(value, call.text, call.node)
    if value.known.kind in FLOATS:
        exact = f"cast(format_string('%.15e', {value.text}) as decimal(38,15))"
        value = made(f"if({value.text} is null, null, {exact})", types.decimal(38, 15), value)
    else:
        value = converted(value, as_decimal_type(value.known))
    digits = len(whole.replace(",", ""))
    rounded = f"abs(round({value.text}, {len(fraction)}))"
    text = f"cast({rounded} as string)"
    body = jt.bound(text, "n", _spelled(whole, fraction, bare, digits, bool(found[4])))
    negative = f"(round({value.text}, {len(fraction)}) < 0)"
    sign = f"if({negative}, '-', '{'+' if signed else ''}')"
    joined = f"concat({sign}, ltrim(' ', {body}))"
    if not bare:
        size = len(whole) + len(fraction) + (1 if found[4] else 0) + 1
        joined = jt.bound(joined, "r", f"lpad(r, greatest({size}, length(r)), ' ')")
    return made(f"if({value.text} is null, null, {joined})", types.VARCHAR, value)


def _spelled(whole: str, fraction: str, bare: bool, digits: int, pointed: bool) -> str:
    """The digits of `n`, a plain decimal without sign, in their places."""
    integer = "regexp_extract(n, '^([0-9]+)', 1)"
    if pointed and fraction and "0" not in whole:
        # A zero before the point is not written unless the pattern asks for it.
        integer = f"if({integer} = '0', '', {integer})"
    zeros = whole.replace(",", "").find("0")
    least = digits - zeros if zeros >= 0 else 0
    if least:
        integer = f"lpad({integer}, greatest({least}, length({integer})), '0')"
    body = integer if "," not in whole else _grouped(whole, digits)
    if "," in whole:
        body = jt.bound(f"lpad({integer}, {digits}, ' ')", "d", body)
    point = ""
    if pointed:
        cut = f"rpad(regexp_extract(n, '[.]([0-9]+)$', 1), {len(fraction)}, '0')"
        kept = fraction.rfind("0") + 1
        if bare and kept < len(fraction):
            cut = f"concat(left({cut}, {kept}), rtrim('0', substring({cut}, {kept + 1})))"
        point = f", '.', {cut}" if fraction else ", '.'"
    filled = f"concat({body}{point})"
    hashes = "#" * digits + ("." + "#" * len(fraction) if pointed else "")
    return f"if(length(regexp_extract(n, '^0*([0-9]*)', 1)) > {digits}, '{hashes}', {filled})"


def _grouped(whole: str, digits: int) -> str:
    parts, place = [], 0
    for sign in whole:
        if sign == ",":
            parts.append(f"if(trim(left(d, {place})) = '', ' ', ',')")
        else:
            place += 1
            parts.append(f"substring(d, {place}, 1)")
    return f"concat({', '.join(parts)})" if digits else "''"

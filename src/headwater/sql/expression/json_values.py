"""Operators and functions that look into jsonb.

`json_text.py` has the exact representation. A chain of `->` reads the text once.
`@>` needs a constant on its right: what is contained is then known when the query is planned.
"""

import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from sqlglot import exp

from headwater.model import types
from headwater.model.types import Kind
from headwater.sql.expression import json_text as jt
from headwater.sql.expression.array_text import read_array
from headwater.sql.expression.call import Call, Function
from headwater.sql.expression.coercion import INTEGERS, become
from headwater.sql.expression.literals import normal_json
from headwater.sql.expression.problem import Text
from headwater.sql.expression.translator import Translator
from headwater.sql.expression.typed import Typed, made, string_literal

TEXT, JSON, TEXTS = types.VARCHAR, types.JSONB, types.list_of(types.VARCHAR)
_MOST_STEPS = 50
_STEPS = (exp.JSONExtract, exp.JSONBExtract, exp.Bracket)


def extract_rule(t: Translator, node: Any) -> Typed:
    """`->`, `->>`, `#>`, `#>>` and subscripts of jsonb, as many as follow each other."""
    steps: list[Any] = [node]
    inner = node.this
    while isinstance(inner, (*_STEPS, exp.Paren)):
        if not isinstance(inner, exp.Paren):
            steps.append(inner)
        inner = inner.this
    if len(steps) > _MOST_STEPS:
        t.text.mistake("the statement is nested too deeply", node, sqlstate="54001")
    base = t(inner)
    if base.type is None and base.literal is not None:
        base = become(base, JSON, t.text, node)
    if base.known.kind is not Kind.JSONB:
        t.text.mistake(
            f"operator does not exist: {base.known.postgres} -> ...", node, sqlstate="42883"
        )
    part, used = jt.part_of(base.text), [base]
    for each in reversed(steps):
        part = _stepped(t, part, each, used)
    if isinstance(node, exp.JSONExtractScalar | exp.JSONBExtractScalar):
        return made(jt.as_text(part), TEXT, *used)
    return made(jt.as_json(part), JSON, *used)


def _stepped(t: Translator, part: str, node: Any, used: list[Typed]) -> str:
    if isinstance(node, exp.JSONBExtract | exp.JSONBExtractScalar):
        for key in _path(t(node.expression), t.text, node):
            used.append(key)
            part = jt.step(part, key.text)
        return part
    key = t(node.expressions[0] if isinstance(node, exp.Bracket) else node.expression)
    used.append(key)
    if key.type is not None and key.type.kind in INTEGERS:
        return jt.element_or_scalar(part, key.text)
    return jt.field(part, become(key, TEXT, t.text, node).text)


def _path(path: Typed, text: Text, node: object) -> list[Typed]:
    """The steps of a path, which is an array of known length."""
    if path.type is None and path.literal is not None:
        return [_constant(each or "", text, node) for each in read_array(path.literal)]
    items = path.items
    if items is None:
        text.refuse(
            "a path must be written out", node, hint="Write '{a,b}', ARRAY[a, b], or use ->."
        )
    return [become(each, TEXT, text, node) for each in items]


def _constant(value: str, text: Text, node: object) -> Typed:
    return become(Typed(string_literal(value), None, literal=value), TEXT, text, node)


def is_json(value: Typed) -> bool:
    """Whether a value is known to be jsonb."""
    return value.type is not None and value.type.kind is Kind.JSONB


def has_key(value: Typed, key: Typed, text: Text, node: object) -> Typed:
    """`?`: a key of an object, a string in an array, or the string itself."""
    value, key = become(value, JSON, text, node), become(key, TEXT, text, node)
    return made(_has_key(value.text, key.text), types.BOOLEAN, value, key)


def _has_key(json_: str, key: str) -> str:
    mark = f"concat('S', {key})"
    body = (
        f"case when startswith(s, '{{') then map_contains_key({jt.fields('s')}, {mark}) "
        f"when startswith(s, '[') then array_contains({jt.elements('s')}, {mark}) "
        f"when s is null then null else s = {mark} end"
    )
    return jt.bound(jt.part_of(json_), "s", body)


def has_keys(value: Typed, keys: Typed, text: Text, node: object, *, every: bool) -> Typed:
    """`?|` and `?&`."""
    value, keys = become(value, JSON, text, node), become(keys, TEXTS, text, node)
    hold = "forall" if every else "exists"
    wanted = f"filter({keys.text}, x -> x is not null)"
    body = f"{hold}({wanted}, k -> {_has_key(value.text, 'k')})"
    return made(body, types.BOOLEAN, value, keys)


def contains(value: Typed, wanted: Typed, text: Text, node: object) -> Typed:
    """`@>` with a constant on the right."""
    value = become(value, JSON, text, node)
    if wanted.type is None and wanted.literal is not None:
        wanted = become(wanted, JSON, text, node)
    if wanted.constant is None and value.constant is not None:
        outer = json.loads(value.constant, parse_float=Decimal)
        body = jt.bound(jt.part_of(wanted.text), "c0", _within("c0", outer, 0, top=True))
        return made(f"if({wanted.text} is null, null, {body})", types.BOOLEAN, wanted)
    if wanted.constant is None:
        text.refuse(
            "one side of @> must be a constant", node, hint="Compare fields with ->> instead."
        )
    inner = json.loads(wanted.constant, parse_float=Decimal)
    body = jt.bound(jt.part_of(value.text), "c0", _contains("c0", inner, 0, top=True))
    return made(f"if({value.text} is null, null, {body})", types.BOOLEAN, value)


def _contains(part: str, wanted: Any, depth: int, *, top: bool = False) -> str:
    inside, variable = f"c{depth + 1}", f"c{depth}"
    if isinstance(wanted, dict):
        held = [
            jt.bound(
                jt.field(variable, string_literal(key)), inside,
                f"({inside} is not null and {_contains(inside, each, depth + 1)})",
            )
            for key, each in wanted.items()
        ]  # fmt: skip
        return f"({' and '.join([_begins(part, '{'), *held])})"
    if isinstance(wanted, list):
        held = [
            f"exists({jt.elements(part)}, {inside} -> {_contains(inside, each, depth + 1)})"
            for each in wanted
        ]
        return f"({' and '.join([_begins(part, '['), *held])})"
    same = _same_scalar(part, wanted)
    if not top:
        return same
    # An array may contain a scalar that is not in an array, at the top only.
    within = f"exists({jt.elements(part)}, {inside} -> {_same_scalar(inside, wanted)})"
    return f"if(startswith({part}, '['), {within}, {same})"


def _within(part: str, outer: Any, depth: int, *, top: bool = False) -> str:
    """Whether a part is contained in a known jsonb."""
    inside = f"c{depth + 1}"
    if isinstance(outer, dict):
        cases = [
            f"when {inside}.key = {string_literal('S' + key)} "
            f"then {_within(f'{inside}.value', each, depth + 1)}"
            for key, each in outer.items()
        ]
        held = f"(case {' '.join(cases)} else false end)" if cases else "false"
        every = f"forall(map_entries({jt.fields(part)}), {inside} -> {held})"
        return f"({_begins(part, '{')} and {every})"
    if isinstance(outer, list):
        held = " or ".join(_within(inside, each, depth + 1) for each in outer) or "false"
        every = f"forall({jt.elements(part)}, {inside} -> ({held}))"
        if not top:
            return f"({_begins(part, '[')} and {every})"
        scalars = [each for each in outer if not isinstance(each, dict | list)]
        alone = " or ".join(_same_scalar(part, each) for each in scalars) or "false"
        return f"if({_begins(part, '[')}, {every}, ({alone}))"
    return _same_scalar(part, outer)


def _begins(part: str, sign: str) -> str:
    return f"startswith({part}, '{sign}')"


def _same_scalar(part: str, wanted: Any) -> str:
    if isinstance(wanted, str):
        return f"({part} = {string_literal('S' + wanted)})"
    if wanted is None or isinstance(wanted, bool):
        return f"({part} = 'N{json.dumps(wanted)}')"
    plain = normal_json(str(wanted))
    if "." in plain:
        plain = plain.rstrip("0").rstrip(".")
    return f"({jt.same_numbers(part)} = 'N{plain}')"


def remove(value: Typed, key: Typed, text: Text, node: object) -> Typed:
    """`jsonb - key`, `jsonb - place` and `jsonb - array of keys`."""
    if key.type is not None and key.type.kind in INTEGERS:
        return _without_place(value, key)
    if key.type is not None and key.type.kind is Kind.LIST:
        keys = become(key, TEXTS, text, node)
        gone = f"coalesce(array_contains({keys.text}, {{0}}), false)"
    else:
        keys = become(key, TEXT, text, node)
        gone = f"coalesce({{0}} = {keys.text}, false)"
    objects = jt.object_of(f"filter({jt.pairs_of('d')}, w -> not {gone.format('w.k')})")
    kept = (
        f"filter({jt.elements(jt.part_of('d'))}, "
        f"w -> not (startswith(w, 'S') and {gone.format('substring(w, 2)')}))"
    )
    arrays = jt.array_of(f"transform({kept}, w -> {jt.as_json('w')})")
    error = "cast(raise_error('cannot delete from scalar') as string)"
    body = (
        f"case when {keys.text} is null then null when startswith(d, '{{') then {objects} "
        f"when startswith(d, '[') then {arrays} when d is null then null else {error} end"
    )
    return made(jt.bound(value.text, "d", body), JSON, value, keys)


def _without_place(value: Typed, place: Typed) -> Typed:
    items = jt.items_of("d")
    at = f"if({place.text} < 0, size(a) + {place.text}, {place.text})"
    kept = jt.array_of(f"filter(a, (w, n) -> n <> {at})")
    error = "cast(raise_error('cannot delete from object using integer index') as string)"
    body = f"if(startswith(d, '['), {jt.bound(items, 'a', kept)}, {error})"
    whole = f"if({value.text} is null or {place.text} is null, null, {{0}})"
    return made(whole.format(jt.bound(value.text, "d", body)), JSON, value, place)


def joined(left: Typed, right: Typed, text: Text, node: object) -> Typed:
    """`||`: objects together, the right one's fields first; anything else as arrays."""
    left, right = become(left, JSON, text, node), become(right, JSON, text, node)
    old = f"filter({jt.pairs_of('a')}, w -> not exists(q, o -> o.k = w.k))"
    objects = jt.bound(jt.pairs_of("b"), "q", jt.object_of(f"concat({old}, q)"))

    def listed(name: str) -> str:
        return f"if(startswith({name}, '['), {jt.items_of(name)}, array({name}))"

    arrays = jt.array_of(f"concat({listed('a')}, {listed('b')})")
    both = "startswith(a, '{') and startswith(b, '{')"
    body = jt.bound(right.text, "b", f"if({both}, {objects}, {arrays})")
    whole = (
        f"if({left.text} is null or {right.text} is null, null, {jt.bound(left.text, 'a', body)})"
    )
    return made(whole, JSON, left, right)


def _typeof(call: Call) -> Typed:
    call.count(1)
    value = call.arg(0, JSON)
    first = f"left({value.text}, 1)"
    body = (
        f"case {first} when '{{' then 'object' when '[' then 'array' when '\"' then 'string' "
        f"when 't' then 'boolean' when 'f' then 'boolean' when 'n' then 'null' "
        f"else if({value.text} is null, null, 'number') end"
    )
    return made(f"({body})", TEXT, value)


def _array_length(call: Call) -> Typed:
    call.count(1)
    value = call.arg(0, JSON)
    error = "cast(raise_error('cannot get array length of a value that is no array') as int)"
    size = f"size({jt.elements(jt.part_of(value.text))})"
    body = f"if({value.text} is null, null, if(startswith({value.text}, '['), {size}, {error}))"
    return made(body, types.INTEGER, value)


def _extract_path(*, as_text: bool) -> Function:
    def function(call: Call) -> Typed:
        if not call.args:
            call.no_such()
        value = call.arg(0, JSON)
        keys = [call.arg(place, TEXT) for place in range(1, len(call.args))]
        part = jt.part_of(value.text)
        for key in keys:
            part = jt.step(part, key.text)
        if as_text:
            return made(jt.as_text(part), TEXT, value, *keys)
        return made(jt.as_json(part), JSON, value, *keys)

    return function


def _strip_nulls(call: Call) -> Typed:
    call.count(1)
    value = call.arg(0, JSON)
    return made(jt.without_nulls(value.text), JSON, value)


def _exists(call: Call) -> Typed:
    call.count(2)
    return has_key(call.args[0], call.args[1], call.text, call.node)


def _contains_call(call: Call) -> Typed:
    call.count(2)
    return contains(call.args[0], call.args[1], call.text, call.node)


def scalar_of(value: Typed, target: types.DataType, text: Text, node: object) -> str:
    """Jsonb to a number or a boolean, as a Spark text of type string that a cast can follow."""
    kinds = "'true', 'false'" if target.kind is Kind.BOOLEAN else ""
    good = f"j in ({kinds})" if kinds else "rlike(j, '^-?[0-9]')"
    error = f"cast(raise_error('cannot cast this jsonb to type {target.postgres}') as string)"
    del text, node
    return jt.bound(value.text, "j", f"if(j is null or j = 'null', null, if({good}, j, {error}))")


FUNCTIONS: dict[str, Function] = {
    "jsonb_typeof": _typeof,
    "json_typeof": _typeof,
    "jsonb_array_length": _array_length,
    "json_array_length": _array_length,
    "jsonb_extract_path": _extract_path(as_text=False),
    "json_extract_path": _extract_path(as_text=False),
    "jsonb_extract_path_text": _extract_path(as_text=True),
    "json_extract_path_text": _extract_path(as_text=True),
    "jsonb_strip_nulls": _strip_nulls,
    "jsonb_exists": _exists,
    "jsonb_contains": _contains_call,
}


def element_list(name: str) -> Sequence[str]:
    """Names of the columns that a function in FROM gives."""
    return _COLUMNS[name]


_COLUMNS = {
    "jsonb_array_elements": ("value",),
    "jsonb_array_elements_text": ("value",),
    "jsonb_object_keys": ("jsonb_object_keys",),
    "jsonb_each": ("key", "value"),
    "jsonb_each_text": ("key", "value"),
}

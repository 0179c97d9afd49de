"""jsonb made from values, and jsonb changed in places."""

from collections.abc import Callable

from headwater.model import types
from headwater.model.types import DataType, Kind
from headwater.sql.expression import json_text as jt
from headwater.sql.expression.array_text import read_array
from headwater.sql.expression.call import Call, Function
from headwater.sql.expression.casting import to_text
from headwater.sql.expression.coercion import DECIMALS, FLOATS, INTEGERS, become
from headwater.sql.expression.problem import Text
from headwater.sql.expression.typed import Typed, made, string_literal

TEXT, JSON = types.VARCHAR, types.JSONB
Below = Callable[[str], str]
"""From a value in its place to what stands there afterwards."""


def to_json(value: Typed, text: Text, node: object) -> Typed:
    """A value as jsonb; SQL's null stays null."""
    if value.type is None:
        value = become(value, TEXT, text, node)
    return made(_spelled(value.text, value.known, text, node), JSON, value)


def _spelled(  # noqa: PLR0911  one return per kind of type
    value: str, type_: DataType, text: Text, node: object
) -> str:
    match type_.kind:
        case Kind.JSONB:
            return value
        case Kind.BOOLEAN:
            return f"cast({value} as string)"
        case kind if kind in (*INTEGERS, *DECIMALS):
            return f"cast({value} as string)"
        case kind if kind in FLOATS:
            plain = to_text(Typed(value, type_), text, node).text
            odd = f"(isnan({value}) or abs({value}) = cast('Infinity' as {type_.spark}))"
            return f"if({odd}, concat('\"', {plain}, '\"'), {_no_exponent(value, plain)})"
        case Kind.TIMESTAMP:
            return f"concat('\"', replace(cast({value} as string), ' ', 'T'), '\"')"
        case Kind.TIMESTAMPTZ:
            return f"concat('\"', replace(cast({value} as string), ' ', 'T'), '+00:00\"')"
        case Kind.LIST:
            assert type_.element is not None
            item = f"coalesce({_spelled('e', type_.element, text, node)}, 'null')"
            return jt.array_of(f"transform({value}, e -> {item})")
        case Kind.STRUCT:
            return _struct(value, type_, text, node)
        case _:
            return jt.json_string(to_text(Typed(value, type_), text, node).text)


def _no_exponent(value: str, plain: str) -> str:
    """Jsonb spells every number out."""
    whole = f"cast(cast({plain} as decimal(38,18)) as string)"
    trimmed = f"regexp_replace({whole}, '[.]?0*$', '')"
    return f"if(contains({plain}, 'e'), {trimmed}, {plain})" if value else plain


def _struct(value: str, type_: DataType, text: Text, node: object) -> str:
    fields = sorted(type_.fields, key=lambda field: (len(field[0].encode()), field[0].encode()))
    parts = []
    for name, each in fields:
        inner = _spelled(f"{value}.`{name}`", each, text, node)
        label = string_literal(f'"{name}": ')
        parts.append(f"concat({label}, coalesce({inner}, 'null'))")
    body = f"concat('{{', concat_ws(', ', {', '.join(parts)}), '}}')"
    return f"if({value} is null, null, {body})"


def _to_jsonb(call: Call) -> Typed:
    call.count(1)
    return to_json(call.args[0], call.text, call.node)


def _values(call: Call, start: int, step: int) -> list[Typed]:
    return [to_json(arg, call.text, call.node) for arg in call.args[start::step]]


def _build_array(call: Call) -> Typed:
    values = _values(call, 0, 1)
    items = ", ".join(f"coalesce({value.text}, 'null')" for value in values)
    body = f"concat('[', concat_ws(', ', {items}), ']')" if values else "'[]'"
    return made(body, JSON, *values, nullable=False)


def _key(call: Call, arg: Typed) -> Typed:
    key = to_text(arg, call.text, call.node)
    error = "cast(raise_error('field name must not be null') as string)"
    return key if key.constant is not None else made(f"coalesce({key.text}, {error})", TEXT, key)


def _build_object(call: Call) -> Typed:
    if len(call.args) % 2:
        call.mistake("argument list must have even number of elements", sqlstate="22023")
    keys = [_key(call, arg) for arg in call.args[0::2]]
    values = _values(call, 1, 2)
    if all(key.constant is not None for key in keys):
        return _known_keys(keys, values)
    pairs = ", ".join(
        f"named_struct('k', {key.text}, 'v', coalesce({value.text}, 'null'))"
        for key, value in zip(keys, values, strict=True)
    )
    last = f"filter(a, (w, n) -> not exists(slice(a, n + 2, {len(keys)}), o -> o.k = w.k))"
    body = jt.bound(f"array({pairs})", "a", jt.object_of(last))
    return made(body, JSON, *keys, *values, nullable=False)


def _known_keys(keys: list[Typed], values: list[Typed]) -> Typed:
    """The order of constant keys is known already; the last of equal ones counts."""
    by_key = {key.constant or "": value for key, value in zip(keys, values, strict=True)}
    ordered = sorted(by_key, key=lambda key: (len(key.encode()), key.encode()))
    parts = [
        f"concat({jt.json_string(string_literal(key))}, ': ', coalesce({by_key[key].text}, 'null'))"
        for key in ordered
    ]
    body = f"concat('{{', concat_ws(', ', {', '.join(parts)}), '}}')" if parts else "'{}'"
    return made(body, JSON, *values, nullable=False)


def _path(call: Call, place: int) -> list[str]:
    value = call.args[place]
    if value.literal is None:
        call.refuse(f"the path of {call.name} must be a constant", hint="Write '{a,b}'.")
    try:
        return [each or "" for each in read_array(value.literal)]
    except ValueError:
        call.mistake(f'malformed array literal: "{value.literal}"', sqlstate="22P02")


def _flag(call: Call, place: int, default: bool) -> bool:
    if len(call.args) <= place:
        return default
    if call.args[place].text not in ("true", "false"):
        call.refuse(f"the last argument of {call.name} must be true or false")
    return call.args[place].text == "true"


class Change:
    """What happens at the end of a path: to a value that is there, and to one that is not."""

    def __init__(
        self, there: Below, missing: str | None = None, beside: Below | None = None
    ) -> None:
        self.there = there
        self.missing = missing
        self.beside = beside


def _changed(json: str, path: list[str], depth: int, change: Change) -> str:
    """The jsonb with one place changed, or as it is where the path does not lead."""
    key, name = path[0], f"d{depth}"
    inner = f"i{depth}"

    def below(value: str) -> str:
        if len(path) == 1:
            return change.there(value)
        return _changed(value, path[1:], depth + 1, change)

    spelled = string_literal(key)
    there = f"exists({inner}, w{depth} -> w{depth}.k = {spelled})"
    one = f"w{depth}.v"
    replaced = jt.bound(
        below(one), f"y{depth}",
        f"if(y{depth} is null, null, named_struct('k', w{depth}.k, 'v', y{depth}))",
    )  # fmt: skip
    fields = (
        f"filter(transform({inner}, w{depth} -> if(w{depth}.k = {spelled}, {replaced}, "
        f"w{depth})), g{depth} -> g{depth} is not null)"
    )
    missing = inner
    if len(path) == 1 and change.missing is not None:
        missing = f"concat({inner}, array(named_struct('k', {spelled}, 'v', {change.missing})))"
    objects = jt.bound(jt.pairs_of(name), inner, jt.object_of(f"if({there}, {fields}, {missing})"))
    arrays = _changed_array(name, key, depth, below, change if len(path) == 1 else None)
    body = (
        f"case when startswith({name}, '{{') then {objects} when startswith({name}, '[') "
        f"then {arrays} else {name} end"
    )
    return jt.bound(json, name, body)


def _changed_array(name: str, key: str, depth: int, below: Below, change: Change | None) -> str:
    if not key.lstrip("-").isdigit():
        error = f"path element is not an integer: {key}"
        return f"cast(raise_error({string_literal(error)}) as string)"
    items, at = f"a{depth}", f"n{depth}"
    place = f"(size({items}) + {key})" if int(key) < 0 else key
    parts = f"array({below(f'w{depth}')})"
    if change is not None and change.beside is not None:
        parts = change.beside(f"w{depth}")
    kept = (
        f"filter(flatten(transform({items}, (w{depth}, {at}) -> if({at} = {place}, {parts}, "
        f"array(w{depth})))), g{depth} -> g{depth} is not null)"
    )
    outside = items
    if change is not None and change.missing is not None:
        new = f"array({change.missing})"
        first, last = f"concat({new}, {items})", f"concat({items}, {new})"
        outside = f"if({place} < 0, {first}, {last})"
    inside = f"{place} >= 0 and {place} < size({items})"
    return jt.bound(jt.items_of(name), items, jt.array_of(f"if({inside}, {kept}, {outside})"))


def _set(call: Call) -> Typed:
    call.count(3, 4)
    value, new = call.arg(0, JSON), call.arg(2, JSON)
    path, create = _path(call, 1), _flag(call, 3, True)
    if not path:
        return value
    change = Change(lambda _: new.text, new.text if create else None)
    return _guarded(_changed(value.text, path, 0, change), value, new)


def _insert(call: Call) -> Typed:
    call.count(3, 4)
    value, new = call.arg(0, JSON), call.arg(2, JSON)
    path, after = _path(call, 1), _flag(call, 3, False)
    if not path:
        return value
    error = "cast(raise_error('cannot replace existing key') as string)"

    def beside(old: str) -> str:
        return f"array({old}, {new.text})" if after else f"array({new.text}, {old})"

    change = Change(lambda _: error, new.text, beside)
    return _guarded(_changed(value.text, path, 0, change), value, new)


def delete_path(value: Typed, path: Typed, text: Text, node: object) -> Typed:
    """`#-`: without the value at a path."""
    if path.literal is None:
        text.refuse("the path of #- must be a constant", node, hint="Write '{a,b}'.")
    keys = [each or "" for each in read_array(path.literal)]
    if not keys:
        return value
    change = Change(lambda _: "cast(null as string)")
    return _guarded(_changed(value.text, keys, 0, change), value)


def _guarded(body: str, *values: Typed) -> Typed:
    nulls = " or ".join(f"{value.text} is null" for value in values)
    return made(f"if({nulls}, null, {body})", JSON, *values)


def _object(call: Call) -> Typed:
    """jsonb_object(keys and values), jsonb_object(keys, values): all values are texts."""
    call.count(1, 2)
    texts = types.list_of(TEXT)
    first = call.arg(0, texts)
    second = call.arg(1, texts) if len(call.args) == 2 else None
    if second is None:
        size = f"cast(size({first.text}) / 2 as int)"
        key, value = f"get({first.text}, 2 * n)", f"get({first.text}, 2 * n + 1)"
    else:
        size = f"size({first.text})"
        key, value = f"get({first.text}, n)", f"get({second.text}, n)"
    numbers = f"filter(sequence(0, greatest({size} - 1, 0)), n -> n < {size})"
    pair = f"named_struct('k', {key}, 'v', coalesce({jt.json_string(value)}, 'null'))"
    pairs = f"transform({numbers}, n -> {pair})"
    last = "filter(a, (w, n) -> not exists(slice(a, n + 2, size(a)), o -> o.k = w.k))"
    body = jt.bound(pairs, "a", jt.object_of(last))
    parts = [each for each in (first, second) if each is not None]
    return made(f"if({first.text} is null, null, {body})", JSON, *parts)


FUNCTIONS: dict[str, Function] = {
    "to_jsonb": _to_jsonb,
    "to_json": _to_jsonb,
    "jsonb_build_array": _build_array,
    "json_build_array": _build_array,
    "jsonb_build_object": _build_object,
    "json_build_object": _build_object,
    "jsonb_set": _set,
    "jsonb_insert": _insert,
    "jsonb_object": _object,
}

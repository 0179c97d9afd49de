"""Arrays: subscripts from 1, and functions that Spark names differently."""

from dataclasses import replace

from headwater.model import types
from headwater.model.types import DataType, Kind
from headwater.sql.expression.call import ANY_LIST, Call, Function, pick, simple
from headwater.sql.expression.coercion import become, unify
from headwater.sql.expression.problem import Text
from headwater.sql.expression.typed import Typed, made

INT = types.INTEGER


def array(items: list[Typed], text: Text, node: object) -> Typed:
    """ARRAY[a, b, ...]."""
    values, element = unify(items, text, node, "ARRAY")
    if not items:
        text.mistake("cannot determine type of empty array", node, sqlstate="42P18")
    body = f"array({', '.join(value.text for value in values)})"
    found = made(body, types.list_of(element), *values, nullable=False)
    return replace(found, items=tuple(values))


def element_of(value: Typed, text: Text, node: object) -> DataType:
    """The type of an array's elements."""
    if value.type is None or value.type.kind is not Kind.LIST or value.type.element is None:
        text.mistake("this is not an array", node)
    return value.type.element


def subscript(value: Typed, place: Typed, text: Text, node: object) -> Typed:
    """array[n], null beyond the ends."""
    element = element_of(value, text, node)
    place = become(place, INT, text, node)
    return made(f"get({value.text}, {place.text} - 1)", element, value, place)


def part(value: Typed, low: Typed | None, high: Typed | None, text: Text, node: object) -> Typed:
    """array[low:high]."""
    element_of(value, text, node)
    first = become(low, INT, text, node).text if low else "1"
    last = become(high, INT, text, node).text if high else f"size({value.text})"
    start = f"greatest({first}, 1)"
    body = f"slice({value.text}, {start}, greatest({last} - {start} + 1, 0))"
    parts = [each for each in (value, low, high) if each is not None]
    nulls = " or ".join(f"{each.text} is null" for each in parts)
    return made(f"if({nulls}, null, {body})", value.known, *parts)


def contains(left: Typed, right: Typed, text: Text, node: object) -> Typed:
    """`@>`: every element of the right is in the left; nulls are in nothing."""
    (left, right), _ = unify([left, right], text, node, "@>")
    element_of(left, text, node)
    body = f"forall({right.text}, e -> coalesce(array_contains({left.text}, e), false))"
    return made(f"if({left.text} is null, null, {body})", types.BOOLEAN, left, right)


def overlaps(left: Typed, right: Typed, text: Text, node: object) -> Typed:
    """`&&`: an element is in both."""
    (left, right), _ = unify([left, right], text, node, "&&")
    element_of(left, text, node)
    body = f"coalesce(arrays_overlap({left.text}, {right.text}), false)"
    checked = f"if({left.text} is null or {right.text} is null, null, {body})"
    return made(checked, types.BOOLEAN, left, right)


def join(left: Typed, right: Typed, text: Text, node: object) -> Typed:
    """`||` with an array: two arrays, or an array and an element. A null array adds nothing."""
    if left.known.kind is Kind.LIST:
        right = _other_side(left, right, text, node)
    else:
        left = _other_side(right, left, text, node)
    if left.known.kind is Kind.LIST and right.known.kind is Kind.LIST:
        (left, right), shared = unify([left, right], text, node, "||")
        body = f"coalesce(concat({left.text}, {right.text}), {left.text}, {right.text})"
        return made(body, shared, left, right)
    if left.known.kind is Kind.LIST:
        return _appended(left, right, text, node)
    element = element_of(right, text, node)
    item = become(left, element, text, node)
    return _prepended(item, right)


def _prepended(item: Typed, array_: Typed) -> Typed:
    body = f"concat(array({item.text}), coalesce({array_.text}, array()))"
    return made(body, array_.known, item, array_, nullable=False)


def _appended(left: Typed, right: Typed, text: Text, node: object) -> Typed:
    item = become(right, element_of(left, text, node), text, node)
    body = f"concat(coalesce({left.text}, array()), array({item.text}))"
    return made(body, left.known, left, right, nullable=False)


def _other_side(known: Typed, other: Typed, text: Text, node: object) -> Typed:
    """What stands beside an array without a type of its own is an array too."""
    return become(other, known.known, text, node) if other.type is None else other


def _append(call: Call) -> Typed:
    call.count(2)
    return _appended(call.args[0], call.args[1], call.text, call.node)


def _cat(call: Call) -> Typed:
    call.count(2)
    return join(call.args[0], call.args[1], call.text, call.node)


def _with_element(template: str, result: DataType | None = None) -> Function:
    def function(call: Call) -> Typed:
        call.count(2)
        value = call.args[0]
        item = become(call.args[1], element_of(value, call.text, call.node), call.text, call.node)
        body = template.format(value.text, item.text)
        return made(body, result or value.known, value, item)

    return function


def _prepend(call: Call) -> Typed:
    call.count(2)
    element = element_of(call.args[1], call.text, call.node)
    return _prepended(become(call.args[0], element, call.text, call.node), call.args[1])


def _length(call: Call) -> Typed:
    """The size of one dimension; arrays of arrays have two."""
    call.count(2)
    value, dimension = call.args[0], call.args[1].text
    if not dimension.isdigit():
        call.refuse("the dimension of an array must be a constant")
    element = element_of(value, call.text, call.node)
    inner, body = element, value.text
    for _ in range(int(dimension) - 1):
        if inner.kind is not Kind.LIST or inner.element is None:
            return Typed("cast(null as int)", INT)
        body, inner = f"get({body}, 0)", inner.element
    return made(f"nullif(size({body}), 0)", INT, value)


def _flat(value: Typed) -> str:
    """All elements of an array of arrays."""
    body, element = value.text, value.known.element
    while element is not None and element.kind is Kind.LIST:
        body, element = f"flatten({body})", element.element
    return body


def _cardinality(call: Call) -> Typed:
    call.count(1)
    value = call.args[0]
    element_of(value, call.text, call.node)
    return made(f"if({value.text} is null, null, size({_flat(value)}))", INT, value)


def _dimensions(call: Call) -> int:
    element_of(call.args[0], call.text, call.node)
    depth, type_ = 0, call.args[0].known
    while type_.kind is Kind.LIST and type_.element is not None:
        depth, type_ = depth + 1, type_.element
    return depth


def _ndims(call: Call) -> Typed:
    call.count(1)
    value = call.args[0]
    return made(f"if(size({value.text}) > 0, {_dimensions(call)}, null)", INT, value)


def _dims(call: Call) -> Typed:
    call.count(1)
    value, body, parts = call.args[0], call.args[0].text, []
    for _ in range(_dimensions(call)):
        parts.append(f"'[1:', cast(size({body}) as string), ']'")
        body = f"get({body}, 0)"
    whole = f"if(size({value.text}) > 0, concat({', '.join(parts)}), null)"
    return made(whole, types.VARCHAR, value)


def _lower(call: Call) -> Typed:
    found = _length(call)
    return made(f"if({found.text} is null, null, 1)", INT, found)


def _replace(call: Call) -> Typed:
    call.count(3)
    value = call.args[0]
    element = element_of(value, call.text, call.node)
    old, new = (become(arg, element, call.text, call.node) for arg in call.args[1:])
    body = f"transform({value.text}, e -> if(e <=> {old.text}, {new.text}, e))"
    return made(body, value.known, value, old, new)


def _position(call: Call) -> Typed:
    call.count(2, 3)
    value = call.args[0]
    item = become(call.args[1], element_of(value, call.text, call.node), call.text, call.node)
    start = call.arg(2, INT).text if len(call.args) == 3 else "1"
    found = f"filter(transform({value.text}, (e, i) -> if(e <=> {item.text}, i + 1, null)), "
    body = f"get({found}p -> p >= {start}), 0)"
    return made(body, INT, *call.args)


def _positions(call: Call) -> Typed:
    call.count(2)
    value = call.args[0]
    item = become(call.args[1], element_of(value, call.text, call.node), call.text, call.node)
    places = f"transform({value.text}, (e, i) -> if(e <=> {item.text}, i + 1, null))"
    body = f"filter({places}, p -> p is not null)"
    return made(body, types.list_of(INT), value, item)


def _fill(call: Call) -> Typed:
    call.count(2)
    value, size = call.args[0], call.arg(1, types.list_of(INT))
    if value.type is None or size.items is None or len(size.items) != 1:
        call.refuse("array_fill is supported for one dimension, written as ARRAY[n]")
    return made(
        f"array_repeat({value.text}, {size.items[0].text})", types.list_of(value.type), value, size
    )


def _trim(call: Call) -> Typed:
    call.count(2)
    value, count = call.args[0], call.arg(1, INT)
    element_of(value, call.text, call.node)
    error = "cast(raise_error('number of elements to trim must be between 0 and the size') as {0})"
    wrong = f"{count.text} < 0 or {count.text} > size({value.text})"
    kept = f"slice({value.text}, 1, greatest(size({value.text}) - {count.text}, 0))"
    body = f"if({wrong}, {error.format(value.known.spark)}, {kept})"
    return made(f"if({value.text} is null, null, {body})", value.known, value, count)


def _sorted(call: Call) -> Typed:
    call.count(1)
    element_of(call.args[0], call.text, call.node)
    return made(f"array_sort({call.args[0].text})", call.args[0].known, call.args[0])


def _to_string(call: Call) -> Typed:
    call.count(2, 3)
    from headwater.sql.expression.casting import to_text  # noqa: PLC0415

    value = call.args[0]
    item = to_text(Typed("e", element_of(value, call.text, call.node)), call.text, call.node)
    by = call.arg(1, types.VARCHAR)
    texts = f"transform({value.text}, e -> {item.text})"
    null = f", {call.arg(2, types.VARCHAR).text}" if len(call.args) == 3 else ""
    return made(f"array_join({texts}, {by.text}{null})", types.VARCHAR, value, by)


FUNCTIONS: dict[str, Function] = {
    "array_append": _append,
    "array_cat": _cat,
    "array_length": _length,
    "array_to_string": _to_string,
    "array_prepend": _prepend,
    "array_replace": _replace,
    "array_position": _position,
    "array_positions": _positions,
    "array_ndims": _ndims,
    "array_dims": _dims,
    "array_lower": _lower,
    "array_fill": _fill,
    "trim_array": _trim,
    "array_sort": _sorted,
    "array_reverse": pick((simple((ANY_LIST,), "same", "reverse({0})"),)),
    "cardinality": _cardinality,
    "array_remove": _with_element("filter({0}, e -> not (e <=> {1}))"),
    "array_upper": _length,
}

"""Arrays: subscripts from 1, and functions that Spark names differently."""

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
    return made(body, types.list_of(element), *values, nullable=False)


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
    if left.known.kind is Kind.LIST and right.known.kind is Kind.LIST:
        (left, right), shared = unify([left, right], text, node, "||")
        body = f"coalesce(concat({left.text}, {right.text}), {left.text}, {right.text})"
        return made(body, shared, left, right)
    if left.known.kind is Kind.LIST:
        return _appended(left, right, text, node)
    element = element_of(right, text, node)
    item = become(left, element, text, node)
    body = f"concat(array({item.text}), coalesce({right.text}, array()))"
    return made(body, right.known, left, right, nullable=False)


def _appended(left: Typed, right: Typed, text: Text, node: object) -> Typed:
    item = become(right, element_of(left, text, node), text, node)
    body = f"concat(coalesce({left.text}, array()), array({item.text}))"
    return made(body, left.known, left, right, nullable=False)


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


def _length(call: Call) -> Typed:
    call.count(2)
    if call.args[1].text != "1":
        call.refuse("only the first dimension of an array is supported")
    value = call.args[0]
    element_of(value, call.text, call.node)
    return made(f"nullif(size({value.text}), 0)", INT, value)


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
    "cardinality": pick((simple((ANY_LIST,), INT, "if({0} is null, null, size({0}))"),)),
    "array_position": _with_element("nullif(cast(array_position({0}, {1}) as int), 0)", INT),
    "array_remove": _with_element("filter({0}, e -> not (e <=> {1}))"),
    "array_upper": _length,
}

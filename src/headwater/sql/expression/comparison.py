"""Comparisons, logic and choices.

Spark and PostgreSQL agree on three-valued logic, on NaN (equal to itself, greater than all) and
on text by bytes. What has to be done is to give both sides one type first, and to spell what
Spark does not have: rows, BETWEEN SYMMETRIC, ANY and ALL over arrays, ILIKE with ESCAPE.
"""

from headwater.model import types
from headwater.model.types import DataType, Kind
from headwater.sql.expression.call import Call, Function
from headwater.sql.expression.coercion import become, unify
from headwater.sql.expression.interval_text import parts_of
from headwater.sql.expression.json_text import same_numbers
from headwater.sql.expression.problem import Text
from headwater.sql.expression.typed import Typed, equality_of, made

_NOT_COMPARED = (Kind.JSONB, Kind.STRUCT)


def comparable(left: Typed, right: Typed, text: Text, node: object) -> tuple[Typed, Typed]:
    """Both sides in one type, in a form whose order is PostgreSQL's."""
    (left, right), _ = unify([left, right], text, node, "operator")
    return ordered(left, text, node), ordered(right, text, node)


def ordered(value: Typed, text: Text, node: object) -> Typed:
    """A form of the value that Spark orders and compares as PostgreSQL does."""
    if value.type is None:
        return become(value, types.VARCHAR, text, node)
    if value.type.kind in _NOT_COMPARED:
        text.refuse(f"values of type {value.type.postgres} cannot be compared", node)
    if value.type.kind is Kind.NUMERIC:
        from headwater.sql.expression.coercion import numeric_to_decimal  # noqa: PLC0415

        return numeric_to_decimal(value)
    if value.type.kind is Kind.LIST:
        # A null element comes after all others in PostgreSQL, and before them in Spark.
        body = f"transform({value.text}, e -> struct(e is null as n, e as v))"
        fields = (("n", types.BOOLEAN), ("v", value.type.element or types.VARCHAR))
        inner = DataType(Kind.STRUCT, fields=fields)
        return made(body, types.list_of(inner), value, nullable=value.nullable)
    if value.type.kind is Kind.INTERVAL:
        parts = parts_of(value)
        # PostgreSQL compares intervals with months of 30 days and days of 24 hours.
        span = f"(({parts.months} * 30L + {parts.days}) * 86400000000L + {parts.micros})"
        return made(span, types.BIGINT, value)
    return value


def equal_form(value: Typed, text: Text, node: object) -> Typed:
    """A form of the value that is equal where PostgreSQL's values are; it may have no order."""
    if value.known.kind is Kind.JSONB:
        return _same_json(become(value, types.JSONB, text, node))
    if value.known.kind in (Kind.LIST, Kind.STRUCT):
        return value
    return ordered(value, text, node)


def equated(left: Typed, right: Typed, text: Text, node: object) -> tuple[Typed, Typed]:
    """Both sides in one type, in a form that is equal where PostgreSQL's values are."""
    (one, two), _ = unify([left, right], text, node, "operator")
    return equal_form(one, text, node), equal_form(two, text, node)


def _same_json(value: Typed) -> Typed:
    return made(same_numbers(value.text), types.VARCHAR, value, nullable=value.nullable)


def compare(operator: str, left: Typed, right: Typed, text: Text, node: object) -> Typed:
    """A comparison of two values."""
    pair = equated if operator in ("=", "<>") else comparable
    left, right = pair(left, right, text, node)
    nullable = left.nullable or right.nullable
    if operator == "=":
        return equality_of(left, right, nullable=nullable)
    return made(
        f"({left.text} {operator} {right.text})", types.BOOLEAN, left, right, nullable=nullable
    )


def distinct(left: Typed, right: Typed, text: Text, node: object, *, negated: bool) -> Typed:
    """IS [NOT] DISTINCT FROM."""
    left, right = equated(left, right, text, node)
    same = f"({left.text} <=> {right.text})"
    body = same if negated else f"(not {same})"
    return made(body, types.BOOLEAN, left, right, nullable=False)


def truth(value: Typed, text: Text, node: object) -> Typed:
    """A condition."""
    if value.type is not None and value.type.kind is not Kind.BOOLEAN:
        text.mistake(f"a condition must be boolean, not {value.type.postgres}", node)
    return become(value, types.BOOLEAN, text, node)


def rows(operator: str, left: list[Typed], right: list[Typed], text: Text, node: object) -> Typed:
    """A comparison of rows, by PostgreSQL's rules for nulls."""
    if len(left) != len(right):
        text.mistake("unequal number of entries in row expressions", node, sqlstate="42601")
    pairs = [comparable(one, other, text, node) for one, other in zip(left, right, strict=True)]
    parts = [part for pair in pairs for part in pair]
    if operator in ("=", "<>"):
        equal = " and ".join(f"({one.text} = {other.text})" for one, other in pairs)
        body = f"({equal})" if operator == "=" else f"(not ({equal}))"
        return made(body, types.BOOLEAN, *parts)
    strict = operator.rstrip("=")
    one, other = pairs[-1]
    body = f"({one.text} {operator} {other.text})"
    for one, other in reversed(pairs[:-1]):
        # The first pair that differs decides; a null there gives null.
        body = (
            f"(case when {one.text} is null or {other.text} is null then null "
            f"when {one.text} = {other.text} then {body} "
            f"else ({one.text} {strict} {other.text}) end)"
        )
    return made(body, types.BOOLEAN, *parts)


def in_list(value: Typed, items: list[Typed], text: Text, node: object) -> Typed:
    """Value IN (a, b, ...)."""
    values, _ = unify([value, *items], text, node, "IN")
    first, *rest = [ordered(each, text, node) for each in values]
    body = f"({first.text} in ({', '.join(each.text for each in rest)}))"
    nullable = any(each.nullable for each in values)
    return made(body, types.BOOLEAN, first, *rest, nullable=nullable)


def quantified(  # noqa: PLR0913
    operator: str, value: Typed, array: Typed, text: Text, node: object, *, every: bool
) -> Typed:
    """Value op ANY (array) and value op ALL (array)."""
    if array.type is None:
        array = become(array, types.list_of(value.known), text, node)
    if array.type is None or array.type.kind is not Kind.LIST or array.type.element is None:
        text.mistake("op ANY/ALL (array) requires array on right side", node, sqlstate="42809")
    one = Typed("e", array.type.element)
    compared = compare(operator, value, one, text, node)
    hold = "forall" if every else "exists"
    return made(f"{hold}({array.text}, e -> {compared.text})", types.BOOLEAN, value, array)


def like(  # noqa: PLR0913
    value: Typed, pattern: Typed, escape: str | None, text: Text, node: object, *, fold: bool
) -> Typed:
    r"""LIKE and ILIKE; `\` escapes unless ESCAPE says otherwise, and ESCAPE '' is refused."""
    value = become(value, types.VARCHAR, text, node)
    pattern = become(pattern, types.VARCHAR, text, node)
    if escape is not None and len(escape) != 1:
        text.refuse("ESCAPE must be one character", node)
    suffix = ""
    if escape is not None and escape != "\\":
        from headwater.sql.expression.typed import string_literal  # noqa: PLC0415

        suffix = f" escape {string_literal(escape)}"
    word = "ilike" if fold else "like"
    return made(
        f"({value.text} {word} {pattern.text}{suffix})",
        types.BOOLEAN,
        value,
        pattern,
        nullable=value.nullable or pattern.nullable,
    )


def case(branches: list[tuple[Typed, Typed]], otherwise: Typed, text: Text, node: object) -> Typed:
    """CASE WHEN ... END, all results in one type."""
    values, shared = unify([*(result for _, result in branches), otherwise], text, node, "CASE")
    whens = " ".join(
        f"when {condition.text} then {value.text}"
        for (condition, _), value in zip(branches, values, strict=False)
    )
    parts = [*(condition for condition, _ in branches), *values]
    nullable = any(value.nullable for value in values)
    return made(f"(case {whens} else {values[-1].text} end)", shared, *parts, nullable=nullable)


def _coalesce(call: Call) -> Typed:
    if not call.args:
        call.no_such()
    values, shared = unify(list(call.args), call.text, call.node, "COALESCE")
    body = f"coalesce({', '.join(value.text for value in values)})"
    return made(body, shared, *values, nullable=all(value.nullable for value in values))


def _extreme(spark: str) -> Function:
    def function(call: Call) -> Typed:
        if not call.args:
            call.no_such()
        values, shared = unify(list(call.args), call.text, call.node, call.name.upper())
        if shared.kind in _NOT_COMPARED:
            call.refuse(f"{call.name} of {shared.postgres} is not supported")
        if len(values) == 1:
            return values[0]
        if shared.kind in (Kind.INTERVAL, Kind.NUMERIC, Kind.LIST):
            return _extreme_by_form(spark, values, shared, call)
        body = f"{spark}({', '.join(value.text for value in values)})"
        return made(body, shared, *values)

    return function


def _extreme_by_form(spark: str, values: list[Typed], shared: DataType, call: Call) -> Typed:
    """Of values whose order is that of another form."""
    pairs = []
    for value in values:
        form = ordered(value, call.text, call.node)
        pairs.append(f"if({value.text} is null, null, struct({form.text} as o, {value.text} as v))")
    return made(f"{spark}({', '.join(pairs)}).v", shared, *values)


def _nullif(call: Call) -> Typed:
    call.count(2)
    left, right = call.args
    if left.type is None:
        left = become(left, types.VARCHAR, call.text, call.node)
    same = compare("=", left, right, call.text, call.node)
    return made(f"if({same.text}, null, {left.text})", left.known, left, right)


FUNCTIONS: dict[str, Function] = {
    "coalesce": _coalesce,
    "greatest": _extreme("greatest"),
    "least": _extreme("least"),
    "nullif": _nullif,
}

"""Rules for operators, predicates and calls with a syntax of their own."""

from collections.abc import Callable
from typing import Any

from sqlglot import exp

from headwater.model import types
from headwater.model.types import DataType, Kind
from headwater.sql.expression import (
    arithmetic,
    arrays,
    comparison,
    dates,
    json_values,
    strings,
    text_functions,
    time_functions,
)
from headwater.sql.expression.call import Call
from headwater.sql.expression.coercion import INTEGERS, become
from headwater.sql.expression.problem import Text
from headwater.sql.expression.translator import Rule, Translator, function_name
from headwater.sql.expression.typed import NULL, Typed, integer, made, string_literal


def add_rule(t: Translator, node: Any) -> Typed:
    """A + b, of numbers or times."""
    left, right = t(node.this), t(node.expression)
    if dates.concerns_time(left, right):
        return dates.add_time(left, right, t.text, node)
    return arithmetic.add("+", left, right, t.text, node)


def subtract_rule(t: Translator, node: Any) -> Typed:
    """A - b, of numbers or times."""
    left, right = t(node.this), t(node.expression)
    if json_values.is_json(left):
        return json_values.remove(left, right, t.text, node)
    if dates.concerns_time(left, right):
        return dates.subtract_time(left, right, t.text, node)
    return arithmetic.add("-", left, right, t.text, node)


def multiply_rule(t: Translator, node: Any) -> Typed:
    """A * b, of numbers or an interval."""
    left, right = t(node.this), t(node.expression)
    for value, factor in ((left, right), (right, left)):
        if value.known.kind is Kind.INTERVAL:
            return dates.scale_interval(value, factor, t.text, node)
    return arithmetic.multiply(left, right, t.text, node)


def divide_rule(t: Translator, node: Any) -> Typed:
    """A / b, of numbers or an interval by a number."""
    left, right = t(node.this), t(node.expression)
    if left.known.kind is Kind.INTERVAL:
        return dates.divide_interval(left, right, t.text, node)
    return arithmetic.divide(left, right, t.text, node)


def overlaps_rule(t: Translator, node: Any) -> Typed:
    """(a, b) OVERLAPS (c, d)."""
    left, right = _row_items(node.this), _row_items(node.expression)
    if left is None or right is None or len(left) != 2 or len(right) != 2:
        t.text.mistake("OVERLAPS needs two pairs", node, sqlstate="42601")
    call = Call("overlaps", (), node, t.text)
    return time_functions.overlaps(t.all(left), t.all(right), call)


def negate_rule(t: Translator, node: Any) -> Typed:
    """Minus a number or an interval."""
    if isinstance(node.this, exp.Literal) and not node.this.args.get("is_string"):
        digits = str(node.this.this)
        if digits.isdigit():
            return integer(-int(digits))
    value = t(node.this)
    if value.known.kind is Kind.INTERVAL:
        return dates.negate_interval(value)
    return arithmetic.negate(value, t.text, node)


def two_rule(function: Callable[[Typed, Typed, Text, object], Typed]) -> Rule:
    """A rule for two operands."""
    return lambda t, node: function(t(node.this), t(node.expression), t.text, node)


def bits_rule(operator: str) -> Rule:
    """A rule for bits of integers."""
    return lambda t, node: arithmetic.bitwise(
        operator, t(node.this), t(node.expression), t.text, node
    )


def shift_rule(function: str) -> Rule:
    """A rule for shifts of bits."""

    def rule(t: Translator, node: Any) -> Typed:
        value, by = t(node.this), become(t(node.expression), types.INTEGER, t.text, node)
        if value.known.kind not in (Kind.INTEGER, Kind.BIGINT):
            t.text.refuse("shifts are supported for integer and bigint only", node)
        return made(f"{function}({value.text}, {by.text})", value.known, value, by)

    return rule


def _row_items(node: Any) -> list[exp.Expr] | None:
    if isinstance(node, exp.Paren):
        return _row_items(node.this)
    if isinstance(node, exp.Tuple):
        return list(node.expressions)
    if isinstance(node, exp.Anonymous) and function_name(node) == "row":
        return list(node.expressions)
    return None


def compare_rule(operator: str) -> Rule:
    """A rule for a comparison, of values, rows, or with ANY and ALL."""

    def rule(t: Translator, node: Any) -> Typed:
        left, right = _row_items(node.this), _row_items(node.expression)
        if left is not None and right is not None:
            return comparison.rows(operator, t.all(left), t.all(right), t.text, node)
        quantifier = node.expression
        if isinstance(quantifier, exp.Any | exp.All):
            inner = quantifier.this
            every = isinstance(quantifier, exp.All)
            return comparison.quantified(
                operator, t(node.this), t(inner), t.text, node, every=every
            )
        if isinstance(quantifier, exp.Anonymous) and function_name(quantifier) in ("all", "some"):
            every = function_name(quantifier) == "all"
            return comparison.quantified(
                operator, t(node.this), t(quantifier.expressions[0]), t.text, node, every=every
            )
        return comparison.compare(operator, t(node.this), t(node.expression), t.text, node)

    return rule


def distinct_rule(*, negated: bool) -> Rule:
    """A rule for IS [NOT] DISTINCT FROM, of values or rows."""

    def rule(t: Translator, node: Any) -> Typed:
        left, right = _row_items(node.this), _row_items(node.expression)
        if left is None or right is None:
            return comparison.distinct(
                t(node.this), t(node.expression), t.text, node, negated=negated
            )
        if len(left) != len(right):
            t.text.mistake("unequal number of entries in row expressions", node, sqlstate="42601")
        parts = [
            comparison.distinct(t(one), t(two), t.text, node, negated=True)
            for one, two in zip(left, right, strict=True)
        ]
        same = f"({' and '.join(part.text for part in parts)})"
        body = same if negated else f"(not {same})"
        return made(body, types.BOOLEAN, *parts, nullable=False)

    return rule


def root_rule(function: str) -> Rule:
    """A rule for |/ and ||/, which are about doubles."""

    def rule(t: Translator, node: Any) -> Typed:
        value = become(t(node.this), types.DOUBLE, t.text, node)
        error = "cast(raise_error('cannot take square root of a negative number') as double)"
        body = f"{function}({value.text})"
        if function == "sqrt":
            body = f"if({value.text} < 0, {error}, {body})"
        return made(body, types.DOUBLE, value)

    return rule


def digits_rule(base: int) -> Rule:
    """A rule for 0x1F and 0b101; bit strings like x'1F' look the same to the grammar."""

    def rule(t: Translator, node: Any) -> Typed:
        at = node.meta.get("start")
        if at is not None and t.text.text[at : at + 1] != "0":
            t.text.refuse("bit strings are not supported", node)
        return integer(int(node.this, base))

    return rule


def logic_rule(operator: str) -> Rule:
    """A rule for AND and OR."""

    def rule(t: Translator, node: Any) -> Typed:
        # Long chains are flat in SQL and deep in the tree: walk down the left side.
        items, kind = [], type(node)
        while isinstance(node, kind):
            items.append(node.expression)
            node = node.this
        items.append(node)
        parts = [t.condition(item) for item in reversed(items)]
        body = f" {operator} ".join(part.text for part in parts)
        nullable = any(part.nullable for part in parts)
        return made(f"({body})", types.BOOLEAN, *parts, nullable=nullable)

    return rule


def not_rule(t: Translator, node: Any) -> Typed:
    """NOT a."""
    inner = node.this
    if isinstance(inner, exp.Is) and isinstance(inner.expression, exp.Null):
        row = _row_items(inner.this)
        if row is not None:
            # A row IS NOT NULL when no part is; it is not the opposite of IS NULL.
            parts = t.all(row)
            body = " and ".join(f"{part.text} is not null" for part in parts)
            return made(f"({body})", types.BOOLEAN, *parts, nullable=False)
    value = t.condition(node.this)
    return made(f"(not {value.text})", types.BOOLEAN, value, nullable=value.nullable)


def is_rule(t: Translator, node: Any) -> Typed:
    """A IS NULL, TRUE or FALSE."""
    against = node.expression
    row = _row_items(node.this)
    if row is not None and isinstance(against, exp.Null):
        parts = t.all(row)
        body = " and ".join(f"{part.text} is null" for part in parts)
        return made(f"({body})", types.BOOLEAN, *parts, nullable=False)
    value = t(node.this)
    if isinstance(against, exp.Null):
        return made(f"({value.text} is null)", types.BOOLEAN, value, nullable=False)
    if isinstance(against, exp.Boolean):
        value = comparison.truth(value, t.text, node)
        wanted = "true" if against.this else "false"
        return made(f"({value.text} <=> {wanted})", types.BOOLEAN, value, nullable=False)
    t.text.refuse(f"IS {against.sql('postgres')} is not supported", node)


def between_rule(t: Translator, node: Any) -> Typed:
    """A BETWEEN b AND c."""
    value, low, high = t(node.this), t(node.args["low"]), t(node.args["high"])

    def inside(first: Typed, last: Typed) -> str:
        above = comparison.compare(">=", value, first, t.text, node)
        below = comparison.compare("<=", value, last, t.text, node)
        return f"({above.text} and {below.text})"

    body = inside(low, high)
    if node.args.get("symmetric"):
        body = f"({body} or {inside(high, low)})"
    return made(body, types.BOOLEAN, value, low, high)


def in_rule(t: Translator, node: Any) -> Typed:
    """A IN (b, c)."""
    row = _row_items(node.this)
    if row is not None:
        value = t.all(row)
        parts = []
        for item in node.expressions:
            items = _row_items(item)
            if items is None:
                t.text.refuse("a row can only be IN a list of rows", node)
            parts.append(comparison.rows("=", value, t.all(items), t.text, node))
        body = " or ".join(part.text for part in parts)
        return made(f"({body})", types.BOOLEAN, *parts)
    return comparison.in_list(t(node.this), t.all(node.expressions), t.text, node)


def like_rule(*, fold: bool) -> Rule:
    """A rule for LIKE and ILIKE."""

    def rule(t: Translator, node: Any, escape: str | None = None) -> Typed:
        if isinstance(node.expression, exp.Any | exp.All):
            return _like_each(t, node, fold=fold)
        found = comparison.like(t(node.this), t(node.expression), escape, t.text, node, fold=fold)
        return _negated(found) if node.args.get("negate") else found

    return rule


def _like_each(t: Translator, node: Any, *, fold: bool) -> Typed:
    """LIKE ANY (array) and LIKE ALL (array)."""
    value, array = t(node.this), t(node.expression.this)
    if array.type is None:
        array = become(array, types.list_of(types.VARCHAR), t.text, node)
    arrays.element_of(array, t.text, node)
    one = comparison.like(value, Typed("e", types.VARCHAR), None, t.text, node, fold=fold)
    one = _negated(one) if node.args.get("negate") else one
    hold = "forall" if isinstance(node.expression, exp.All) else "exists"
    return made(f"{hold}({array.text}, e -> {one.text})", types.BOOLEAN, value, array)


def starts_rule(t: Translator, node: Any) -> Typed:
    """Text ^@ prefix."""
    value, prefix = (
        become(t(each), types.VARCHAR, t.text, node) for each in (node.this, node.expression)
    )
    return made(f"startswith({value.text}, {prefix.text})", types.BOOLEAN, value, prefix)


def _negated(value: Typed) -> Typed:
    return made(f"(not {value.text})", types.BOOLEAN, value, nullable=value.nullable)


def escape_rule(t: Translator, node: Any) -> Typed:
    """LIKE with ESCAPE."""
    inner = node.this
    if isinstance(inner, exp.SimilarTo) and isinstance(node.expression, exp.Literal):
        sign = str(node.expression.this)
        return text_functions.similar_to(t(inner.this), t(inner.expression), sign, t.text, node)
    if not isinstance(inner, exp.Like | exp.ILike) or not isinstance(node.expression, exp.Literal):
        t.text.refuse("ESCAPE must be a constant after LIKE or ILIKE", node)
    found = comparison.like(
        t(inner.this), t(inner.expression), str(node.expression.this), t.text, node,
        fold=isinstance(inner, exp.ILike),
    )  # fmt: skip
    return _negated(found) if inner.args.get("negate") else found


def case_rule(t: Translator, node: Any) -> Typed:
    """CASE of both forms."""
    subject = node.args.get("this")
    branches = []
    for branch in node.args["ifs"]:
        if subject is None:
            condition = t.condition(branch.this)
        else:
            condition = comparison.compare("=", t(subject), t(branch.this), t.text, branch)
        branches.append((condition, t(branch.args["true"])))
    default = node.args.get("default")
    return comparison.case(branches, t(default) if default is not None else NULL, t.text, node)


def pipe_rule(t: Translator, node: Any) -> Typed:
    """A || b, of texts or arrays."""
    left, right = t(node.this), t(node.expression)
    if json_values.is_json(left) or json_values.is_json(right):
        return json_values.joined(left, right, t.text, node)
    if Kind.LIST in (left.known.kind, right.known.kind):
        return arrays.join(left, right, t.text, node)
    return strings.concatenate(left, right, t.text, node)


def substring_rule(t: Translator, node: Any) -> Typed:
    """SUBSTRING(a FROM b FOR c)."""
    length = node.args.get("length")
    return strings.substring(
        t(node.this),
        t(node.args["start"]),
        t(length) if length is not None else None,
        t.text,
        node,
    )


def trim_rule(t: Translator, node: Any) -> Typed:
    """TRIM of both forms."""
    characters = node.args.get("expression")
    return strings.trim(
        t(node.this),
        t(characters) if characters is not None else None,
        node.args.get("position") or "BOTH",
        t.text,
        node,
    )


def overlay_rule(t: Translator, node: Any) -> Typed:
    """OVERLAY(a PLACING b FROM c FOR d)."""
    value, new = (become(t(each), types.VARCHAR, t.text, node) for each in
                  (node.this, node.expression))  # fmt: skip
    start = become(t(node.args["from_"]), types.INTEGER, t.text, node)
    size = node.args.get("for_")
    length = (
        become(t(size), types.INTEGER, t.text, node).text
        if size is not None
        else f"char_length({new.text})"
    )
    before = f"substring({value.text}, 1, greatest({start.text} - 1, 0))"
    after = f"substring({value.text}, greatest({start.text} + {length}, 1))"
    error = "cast(raise_error('negative substring length not allowed') as string)"
    body = f"if({start.text} < 1, {error}, concat({before}, {new.text}, {after}))"
    return made(body, types.VARCHAR, value, new, start)


def bracket_rule(t: Translator, node: Any) -> Typed:
    """array[n] and array[low:high]."""
    value = t(node.this)
    if value.known.kind is Kind.JSONB:
        return json_values.extract_rule(t, node)
    (place,) = node.expressions
    if isinstance(place, exp.Slice):
        low, high = place.args.get("this"), place.args.get("expression")
        return arrays.part(
            value,
            t(low) if low is not None else None,
            t(high) if high is not None else None,
            t.text,
            node,
        )
    return arrays.subscript(value, t(place), t.text, node)


def field_rule(t: Translator, node: Any) -> Typed:
    """(struct).field."""
    value = t(node.this)
    name = node.expression.name
    for field, type_ in value.known.fields:
        if field == name.lower() or field == name:
            return made(f"{value.text}.`{field}`", type_, value)
    t.text.mistake(f'there is no field "{name}"', node, sqlstate="42703")


def contains_rule(t: Translator, node: Any) -> Typed:
    """A @> b and a <@ b, of arrays or jsonb."""
    whole, part = t(node.this), t(node.expression)
    if isinstance(node, exp.ArrayContainedBy):
        whole, part = part, whole
    if json_values.is_json(whole) or json_values.is_json(part):
        return json_values.contains(whole, part, t.text, node)
    return arrays.contains(whole, part, t.text, node)


def clock_rule(body: str, type_: DataType) -> Rule:
    """A rule for a function of the clock."""

    def rule(t: Translator, node: Any) -> Typed:
        t.around.impure(body.split("(", maxsplit=1)[0], node)
        return Typed(body, type_, nullable=False)

    return rule


def column_rule(t: Translator, node: Any) -> Typed:
    """A column."""
    return t.around.column(node)


def boolean_rule(t: Translator, node: Any) -> Typed:
    """TRUE and FALSE."""
    return Typed("true" if node.this else "false", types.BOOLEAN, nullable=False)


def bytes_rule(t: Translator, node: Any) -> Typed:
    """E'...'."""
    # sqlglot calls E'...' a byte string; its escapes are resolved already.
    return Typed(string_literal(node.this), None, literal=node.this, nullable=False)


def collate_rule(t: Translator, node: Any) -> Typed:
    """A COLLATE "C"."""
    if node.expression.name not in ("C", "POSIX", "default", "ucs_basic"):
        t.text.refuse('only the collation "C" is supported', node)
    return t(node.this)


def not_bits_rule(t: Translator, node: Any) -> Typed:
    """~a."""
    value = t(node.this)
    if value.known.kind not in INTEGERS:
        t.text.mistake("~ needs an integer", node)
    return made(f"(~ {value.text})", value.known, value)


def modulo_rule(t: Translator, node: Any) -> Typed:
    """A % b."""
    return arithmetic.remainder(t(node.this), t(node.expression), t.text, node)


def parameter_rule(t: Translator, node: Any) -> Typed:
    """$n."""
    return t.around.parameter(int(node.this.this), node)

"""From sqlglot's tree to Spark SQL, node by node.

The translator knows the meaning of expressions; names, aggregates, windows and subqueries belong
to the query around it, which answers through `Surroundings`. A node without a line in the table
below is refused, so nothing is ever handed to Spark as it stands.
"""

from collections.abc import Callable
from typing import Any, Protocol

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
)
from headwater.sql.expression.call import Call, Function
from headwater.sql.expression.casting import cast
from headwater.sql.expression.coercion import (
    DECIMALS,
    FLOATS,
    INTEGERS,
    as_decimal_type,
    become,
    converted,
    number,
)
from headwater.sql.expression.interval_text import interval_of
from headwater.sql.expression.literals import literal_as
from headwater.sql.expression.problem import Text
from headwater.sql.expression.typed import (
    NULL,
    Typed,
    integer,
    made,
    string_literal,
)
from headwater.sql.expression.written_types import written_type


class Surroundings(Protocol):
    """What the query around an expression knows."""

    def column(self, node: exp.Column) -> Typed:
        """The column that a name means."""
        ...

    def instead(self, node: exp.Expr) -> Typed | None:
        """What stands for a whole node: an aggregate's result, a subquery's value, a group."""
        ...

    def impure(self, name: str, node: exp.Expr) -> None:
        """Asked before a function whose value depends on when it is called."""
        ...

    def parameter(self, number: int, node: exp.Expr) -> Typed:
        """The value of `$n`."""
        ...


class Translator:
    """Translates the expressions of one query."""

    def __init__(self, text: Text, around: Surroundings) -> None:
        self.text = text
        self.around = around

    def __call__(self, node: exp.Expr) -> Typed:
        """The Spark text, type and columns of an expression."""
        found = self.around.instead(node)
        if found is not None:
            return found
        rule = _NODES.get(type(node))
        if rule is None:
            self.text.refuse(f"{node.sql('postgres')[:60]} is not supported", node)
        # A part of the syntax that the rule does not look at must not be dropped.
        for name, part in node.args.items():
            if part and name not in _READ and (type(node), name) not in _READ_BY:
                self.text.refuse(f"{node.sql('postgres')[:60]} is not supported", node)
        return rule(self, node)

    def condition(self, node: exp.Expr) -> Typed:
        """A boolean expression."""
        return comparison.truth(self(node), self.text, node)

    def all(self, nodes: list[exp.Expr]) -> list[Typed]:
        """Several expressions."""
        return [self(node) for node in nodes]


def function_name(node: exp.Anonymous) -> str:
    """The name of a call, folded."""
    name = node.this
    return str(name.this) if isinstance(name, exp.Identifier) else str(name).lower()


_FUNCTIONS: dict[str, Function] = {
    **arithmetic.FUNCTIONS,
    **comparison.FUNCTIONS,
    **strings.FUNCTIONS,
    **dates.FUNCTIONS,
    **arrays.FUNCTIONS,
    **json_values.FUNCTIONS,
}
_CLOCKS = {
    "now": ("current_timestamp()", types.TIMESTAMPTZ),
    "transaction_timestamp": ("current_timestamp()", types.TIMESTAMPTZ),
    "statement_timestamp": ("current_timestamp()", types.TIMESTAMPTZ),
    "proctime": ("current_timestamp()", types.TIMESTAMPTZ),
    "random": ("rand()", types.DOUBLE),
    "gen_random_uuid": ("uuid()", types.UUID),
}


def known_functions() -> list[str]:
    """The names of all scalar functions."""
    return sorted((*_FUNCTIONS, *_CLOCKS))


def _call(t: Translator, node: Any) -> Typed:
    name = function_name(node)
    if name in _CLOCKS:
        t.around.impure(name, node)
        body, type_ = _CLOCKS[name]
        return Typed(body, type_, nullable=False)
    if name in ("row",):
        t.text.refuse("a row value can only be compared with another row", node)
    function = _FUNCTIONS.get(name)
    if function is None:
        import difflib  # noqa: PLC0415

        close = difflib.get_close_matches(name, known_functions(), 1)
        hint = f"Did you mean {close[0]}?" if close else ""
        t.text.mistake(
            f"function {name} does not exist or is not supported", node, hint=hint,
            sqlstate="42883",
        )
    args = tuple(t.all(node.expressions))
    return function(Call(name, args, node, t.text))


def _literal(t: Translator, node: Any) -> Typed:
    if node.args.get("is_string"):
        return Typed(string_literal(node.this), None, literal=node.this, nullable=False)
    digits = str(node.this).replace("_", "")
    if digits.isdigit():
        return integer(int(digits))
    return _decimal_literal(t, node, digits)


def _decimal_literal(t: Translator, node: Any, digits: str) -> Typed:
    from decimal import Decimal, InvalidOperation  # noqa: PLC0415

    try:
        value = Decimal(digits)
    except InvalidOperation:
        t.text.refuse(f"the number {digits} is not supported", node)
    exponent = value.as_tuple().exponent
    scale = max(0, -exponent) if isinstance(exponent, int) else 0
    precision = max(len(f"{value:f}".replace(".", "").lstrip("0")), scale, 1)
    if precision > types.MAX_PRECISION:
        t.text.refuse("a number of more than 38 digits is not supported", node)
    type_ = types.decimal(precision, scale)
    return Typed(f"cast('{value:f}' as {type_.spark})", type_, nullable=False)


def _cast(t: Translator, node: Any) -> Typed:
    target, length = written_type(node.args["to"], t.text)
    inner = node.this
    if isinstance(inner, exp.Literal) and not inner.args.get("is_string") and (
        target.kind in FLOATS
    ):
        return literal_as(str(inner.this), target, t.text, node)
    value = t(inner)
    if target.kind is Kind.NUMERIC:
        return _to_numeric(t, value, node)
    return cast(value, target, t.text, node, length=length)


def _to_numeric(t: Translator, value: Typed, node: Any) -> Typed:
    """A plain ::numeric keeps what is exact already."""
    if value.type is None and value.literal is not None:
        return _decimal_literal(t, node, value.literal.strip())
    if value.type is not None and value.type.kind in (*INTEGERS, *DECIMALS):
        value = number(value, t.text, node)
        return converted(value, as_decimal_type(value.known))
    return cast(value, types.decimal(38, 18), t.text, node)


def _interval(t: Translator, node: Any) -> Typed:
    unit = node.args.get("unit")
    value = node.this
    if not isinstance(value, exp.Literal):
        t.text.refuse("an interval must be a constant", node)
    try:
        return interval_of(str(value.this), unit.name if unit is not None else None)
    except ValueError:
        t.text.mistake(
            f'invalid input syntax for type interval: "{value.this}"', node, sqlstate="22007"
        )


def _add(t: Translator, node: Any) -> Typed:
    left, right = t(node.this), t(node.expression)
    if dates.concerns_time(left, right):
        return dates.add_time(left, right, t.text, node)
    return arithmetic.add("+", left, right, t.text, node)


def _subtract(t: Translator, node: Any) -> Typed:
    left, right = t(node.this), t(node.expression)
    if dates.concerns_time(left, right):
        return dates.subtract_time(left, right, t.text, node)
    return arithmetic.add("-", left, right, t.text, node)


def _multiply(t: Translator, node: Any) -> Typed:
    left, right = t(node.this), t(node.expression)
    for value, factor in ((left, right), (right, left)):
        if value.known.kind is Kind.INTERVAL:
            return dates.scale_interval(value, factor, t.text, node)
    return arithmetic.multiply(left, right, t.text, node)


def _negate(t: Translator, node: Any) -> Typed:
    if isinstance(node.this, exp.Literal) and not node.this.args.get("is_string"):
        digits = str(node.this.this)
        if digits.isdigit():
            return integer(-int(digits))
    value = t(node.this)
    if value.known.kind is Kind.INTERVAL:
        return dates.negate_interval(value)
    return arithmetic.negate(value, t.text, node)


def _two(function: Callable[[Typed, Typed, Text, object], Typed]) -> "Rule":
    return lambda t, node: function(t(node.this), t(node.expression), t.text, node)


def _bits(operator: str) -> "Rule":
    return lambda t, node: arithmetic.bitwise(
        operator, t(node.this), t(node.expression), t.text, node
    )


def _shift(function: str) -> "Rule":
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


def _compare(operator: str) -> "Rule":
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


def _logic(operator: str) -> "Rule":
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


def _not(t: Translator, node: Any) -> Typed:
    value = t.condition(node.this)
    return made(f"(not {value.text})", types.BOOLEAN, value, nullable=value.nullable)


def _is(t: Translator, node: Any) -> Typed:
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


def _between(t: Translator, node: Any) -> Typed:
    value, low, high = t(node.this), t(node.args["low"]), t(node.args["high"])

    def inside(first: Typed, last: Typed) -> str:
        above = comparison.compare(">=", value, first, t.text, node)
        below = comparison.compare("<=", value, last, t.text, node)
        return f"({above.text} and {below.text})"

    body = inside(low, high)
    if node.args.get("symmetric"):
        body = f"({body} or {inside(high, low)})"
    return made(body, types.BOOLEAN, value, low, high)


def _in(t: Translator, node: Any) -> Typed:
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


def _like(*, fold: bool) -> "Rule":
    def rule(t: Translator, node: Any, escape: str | None = None) -> Typed:
        if isinstance(node.expression, exp.Any | exp.All):
            t.text.refuse("LIKE ANY and LIKE ALL are not supported", node)
        found = comparison.like(t(node.this), t(node.expression), escape, t.text, node, fold=fold)
        return _negated(found) if node.args.get("negate") else found

    return rule


def _negated(value: Typed) -> Typed:
    return made(f"(not {value.text})", types.BOOLEAN, value, nullable=value.nullable)


def _escape(t: Translator, node: Any) -> Typed:
    inner = node.this
    if not isinstance(inner, exp.Like | exp.ILike) or not isinstance(node.expression, exp.Literal):
        t.text.refuse("ESCAPE must be a constant after LIKE or ILIKE", node)
    found = comparison.like(
        t(inner.this), t(inner.expression), str(node.expression.this), t.text, node,
        fold=isinstance(inner, exp.ILike),
    )  # fmt: skip
    return _negated(found) if inner.args.get("negate") else found


def _case(t: Translator, node: Any) -> Typed:
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


def _pipe(t: Translator, node: Any) -> Typed:
    left, right = t(node.this), t(node.expression)
    if Kind.LIST in (left.known.kind, right.known.kind):
        return arrays.join(left, right, t.text, node)
    return strings.concatenate(left, right, t.text, node)


def _substring(t: Translator, node: Any) -> Typed:
    length = node.args.get("length")
    return strings.substring(
        t(node.this), t(node.args["start"]), t(length) if length is not None else None,
        t.text, node,
    )


def _trim(t: Translator, node: Any) -> Typed:
    characters = node.args.get("expression")
    return strings.trim(
        t(node.this), t(characters) if characters is not None else None,
        node.args.get("position") or "BOTH", t.text, node,
    )


def _overlay(t: Translator, node: Any) -> Typed:
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


def _bracket(t: Translator, node: Any) -> Typed:
    value = t(node.this)
    (place,) = node.expressions
    if isinstance(place, exp.Slice):
        low, high = place.args.get("this"), place.args.get("expression")
        return arrays.part(
            value, t(low) if low is not None else None, t(high) if high is not None else None,
            t.text, node,
        )
    return arrays.subscript(value, t(place), t.text, node)


def _field(t: Translator, node: Any) -> Typed:
    value = t(node.this)
    name = node.expression.name
    for field, type_ in value.known.fields:
        if field == name.lower() or field == name:
            return made(f"{value.text}.`{field}`", type_, value)
    t.text.mistake(f'there is no field "{name}"', node, sqlstate="42703")


def _json_text(t: Translator, node: Any) -> Typed:
    steps = [json_values.path_step(t(node.expression), t.text, node)]
    inner = node.this
    while isinstance(inner, exp.JSONExtract | exp.Paren):
        if isinstance(inner, exp.JSONExtract):
            steps.insert(0, json_values.path_step(t(inner.expression), t.text, inner))
        inner = inner.this
    return json_values.extract_text(t(inner), steps, t.text, node)


def _clock(body: str, type_: DataType) -> "Rule":
    def rule(t: Translator, node: Any) -> Typed:
        t.around.impure(body.split("(")[0], node)
        return Typed(body, type_, nullable=False)

    return rule


def _column(t: Translator, node: Any) -> Typed:
    return t.around.column(node)


def _boolean(t: Translator, node: Any) -> Typed:
    return Typed("true" if node.this else "false", types.BOOLEAN, nullable=False)


def _bytes(t: Translator, node: Any) -> Typed:
    # sqlglot calls E'...' a byte string; its escapes are resolved already.
    return Typed(string_literal(node.this), None, literal=node.this, nullable=False)


def _collate(t: Translator, node: Any) -> Typed:
    if node.expression.name not in ("C", "POSIX", "default", "ucs_basic"):
        t.text.refuse("only the collation \"C\" is supported", node)
    return t(node.this)


def _not_bits(t: Translator, node: Any) -> Typed:
    value = t(node.this)
    if value.known.kind not in INTEGERS:
        t.text.mistake("~ needs an integer", node)
    return made(f"(~ {value.text})", value.known, value)


def _modulo(t: Translator, node: Any) -> Typed:
    return arithmetic.remainder(t(node.this), t(node.expression), t.text, node)


def _parameter(t: Translator, node: Any) -> Typed:
    return t.around.parameter(int(node.this.this), node)


Rule = Callable[[Translator, Any], Typed]

_READ = frozenset({"this", "expression", "expressions"})
_READ_BY = {
    (exp.Column, "table"), (exp.Column, "db"), (exp.Column, "catalog"),
    (exp.Literal, "is_string"), (exp.Alias, "alias"), (exp.Cast, "to"), (exp.Cast, "_type"),
    (exp.Div, "typed"), (exp.DPipe, "safe"), (exp.Between, "low"), (exp.Between, "high"),
    (exp.Between, "symmetric"), (exp.Like, "negate"), (exp.ILike, "negate"), (exp.Case, "ifs"),
    (exp.Case, "default"), (exp.Substring, "start"), (exp.Substring, "length"),
    (exp.Trim, "position"), (exp.StrPosition, "substr"), (exp.Overlay, "from_"),
    (exp.Overlay, "for_"), (exp.AtTimeZone, "zone"), (exp.Interval, "unit"),
    (exp.Bracket, "offset"),
}  # fmt: skip

_NODES: dict[type[exp.Expr], Rule] = {
    exp.Column: _column,
    exp.Literal: _literal,
    exp.Null: lambda t, node: NULL,
    exp.Boolean: _boolean,
    exp.ByteString: _bytes,
    exp.Paren: lambda t, node: t(node.this),
    exp.Alias: lambda t, node: t(node.this),
    exp.Parameter: _parameter,
    exp.Collate: _collate,
    exp.Neg: _negate,
    exp.Add: _add,
    exp.Sub: _subtract,
    exp.Mul: _multiply,
    exp.Div: _two(arithmetic.divide),
    exp.Mod: _modulo,
    exp.Pow: _two(arithmetic.power),
    exp.BitwiseAnd: _bits("&"),
    exp.BitwiseOr: _bits("|"),
    exp.BitwiseXor: _bits("^"),
    exp.BitwiseNot: _not_bits,
    exp.BitwiseLeftShift: _shift("shiftleft"),
    exp.BitwiseRightShift: _shift("shiftright"),
    exp.EQ: _compare("="),
    exp.NEQ: _compare("<>"),
    exp.LT: _compare("<"),
    exp.LTE: _compare("<="),
    exp.GT: _compare(">"),
    exp.GTE: _compare(">="),
    exp.NullSafeEQ: lambda t, node: comparison.distinct(
        t(node.this), t(node.expression), t.text, node, negated=True
    ),
    exp.NullSafeNEQ: lambda t, node: comparison.distinct(
        t(node.this), t(node.expression), t.text, node, negated=False
    ),
    exp.And: _logic("and"),
    exp.Or: _logic("or"),
    exp.Not: _not,
    exp.Is: _is,
    exp.Between: _between,
    exp.In: _in,
    exp.Like: _like(fold=False),
    exp.ILike: _like(fold=True),
    exp.Escape: _escape,
    exp.RegexpLike: _two(strings.matches),
    exp.RegexpILike: lambda t, node: strings.matches(
        t(node.this), t(node.expression), t.text, node, fold=True
    ),
    exp.Case: _case,
    exp.Cast: _cast,
    exp.DPipe: _pipe,
    exp.Extract: lambda t, node: dates.extract(
        node.this.name, t(node.expression), t.text, node
    ),
    exp.Substring: _substring,
    exp.Trim: _trim,
    exp.StrPosition: lambda t, node: strings.position(
        t(node.args["substr"]), t(node.this), t.text, node
    ),
    exp.Overlay: _overlay,
    exp.AtTimeZone: lambda t, node: dates.at_time_zone(
        t(node.this), t(node.args["zone"]), t.text, node
    ),
    exp.Interval: _interval,
    exp.Array: lambda t, node: arrays.array(t.all(node.expressions), t.text, node),
    exp.Bracket: _bracket,
    exp.Dot: _field,
    exp.ArrayContainsAll: _two(arrays.contains),
    exp.ArrayContainedBy: lambda t, node: arrays.contains(
        t(node.expression), t(node.this), t.text, node
    ),
    exp.ArrayOverlaps: _two(arrays.overlaps),
    exp.JSONExtractScalar: _json_text,
    exp.Anonymous: _call,
    exp.CurrentDate: _clock("current_date()", types.DATE),
    exp.CurrentTimestamp: _clock("current_timestamp()", types.TIMESTAMPTZ),
    exp.Localtimestamp: _clock("localtimestamp()", types.TIMESTAMP),
}

__all__ = ["FLOATS", "Surroundings", "Translator", "function_name", "known_functions"]

"""Clauses of a SELECT that are the same for every query: default names, ORDER BY, LIMIT."""

from typing import Any

from sqlglot import exp

from headwater.model.types import BIGINT
from headwater.sql.data_statements import identifier
from headwater.sql.expression.translator import function_name
from headwater.sql.expression.typed import Typed
from headwater.sql.planning import Planning

_NAMES: dict[type[exp.Expr], str] = {
    exp.Exists: "exists",
    exp.Extract: "extract",
    exp.Substring: "substring",
    exp.StrPosition: "position",
    exp.Overlay: "overlay",
    exp.Array: "array",
    exp.CurrentDate: "current_date",
    exp.CurrentTimestamp: "current_timestamp",
}
_TRIMS = {"BOTH": "btrim", "LEADING": "ltrim", "TRAILING": "rtrim"}
UNNAMED = "?column?"


def default_name(node: Any) -> str:
    """What PostgreSQL calls a column that the user did not name."""
    found = UNNAMED
    match node:
        case exp.Column():
            found = identifier(node.this)
        case exp.Paren() | exp.Filter() | exp.WithinGroup() | exp.Window() | exp.Bracket():
            found = default_name(node.this)
        case exp.Anonymous():
            found = function_name(node)
        case exp.Cast():
            inner = default_name(node.this)
            found = inner if inner != UNNAMED else node.args["to"].sql("postgres").lower()
        case exp.Case():
            default = node.args.get("default")
            inner = default_name(default) if default is not None else UNNAMED
            found = inner if inner != UNNAMED else "case"
        case exp.Dot():
            found = identifier(node.expression)
        case exp.Subquery(this=exp.Select(expressions=[only])):
            alias = only.args.get("alias")
            found = identifier(alias) if alias is not None else default_name(only)
        case exp.Trim():
            found = _TRIMS[node.args.get("position") or "BOTH"]
        case _:
            found = _NAMES.get(type(node), UNNAMED)
    return found


def order_target(block: Any, target: Any, values: list[tuple[str, Typed]]) -> Typed | None:
    """ORDER BY 1 and ORDER BY alias: an output column comes before an input column."""
    if isinstance(target, exp.Literal) and not target.args.get("is_string"):
        place = int(target.this)
        if not 1 <= place <= len(values):
            block.text.mistake(
                f"ORDER BY position {place} is not in select list", target, sqlstate="42P10"
            )
        return values[place - 1][1]
    if isinstance(target, exp.Column) and target.args.get("table") is None:
        name = identifier(target.this)
        matching = [value for shown, value in values if shown == name]
        if matching:
            return matching[0]
    return None


def _whole_number(planning: Planning, value: Any) -> int | None:  # noqa: PLR0911
    """A number that is known when the query is planned: written, computed, or a parameter."""
    match value:
        case exp.Literal() if str(value.this).strip().isdigit():
            return int(value.this)
        case exp.Paren() | exp.Cast():
            return _whole_number(planning, value.this)
        case exp.Neg():
            inner = _whole_number(planning, value.this)
            return None if inner is None else -inner
        case exp.Add() | exp.Sub() | exp.Mul():
            one, two = (_whole_number(planning, each) for each in (value.this, value.expression))
            if one is None or two is None:
                return None
            return {exp.Add: one + two, exp.Sub: one - two, exp.Mul: one * two}[type(value)]
        case exp.Parameter():
            number = int(value.this.this)
            planning.text.parameters.setdefault(number, BIGINT)
            given = planning.parameters or ()
            text = given[number - 1] if 1 <= number <= len(given) else None
            return int(text) if text is not None and text.strip().lstrip("-").isdigit() else None
        case _:
            return None


def limits(planning: Planning, node: Any) -> tuple[int | None, int, bool]:
    """LIMIT, OFFSET and WITH TIES, which must be constants."""

    def constant(value: Any, what: str) -> int | None:
        if value is None or isinstance(value, exp.Null):
            return None
        number = _whole_number(planning, value)
        if number is not None:
            if number < 0:
                planning.text.mistake(f"{what} must not be negative", node, sqlstate="2201W")
            return number
        if isinstance(value, exp.Anonymous | exp.Column) and value.sql().lower() == "all":
            return None
        planning.text.refuse(f"{what} must be a constant", node)

    limit, offset = node.args.get("limit"), node.args.get("offset")
    ties = False
    size = None
    if isinstance(limit, exp.Fetch):
        options = limit.args.get("limit_options")
        ties = bool(options is not None and options.args.get("with_ties"))
        if options is not None and options.args.get("percent"):
            planning.text.refuse("FETCH ... PERCENT is not supported", node)
        size = constant(limit.args.get("count"), "LIMIT")
        size = 1 if limit.args.get("count") is None else size
    elif limit is not None:
        size = constant(limit.expression, "LIMIT")
    skip = constant(offset.expression, "OFFSET") if offset is not None else 0
    return size, skip or 0, ties

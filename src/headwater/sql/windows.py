"""Window functions: each call becomes a column of a WindowFunctions node below.

PostgreSQL's default frame (from the partition's start to the current row's last peer, or the
whole partition without ORDER BY) is Spark's too. Where the order leaves ties open and the result
depends on them (row_number, lag, ROWS frames, ...), the input's key is added to it, so that the
same rows always give the same result.
"""

from dataclasses import replace
from decimal import Decimal
from typing import Any

from sqlglot import exp

from headwater.model import types
from headwater.model.types import Kind
from headwater.sql.algebra import Expression, Named, Ordering, WindowFunctions
from headwater.sql.block import Block
from headwater.sql.expression.aggregates import aggregate, is_aggregate, ordering, ordering_text
from headwater.sql.expression.coercion import become
from headwater.sql.expression.comparison import equal_form
from headwater.sql.expression.interval_text import read_interval
from headwater.sql.expression.json_building import to_json
from headwater.sql.expression.json_text import array_of
from headwater.sql.expression.translator import Translator, function_name
from headwater.sql.expression.typed import Typed, column, made, reading
from headwater.sql.planning import Ranked, extend, is_column

_RANKS = {
    "row_number": (types.BIGINT, "cast(row_number() over ({0}) as bigint)"),
    "rank": (types.BIGINT, "cast(rank() over ({0}) as bigint)"),
    "dense_rank": (types.BIGINT, "cast(dense_rank() over ({0}) as bigint)"),
    "percent_rank": (types.DOUBLE, "percent_rank() over ({0})"),
    "cume_dist": (types.DOUBLE, "cume_dist() over ({0})"),
}
_COLLECTED = ("array_agg", "string_agg", "jsonb_agg")
_OVER = frozenset({
    "count", "sum", "avg", "min", "max", "bool_and", "bool_or", "bit_and", "bit_or", "bit_xor",
    "stddev", "variance", "stddev_samp", "stddev_pop", "var_samp", "var_pop", "corr", "covar_pop",
    "covar_samp", "regr_count", "regr_slope", "regr_intercept", "regr_r2", "regr_avgx",
    "regr_avgy", "regr_sxx", "regr_syy", "regr_sxy",
})  # fmt: skip
_TIES_MATTER = ("row_number", "ntile", "lag", "lead")


def window_value(block: Block, node: Any) -> Typed:
    """The column that holds a window function's value."""
    translate = _inside(block)
    spec = _spec(block, node)
    partition = [equal_form(translate(each), block.text, each) for each in spec["partition"]]
    block.plan, partition = extend(
        block.planning, block.plan, [("part", value) for value in partition]
    )
    order = [ordering(translate, each) for each in spec["order"]]
    frame = _frame(block, spec["frame"], order, node)
    if frame.startswith("range between") and _is_date_distance(spec["frame"], order):
        stamp = f"cast({order[0].expression.text} as timestamp_ntz)"
        moved = Expression(stamp, types.TIMESTAMP, order[0].expression.columns)
        order = [replace(order[0], expression=moved)]
    name = function_name(node.this) if isinstance(node.this, exp.Anonymous) else ""
    full = list(order)
    if name in _TIES_MATTER or frame.startswith("rows"):
        outputs = {output.name: output for output in block.plan.outputs}
        full += [Ordering(column(key, outputs[key].type).expression()) for key in block.plan.key]
    pieces = []
    if partition:
        pieces.append("partition by " + ", ".join(value.text for value in partition))
    if full:
        pieces.append("order by " + ", ".join(map(ordering_text, full)))
    value = _call(block, translate, node.this, " ".join(pieces), frame)
    columns = reading(value, *partition)
    for each in full:
        columns |= each.expression.columns
    value = value.renamed(value.text, columns=columns)
    return _placed(block, name, partition, order, value)


def _inside(block: Block) -> Translator:
    """Arguments of a window function may hold aggregates, but no further windows."""
    return block.translator()


def _spec(block: Block, node: Any) -> dict[str, Any]:
    alias = node.args.get("alias")
    partition, order = list(node.args.get("partition_by") or []), node.args.get("order")
    frame = node.args.get("spec")
    if alias is not None:
        known = block.named_windows.get(alias.name.lower())
        if known is None:
            block.text.mistake(f'window "{alias.name}" does not exist', node, sqlstate="42704")
        partition = partition or list(known.args.get("partition_by") or [])
        order = order or known.args.get("order")
        frame = frame or known.args.get("spec")
    first = node.args.get("first")
    if first is not None and not first:
        block.text.refuse("this window is not supported", node)
    return {"partition": partition, "order": order.expressions if order else [], "frame": frame}


def _frame(block: Block, frame: Any, order: list[Ordering], node: Any) -> str:
    if frame is None:
        return ""
    kind = str(frame.args.get("kind") or "RANGE").lower()
    if kind == "groups" or frame.args.get("exclude"):
        block.text.refuse("GROUPS and EXCLUDE in a window are not supported", node)

    def edge(name: str) -> str:
        value, side = frame.args.get(name), str(frame.args.get(f"{name}_side") or "").lower()
        if value is None:
            return "current row"
        if isinstance(value, str):
            return f"{value.lower()} {side}".strip()
        if kind == "range":
            return f"{_distance(block, value, order, node)} {side}"
        if not (isinstance(value, exp.Literal) and str(value.this).isdigit()):
            block.text.refuse("a frame's offset must be a constant", node)
        return f"{value.this} {side}"

    return f"{kind} between {edge('start')} and {edge('end')}"


def _is_date_distance(frame: Any, order: list[Ordering]) -> bool:
    edges = (frame.args.get("start"), frame.args.get("end"))
    return (
        order[0].expression.type.kind is Kind.DATE
        and any(isinstance(edge, exp.Expr) for edge in edges)
        if order
        else False
    )


def _distance(block: Block, value: Any, order: list[Ordering], node: Any) -> str:
    """How far a RANGE frame reaches, as a literal that fits what the rows are ordered by."""
    if len(order) != 1:
        block.text.mistake(
            "RANGE with offset PRECEDING/FOLLOWING requires exactly one ORDER BY column", node,
            sqlstate="42P20",
        )  # fmt: skip
    kind = order[0].expression.type.kind
    if kind in (Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ) and isinstance(value, exp.Interval):
        unit = value.args.get("unit")
        months, days, micros = read_interval(
            str(value.this.this), unit.name if unit is not None else None
        )
        if months and (days or micros):
            block.text.refuse("a RANGE frame of months and days is not supported", node)
        if months:
            return f"interval '{months}' month"
        seconds = Decimal(days * 86_400_000_000 + micros) / 1_000_000
        return f"interval '{seconds:f}' second"
    if not isinstance(value, exp.Literal) or value.args.get("is_string"):
        block.text.refuse("a frame's offset must be a constant", node)
    if kind in (Kind.REAL, Kind.DOUBLE):
        return f"{value.this}D"
    if kind is Kind.DECIMAL:
        return f"cast('{value.this}' as {order[0].expression.type.spark})"
    if kind in (Kind.SMALLINT, Kind.INTEGER, Kind.BIGINT) and str(value.this).isdigit():
        return f"cast({value.this} as {order[0].expression.type.spark})"
    block.text.refuse("this RANGE frame is not supported", node)


def _call(block: Block, translate: Translator, node: Any, window: str, frame: str) -> Typed:
    over = f"{window} {frame}".strip()
    if isinstance(node, exp.IgnoreNulls | exp.RespectNulls):
        block.text.refuse("IGNORE NULLS is not supported", node)
    if is_aggregate(node):
        found = aggregate(translate, node)
        if found.distinct or found.ordered:
            block.text.refuse("DISTINCT and ORDER BY in an aggregate over a window", node)
        if found.function in _COLLECTED:
            return _collected(block, translate, node, found.function, over)
        if found.function not in _OVER:
            block.text.refuse(f"{found.function} is not supported over a window", node)
        return _spread(found.value, over)
    if not isinstance(node, exp.Anonymous):
        block.text.refuse("this window function is not supported", node)
    name = function_name(node)
    if name in _RANKS:
        type_, template = _RANKS[name]
        return Typed(template.format(window), type_, nullable=False)
    args = [translate(each) for each in node.expressions]
    if name == "ntile" and len(args) == 1:
        count = become(args[0], types.INTEGER, block.text, node)
        return made(f"ntile({count.text}) over ({window})", types.INTEGER, count)
    if name in ("lag", "lead") and 1 <= len(args) <= 3:
        return _offset(block, node, name, args, window)
    if name in ("first_value", "last_value", "nth_value") and args:
        value = become(args[0], args[0].known, block.text, node)
        place = f", {args[1].text}" if name == "nth_value" and len(args) == 2 else ""
        return made(f"{name}({value.text}{place}) over ({over})", value.known, *args)
    block.text.mistake(f"window function {name} does not exist", node, sqlstate="42883")


def _collected(block: Block, translate: Translator, node: Any, function: str, over: str) -> Typed:
    """Values in the order of the window."""
    condition = ""
    if isinstance(node, exp.Filter):
        condition = f" filter (where {translate.condition(node.expression.this).text})"
        node = node.this
    args = [translate(each) for each in node.expressions]
    value = become(args[0], args[0].known, block.text, node)
    if function == "jsonb_agg":
        value = to_json(value, block.text, node)
    listed = (
        f"transform(collect_list(struct({value.text} as v)){condition} over ({over}), s -> s.v)"
    )
    if function == "array_agg":
        body, type_ = f"if(size({listed}) = 0, null, {listed})", types.list_of(value.known)
    elif function == "jsonb_agg":
        items = f"transform({listed}, j -> coalesce(j, 'null'))"
        body, type_ = f"if(size({listed}) = 0, null, {array_of(items)})", types.JSONB
    else:
        by = become(args[1], types.VARCHAR, block.text, node)
        there = f"filter({listed}, s -> s is not null)"
        body = f"if(size({there}) = 0, null, array_join({there}, {by.text}))"
        type_ = types.VARCHAR
    return made(body, type_, *args)


def _offset(block: Block, node: Any, name: str, args: list[Typed], window: str) -> Typed:
    value = become(args[0], args[0].known, block.text, node)
    by = args[1].text.strip("()") if len(args) > 1 else "1"
    if not by.lstrip("-").isdigit():
        block.text.refuse(f"the offset of {name} must be a constant", node)
    inner = f"{value.text}, {by}"
    if len(args) == 3:
        inner += f", {become(args[2], value.known, block.text, node).text}"
    return made(f"{name}({inner}) over ({window})", value.known, *args)


def _spread(value: Typed, over: str) -> Typed:
    """An aggregate's text with OVER after each aggregate in it (avg has two)."""
    import re  # noqa: PLC0415

    text, out, at = value.text, "", 0
    starts = re.compile(
        r"\b(?:count|sum|avg|min|max|bool_and|bool_or|bit_and|bit_or|bit_xor|stddev_samp|"
        r"stddev_pop|var_samp|var_pop|corr|covar_pop|covar_samp|regr_\w+)\("
    )
    while found := starts.search(text, at):
        end = _closing(text, found.end() - 1) + 1
        if text.startswith(" filter (", end):
            end = _closing(text, end + len(" filter ")) + 1
        out += text[at:end] + f" over ({over})"
        at = end
    return value.renamed(out + text[at:])


def _closing(text: str, at: int) -> int:
    depth, quote = 0, False
    while True:
        sign = text[at]
        if quote:
            if sign == "\\":
                at += 1
            elif sign == "'":
                quote = False
        elif sign == "'":
            quote = True
        elif sign == "(":
            depth += 1
        elif sign == ")":
            depth -= 1
            if depth == 0:
                return at
        at += 1


def _placed(
    block: Block, name: str, partition: list[Typed], order: list[Ordering], value: Typed
) -> Typed:
    columns = tuple(found for each in partition if (found := is_column(each)))
    fresh, reference = block.planning.column(name or "win", value.known, nullable=value.nullable)
    call = Named(fresh, value.expression())
    top = block.plan
    if (
        isinstance(top, WindowFunctions)
        and top.partition == columns
        and not (value.columns & {each.name for each in top.calls})
    ):
        block.plan = WindowFunctions(input=top.input, partition=columns, calls=(*top.calls, call))
    else:
        block.plan = WindowFunctions(input=top, partition=columns, calls=(call,))
    if name in ("row_number", "rank"):
        block.planning.ranked[fresh] = Ranked(columns, tuple(order), name == "rank")
    return reference

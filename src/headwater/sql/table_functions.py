"""Table functions in FROM: unnest, generate_series, tumble and hop."""

from typing import Any

from sqlglot import exp

from headwater.model import types
from headwater.model.types import DataType, Kind
from headwater.sql.algebra import Expression, Generate, Named, Output, Plan, Project
from headwater.sql.block import Block
from headwater.sql.data_statements import identifier
from headwater.sql.expression.arrays import element_of
from headwater.sql.expression.coercion import INTEGERS, become, unify
from headwater.sql.expression.dates import micros_of
from headwater.sql.expression.interval_text import parts_of, read_interval
from headwater.sql.expression.translator import function_name
from headwater.sql.expression.typed import Typed, column, made, reading
from headwater.sql.planning import keep
from headwater.sql.scope import Source


def table_function(  # noqa: PLR0913, PLR0917
    block: Block, left: Plan | None, node: Any, alias: str, names: list[str], whole: Any,
    *, outer: bool,
) -> tuple[Plan, Source]:  # fmt: skip
    """A plan with the function's rows beside the rows of `left`, and the new source."""
    inner = node.this if isinstance(node, exp.Table) else node
    with_ordinality = bool(whole.args.get("ordinality") or node.args.get("ordinality"))
    offset = node.args.get("offset")
    if isinstance(inner, exp.Unnest):
        args = list(inner.expressions)
        name = "unnest"
        offset = inner.args.get("offset") or offset
    elif isinstance(inner, exp.Anonymous):
        args, name = list(inner.expressions), function_name(inner)
    else:
        block.text.refuse(f"{inner.sql('postgres')[:60]} in FROM is not supported", whole)
    alias = alias or name
    if name in ("tumble", "hop"):
        return _window(block, left, name, args, alias, whole)
    if left is None:
        from headwater.sql.from_clause import one_row  # noqa: PLC0415

        left = one_row(block.planning)
    translate = block.translator()
    if name == "unnest":
        arrays = [translate(each) for each in args]
        expression, fields = _unnested(block, arrays, whole)
    elif name == "generate_series":
        values = [translate(each) for each in args]
        expression, fields = _series(block, values, whole)
    else:
        block.text.refuse(f"table function {name} is not supported", whole)
    outputs = [block.planning.column(alias, type_) for type_ in fields]
    ordinal, reference = block.planning.column("ordinality", types.BIGINT, nullable=False)
    body = expression.text
    for place, (fresh, _) in enumerate(outputs):
        body = body.replace(f"@{place}@", f"'{fresh}'")
    plan = Generate(
        input=left,
        expression=Expression(body, expression.known, expression.columns),
        generated=tuple(
            Output(fresh, type_) for (fresh, _), type_ in zip(outputs, fields, strict=True)
        ),
        ordinality=ordinal,
        outer=outer,
    )
    shown = [(alias if len(outputs) == 1 else name, value) for _, value in outputs]
    if with_ordinality or offset is not None:
        given = identifier(offset) if isinstance(offset, exp.Identifier) else "ordinality"
        shown.append((given, reference))
    for place, given in enumerate(names[: len(shown)]):
        shown[place] = (given, shown[place][1])
    return plan, Source(alias, shown)


def _unnested(block: Block, arrays: list[Typed], node: Any) -> tuple[Typed, list[DataType]]:
    fields = [element_of(each, block.text, node) for each in arrays]
    if len(arrays) == 1:
        body = f"transform({arrays[0].text}, e -> named_struct(@0@, e))"
    else:
        # The zipped fields are named by their places, or by the columns that they come from.
        zipped = ", ".join(f"transform({each.text}, e -> e)" for each in arrays)
        parts = ", ".join(f"@{i}@, e.`{i}`" for i in range(len(arrays)))
        body = f"transform(arrays_zip({zipped}), e -> named_struct({parts}))"
    struct = types.list_of(
        DataType(Kind.STRUCT, fields=tuple((f"f{i}", each) for i, each in enumerate(fields)))
    )
    return made(body, struct, *arrays), fields


def _series(block: Block, values: list[Typed], node: Any) -> tuple[Typed, list[DataType]]:
    if not 2 <= len(values) <= 3:
        block.text.mistake("generate_series takes two or three arguments", node, sqlstate="42883")
    kinds = [each.type.kind for each in values[:2] if each.type is not None]
    if kinds and all(kind in INTEGERS for kind in kinds):
        (first, last), shared = unify(values[:2], block.text, node, "generate_series")
        if shared.kind is Kind.SMALLINT:
            shared = types.INTEGER
        step = become(values[2], shared, block.text, node).text if len(values) == 3 else "1"
        numbers = (f"cast({first.text} as {shared.spark})", f"cast({last.text} as {shared.spark})")
        step = f"cast({step} as {shared.spark})"
        body = _sequence(*numbers, step)
        result = shared
    else:
        body, result = _times(block, values, node)
    struct = f"transform({body}, e -> named_struct(@0@, e))"
    type_ = types.list_of(DataType(Kind.STRUCT, fields=(("f0", result),)))
    return made(struct, type_, *values), [result]


def _sequence(first: str, last: str, step: str) -> str:
    # Spark raises where PostgreSQL gives no rows: when the step leads away from the end.
    away = f"(({step} > 0 and {first} > {last}) or ({step} < 0 and {first} < {last}))"
    size = f"if({step} = 0, cast(raise_error('step size cannot equal zero') as int), {step})"
    return (
        f"if({first} is null or {last} is null or {away}, slice(sequence({first}, {first}), 1, 0),"
        f" sequence({first}, if({away}, {first}, {last}), if({away}, 0, {size})))"
    )


def _times(block: Block, values: list[Typed], node: Any) -> tuple[str, DataType]:
    if len(values) != 3:
        block.text.mistake("generate_series of times needs a step", node, sqlstate="42883")
    first, last = values[:2]
    shared = types.TIMESTAMPTZ
    if any(each.type is not None and each.type.kind is Kind.TIMESTAMP for each in (first, last)):
        shared = types.TIMESTAMP
    first, last = (become(each, shared, block.text, node) for each in (first, last))
    parts = parts_of(become(values[2], types.INTERVAL, block.text, node))
    step = (
        f"make_interval(0, cast({parts.months} as int), 0, cast({parts.days} as int), 0, 0, "
        f"cast(cast({parts.micros} as decimal(18,6)) / 1000000 as decimal(18,6)))"
    )
    away = f"({first.text} > {last.text})"
    return (
        f"if({away} or {first.text} is null or {last.text} is null, "
        f"slice(sequence({first.text}, {first.text}, make_interval(0,0,0,1)), 1, 0), "
        f"sequence({first.text}, {last.text}, {step}))"
    ), shared


def _window(  # noqa: PLR0913, PLR0917
    block: Block, left: Plan | None, name: str, args: list[Any], alias: str, node: Any
) -> tuple[Plan, Source]:
    """tumble(relation, time column, size) and hop(relation, time column, slide, size)."""
    from headwater.sql.from_clause import Pool, _item, assembled  # noqa: PLC0415

    wanted = 3 if name == "tumble" else 4
    if left is not None or len(args) != wanted or not isinstance(args[0], exp.Column):
        block.text.refuse(f"this use of {name} is not supported", node)
    parts = [part.copy() for part in (args[0].this, args[0].args.get("table")) if part]
    table = exp.Table(this=parts[0], db=parts[1] if len(parts) > 1 else None)
    inner = Block(block.planning, type(block.scope)(block.text), block.environment, block.plan)
    pool = Pool()
    _item(inner, pool, table)
    plan = assembled(block.planning, pool)
    inner.plan = plan
    translate = inner.translator()
    stamp = translate(args[1])
    if stamp.known.kind not in (Kind.TIMESTAMP, Kind.TIMESTAMPTZ):
        block.text.mistake(f"{name} needs a timestamp column", node)
    sizes = [_micros(block, each, node) for each in args[2:]]
    if name == "tumble":
        return _tumble(block, plan, inner.scope.sources[0], alias, stamp, sizes[0])
    return _hop(block, plan, inner.scope.sources[0], alias, stamp, sizes)


def _micros(block: Block, node: Any, whole: Any) -> int:
    text = str(node.this.this) if isinstance(node, exp.Interval) else ""
    unit = node.args.get("unit") if isinstance(node, exp.Interval) else None
    try:
        months, days, micros = read_interval(text, unit.name if unit is not None else None)
    except ValueError:
        block.text.mistake("a window's size must be a constant interval", whole)
    if months or days * 86_400_000_000 + micros <= 0:
        block.text.refuse("a window's size must be positive and without months", whole)
    return days * 86_400_000_000 + micros


def _moment(micros: str, type_: DataType) -> str:
    stamp = f"timestamp_micros({micros})"
    return stamp if type_.kind is Kind.TIMESTAMPTZ else f"cast({stamp} as timestamp_ntz)"


def _tumble(  # noqa: PLR0913, PLR0917
    block: Block, plan: Plan, source: Source, alias: str, stamp: Typed, size: int
) -> tuple[Plan, Source]:
    micros = micros_of(stamp)
    start = f"({micros} - pmod({micros}, {size}L))"
    type_ = stamp.known
    names = []
    for hint, body in (("window_start", start), ("window_end", f"({start} + {size}L)")):
        fresh, reference = block.planning.column(hint, type_)
        text = _moment(body, type_)
        names.append((hint, reference, Named(fresh, made(text, type_, stamp).expression())))
    kept = tuple(keep(output) for output in plan.outputs)
    # A row without a time is in no window.
    from headwater.sql.planning import filtered  # noqa: PLC0415

    plan = filtered(plan, [made(f"({stamp.text} is not null)", types.BOOLEAN, stamp)])
    plan = Project(input=plan, expressions=(*kept, *(each[2] for each in names)), key=plan.key)
    shown = [*source.columns, *((hint, reference) for hint, reference, _ in names)]
    return plan, Source(alias, shown)


def _hop(  # noqa: PLR0913, PLR0917
    block: Block, plan: Plan, source: Source, alias: str, stamp: Typed, sizes: list[int]
) -> tuple[Plan, Source]:
    slide, size = sizes
    if size % slide:
        block.text.refuse("hop needs a size that is a multiple of its slide")
    micros = micros_of(stamp)
    last = f"({micros} - pmod({micros}, {slide}L))"
    type_ = stamp.known
    (start, start_ref), (end, end_ref) = (
        block.planning.column(hint, type_) for hint in ("window_start", "window_end")
    )
    ordinal, _ = block.planning.column("ordinality", types.BIGINT, nullable=False)
    first = f"({last} - {size - slide}L)"
    body = (
        f"transform(sequence({first}, {last}, {slide}L), e -> named_struct("
        f"'{start}', {_moment('e', type_)}, '{end}', {_moment(f'(e + {size}L)', type_)}))"
    )
    struct = types.list_of(DataType(Kind.STRUCT, fields=((start, type_), (end, type_))))
    generated = Generate(
        input=plan,
        expression=Expression(body, struct, reading(stamp)),
        generated=(Output(start, type_), Output(end, type_)),
        ordinality=ordinal,
    )
    shown = [*source.columns, ("window_start", start_ref), ("window_end", end_ref)]
    return generated, Source(alias, shown)


__all__ = ["column", "table_function"]

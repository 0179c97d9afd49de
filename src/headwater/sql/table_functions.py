"""Table functions in FROM: unnest, generate_series, tumble and hop."""

from typing import Any

from sqlglot import exp

from headwater.model import types
from headwater.model.types import DataType, Kind
from headwater.sql.algebra import Expression, Generate, Named, Output, Plan, Project
from headwater.sql.block import Block
from headwater.sql.data_statements import identifier
from headwater.sql.expression.dates import micros_of
from headwater.sql.expression.interval_text import read_interval
from headwater.sql.expression.translator import function_name
from headwater.sql.expression.typed import Typed, column, made, reading
from headwater.sql.planning import keep
from headwater.sql.relations import suggestion
from headwater.sql.scope import Source
from headwater.sql.set_functions import SETS, row_set


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
    alias_given = bool(alias) and name not in ("jsonb_array_elements", "jsonb_array_elements_text")
    alias = alias or name
    if name in ("tumble", "hop"):
        return _window(block, left, name, args, alias, whole)
    if left is None:
        from headwater.sql.from_clause import one_row  # noqa: PLC0415

        left = one_row(block.planning)
    if name not in SETS:
        close = suggestion(name, [*SETS, "tumble", "hop"])
        block.text.mistake(
            f"table function {name} does not exist or is not supported", whole, hint=close,
            sqlstate="42883",
        )  # fmt: skip
    found = row_set(block, name, args, whole)
    outputs = [block.planning.column(alias, type_) for type_ in found.types]
    ordinal, reference = block.planning.column("ordinality", types.BIGINT, nullable=False)
    fields = ", ".join(
        f"'{fresh}', {value}" for (fresh, _), value in zip(outputs, found.values, strict=True)
    )
    struct = DataType(Kind.STRUCT, fields=tuple((fresh, ref.known) for fresh, ref in outputs))
    plan = Generate(
        input=left,
        expression=Expression(
            f"transform({found.array.text}, e -> named_struct({fields}))",
            types.list_of(struct),
            found.array.columns,
        ),
        generated=tuple(Output(fresh, ref.known) for fresh, ref in outputs),
        ordinality=ordinal,
        outer=outer,
    )
    named = found.names if len(found.names) > 1 or not alias_given else ()
    shown = [
        (named[place] if named else alias if len(outputs) == 1 else name, value)
        for place, (_, value) in enumerate(outputs)
    ]
    if with_ordinality or offset is not None:
        given = identifier(offset) if isinstance(offset, exp.Identifier) else "ordinality"
        shown.append((given, reference))
    for place, given in enumerate(names[: len(shown)]):
        shown[place] = (given, shown[place][1])
    return plan, Source(alias, shown, scalar=len(outputs) == 1)


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

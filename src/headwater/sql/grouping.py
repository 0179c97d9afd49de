"""GROUP BY, aggregates and HAVING.

Group expressions become columns below the Aggregate node, so that a group is named by columns.
Afterwards an expression may use a group expression (recognised by its translation, so `t.a` and
`a` are the same), an aggregate, or any column of a relation whose whole key is grouped.

GROUPING SETS, ROLLUP and CUBE are a union of Aggregates over one input, with the number of the
grouping set as tag.
"""

import itertools
from collections.abc import Iterator
from typing import Any

from sqlglot import exp

from headwater.model import types
from headwater.model.types import Kind
from headwater.sql.algebra import (
    Aggregate,
    AggregateCall,
    Expression,
    Named,
    Output,
    Plan,
    Project,
    UnionAll,
)
from headwater.sql.block import Block, Grouped
from headwater.sql.expression.aggregates import Aggregation, aggregate, is_aggregate
from headwater.sql.expression.comparison import equal_form
from headwater.sql.expression.translator import function_name
from headwater.sql.expression.typed import Typed, column, made
from headwater.sql.planning import extend, is_column, keep

_MOST_SETS = 64
_UNLIKE = (Kind.INTERVAL, Kind.JSONB)


def outside_subqueries(node: Any) -> Iterator[Any]:
    """The nodes of an expression, without those of subqueries in it."""
    stack = [node]
    while stack:
        each = stack.pop()
        if isinstance(each, exp.Query | exp.Subquery) and each is not node:
            continue
        yield each
        stack.extend(each.iter_expressions(reverse=True))


def find_aggregates(nodes: list[Any]) -> list[Any]:
    """The aggregate calls in expressions; a window's own call is not one."""
    found = []
    for root in nodes:
        stack = [(root, False)]
        while stack:
            node, of_window = stack.pop()
            if isinstance(node, exp.Query | exp.Subquery):
                continue
            if is_aggregate(node) and not of_window:
                found.append(node)
                continue
            inside = isinstance(node, exp.Window)
            for child in node.iter_expressions(reverse=True):
                wrapped = of_window and isinstance(node, exp.Filter | exp.WithinGroup)
                stack.append((child, (inside and child is node.this) or (
                    wrapped and child is node.this)))  # fmt: skip
    return found


def grouping_sets(block: Block, group: Any, resolve: Any) -> tuple[list[Any], list[list[int]]]:
    """All group expressions, and each grouping set as places in that list."""
    nodes: list[Any] = []
    places: dict[str, int] = {}

    def place(node: Any) -> int:
        node = resolve(node)
        key = node.sql("postgres")
        if key not in places:
            places[key] = len(nodes)
            nodes.append(node)
        return places[key]

    def items(node: Any) -> list[int]:
        if isinstance(node, exp.Paren):
            return items(node.this)
        if isinstance(node, exp.Tuple):
            return [place(each) for each in node.expressions]
        return [place(node)]

    factors: list[list[list[int]]] = []
    for node in group.expressions:
        if isinstance(node, exp.Rollup | exp.Cube | exp.GroupingSets):
            factors.append(_sets(node, items))
        else:
            factors.append([items(node)])
    for name in ("grouping_sets", "rollup", "cube"):
        factors += [_sets(node, items) for node in group.args.get(name) or []]
    sets = [
        list(dict.fromkeys(itertools.chain.from_iterable(combination)))
        for combination in itertools.product(*factors)
    ]
    if len(sets) > _MOST_SETS:
        block.text.refuse(f"more than {_MOST_SETS} grouping sets are not supported", group)
    return nodes, sets


def _sets(node: Any, items: Any) -> list[list[int]]:
    if isinstance(node, exp.Rollup):
        parts = [items(each) for each in node.expressions]
        return [list(itertools.chain.from_iterable(parts[:size]))
                for size in range(len(parts), -1, -1)]  # fmt: skip
    if isinstance(node, exp.Cube):
        parts = [items(each) for each in node.expressions]
        chosen = itertools.product((True, False), repeat=len(parts))
        return [list(itertools.chain.from_iterable(itertools.compress(parts, each)))
                for each in chosen]  # fmt: skip
    found: list[list[int]] = []
    for each in node.expressions:
        if isinstance(each, exp.Rollup | exp.Cube | exp.GroupingSets):
            found += _sets(each, items)
        elif isinstance(each, exp.Tuple) and not each.expressions:
            found.append([])
        else:
            found.append(items(each))
    return found


def apply_grouping(  # noqa: PLR0913, PLR0917
    block: Block,
    nodes: list[Any],
    sets: list[list[int]],
    calls: list[Any],
    keys: list[Typed],
    wanted: set[str],
) -> dict[str, str]:
    """Group the block; gives the aggregates whose value over nothing is not null.

    `keys` are columns that every grouping set has too: the correlation of a subquery. `wanted`
    are columns named outside of aggregates, which a grouped key of their relation may cover.
    """
    inner = block.translator()
    original = [inner(node) for node in nodes]
    values = [
        equal_form(each, block.text, node) for each, node in zip(original, nodes, strict=True)
    ]
    block.plan, references = extend(
        block.planning, block.plan, [("group", value) for value in values]
    )
    found: dict[str, Aggregation] = {}
    for node in calls:
        found.setdefault(node.sql("postgres", comments=False), aggregate(inner, node))
    # Equal values that may look different are grouped by another form: one of them is shown.
    unlike = [place for place, each in enumerate(original) if each.known.kind in _UNLIKE]
    if unlike and len(sets) > 1:
        block.text.refuse("grouping sets over jsonb or interval are not supported", nodes[0])
    for place in unlike:
        value = original[place]
        shown_value = made(f"min({value.text})", value.known, value)
        found[f"shown {place}"] = Aggregation(function="min", value=shown_value, argument=value)
    # Later expressions are compared with the groups as they read before grouping.
    inner = Block(block.planning, block.scope, block.environment, block.plan).translator()
    group_names = [name for each in references if (name := is_column(each))]
    key_names = [name for each in keys if (name := is_column(each))]
    if len(sets) == 1:
        group = tuple(dict.fromkeys([*key_names, *(group_names[i] for i in sets[0])]))
        made_calls, shown = _calls(block, found)
        before = block.plan
        block.plan = Aggregate(input=before, group=group, calls=made_calls)
        by_text = {value.text: reference
                   for value, reference in zip(original, references, strict=True)}  # fmt: skip
        by_text |= {original[place].text: shown[f"shown {place}"] for place in unlike}
        functional = _functional(block, before, set(group) - set(key_names), made_calls, wanted)
        block.grouped = Grouped(by_text, inner, shown, functional)
        _grouping_calls(block, nodes, calls_of=None)
        return {
            call.name: each.empty
            for call, each in zip(made_calls, found.values(), strict=True)
            if each.empty != "NULL"
        }
    _union(block, inner, nodes, original, references, sets, found, key_names)
    return {}


def _calls(
    block: Block, found: dict[str, Aggregation]
) -> tuple[tuple[AggregateCall, ...], dict[str, Typed]]:
    calls, shown = [], {}
    for key, each in found.items():
        name, reference = block.planning.column(
            each.function, each.value.known, nullable=each.empty == "NULL"
        )
        calls.append(
            AggregateCall(
                name=name,
                function=each.function,
                expression=each.value.expression(),
                argument=each.argument.expression() if each.argument is not None else None,
                distinct=each.distinct,
                filter=each.filter.expression() if each.filter is not None else None,
                finish=each.finish,
            )
        )
        shown[key] = reference
    return tuple(calls), shown


def _functional(
    block: Block,
    before: Plan,
    group: set[str],
    calls: tuple[AggregateCall, ...],
    wanted: set[str],
) -> dict[str, Typed]:
    """Columns of relations whose whole key is grouped: they are grouped with it."""
    extra: dict[str, Typed] = {}
    names = {output.name for output in before.outputs}
    for source in block.scope.sources:
        if source.key and source.key <= group:
            for _, value in source.columns:
                name = is_column(value)
                if name in names and name not in group and value.text in wanted:
                    extra[value.text] = value
    if extra:
        assert isinstance(block.plan, Aggregate)
        more = [name for value in extra.values() if (name := is_column(value))]
        block.plan = Aggregate(input=before, group=(*block.plan.group, *more), calls=calls)
    return extra


def _grouping_calls(block: Block, nodes: list[Any], calls_of: Any) -> None:
    """grouping(a, ...) without grouping sets is always 0."""
    assert block.grouped is not None
    del nodes, calls_of

    class Zero(dict[str, Typed]):
        def get(self, key: str, default: Any = None) -> Any:
            return Typed("0", types.INTEGER, nullable=False)

    block.grouped.groupings = Zero()


def _union(  # noqa: PLR0913, PLR0917
    block: Block, inner: Any, nodes: list[Any], values: list[Typed], references: list[Typed],
    sets: list[list[int]], found: dict[str, Aggregation], key_names: list[str],
) -> None:  # fmt: skip
    planning = block.planning
    below = block.plan
    types_of = {output.name: output.type for output in below.outputs}
    names = [is_column(reference) or "" for reference in references]
    out_groups = [planning.column("group", reference.known) for reference in references]
    out_flags = [planning.column("grouping", types.INTEGER, nullable=False) for _ in nodes]
    out_keys = [planning.column("key", types_of[name]) for name in key_names]
    branches: list[Plan] = []
    orders: list[tuple[str, ...]] = []
    call_names: list[tuple[str, Typed]] = []
    for chosen in sets:
        group = tuple(dict.fromkeys([*key_names, *(names[i] for i in chosen)]))
        calls, shown = _calls(block, found)
        plan: Plan = Aggregate(input=below, group=group, calls=calls)
        made_columns: list[Named] = []
        for place, reference in enumerate(references):
            fresh = planning.name("group")
            text = reference.text if place in chosen else f"cast(NULL as {reference.known.spark})"
            columns = reference.columns if place in chosen else frozenset()
            made_columns.append(Named(fresh, Expression(text, reference.known, columns)))
        for place in range(len(nodes)):
            fresh = planning.name("grouping")
            flag = "0" if place in chosen else "1"
            made_columns.append(Named(fresh, Expression(flag, types.INTEGER)))
        kept = [keep(output) for output in plan.outputs if output.name in key_names]
        kept += [keep(output) for output in plan.outputs
                 if output.name in {call.name for call in calls}]  # fmt: skip
        outputs = (*made_columns, *kept)
        branches.append(
            Project(input=plan, expressions=outputs, key=_present(outputs, names, chosen))
        )
        orders.append(tuple(each.name for each in outputs))
        if not call_names:
            call_names = [planning.column(call.function, call.expression.type) for call in calls]
            shown_calls = dict(zip(shown, (ref for _, ref in call_names), strict=True))
    tag, tag_reference = planning.column("set", types.INTEGER, nullable=False)
    outputs_all = [*out_groups, *out_flags, *out_keys, *call_names]
    columns_out = tuple(Output(name, ref.known) for name, ref in outputs_all)
    block.plan = UnionAll(
        inputs=tuple(branches),
        outputs=(*columns_out, Output(tag, types.INTEGER, False)),
        columns=tuple(orders),
        tag=tag,
        key=(tag, *(name for name, _ in (*out_groups, *out_keys))),
    )
    by_text = {value.text: reference
               for value, (_, reference) in zip(values, out_groups, strict=True)}  # fmt: skip
    block.grouped = Grouped(by_text, inner, shown_calls)
    flags = {node.sql("postgres").lower(): reference
             for node, (_, reference) in zip(nodes, out_flags, strict=True)}  # fmt: skip
    block.grouped.groupings = _Flags(flags)
    del tag_reference


def _present(outputs: Any, names: list[str], chosen: list[int]) -> tuple[str, ...]:
    """The branch's key: its group columns under their new names."""
    return tuple(outputs[place].name for place in range(len(names)) if place in chosen)


class _Flags(dict[str, Typed]):
    """grouping(a, b) by its text: the bits of its arguments, the first the highest."""

    def get(self, key: str, default: Any = None) -> Any:
        inside = key.removeprefix("grouping(").removesuffix(")")
        parts = [part.strip() for part in inside.split(",")]
        if any(part not in self for part in parts):
            return default
        found = [self[part] for part in parts]
        text = " + ".join(
            f"{each.text} * {1 << (len(found) - 1 - place)}" for place, each in enumerate(found)
        )
        columns = frozenset().union(*(each.columns for each in found))
        return Typed(f"({text})", types.INTEGER, columns, nullable=False)


__all__ = ["apply_grouping", "column", "find_aggregates", "function_name", "grouping_sets"]

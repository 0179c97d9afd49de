"""Queries that the rules write, compiled into steps over Arrow tables.

The texts are those of `meaning.py`, `terms.py`, `merging.py`, `settle.py` and `topmost.py`:
SELECT with one join, WHERE, GROUP BY, HAVING, ORDER BY, ranks, and UNION ALL. Every clause
and expression that is not known here makes the whole query Spark's (`NotHere`).

A text repeats itself, since a rule writes its input's query wherever it reads it. Steps that are
equal have the same `shape`, so whoever runs them computes each only once.
"""

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp, parse_one

from headwater.views.on_arrow import tables
from headwater.views.on_arrow.constants import with_constants
from headwater.views.on_arrow.tables import KeyIndex, Order, Total
from headwater.views.on_arrow.terms import NotHere, Term, comparable, condition, term

LEAF = "_hw_leaf_"
"""How leaves are called in a text, followed by their number."""
_CLAUSES = {
    "hint", "expressions", "from_", "joins", "where", "group", "having", "order", "limit",
    "offset", "distinct",
}  # fmt: skip
_TOTALS: dict[type[exp.Expr], str] = {
    exp.Sum: "sum", exp.Count: "count", exp.Min: "min", exp.Max: "max"
}  # fmt: skip
_PLACES: dict[type[exp.Expr], str] = {
    exp.RowNumber: "row_number", exp.Rank: "rank", exp.DenseRank: "dense_rank"
}  # fmt: skip
_TRY = re.compile(r"\btry_\w+\s*\(", re.IGNORECASE)
_LIFTED = "_hw_lifted_"

_MOST_SHAPES = 100_000
_shapes: dict[Any, int] = {}
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Step:
    """A table from other tables."""

    schema: pa.Schema
    inputs: tuple["Step", ...]
    work: Callable[..., pa.Table]
    leaves: tuple[int, ...]
    """The leaves that it reads, in the order in which they first appear below it."""
    shape: int
    """The same for steps that do the same to the same kind of leaves."""
    index: Callable[[pa.Table], Any] | None = None
    """What `work` is given besides: made of the last input, once for all who have the same."""


def compiled(text: str, schemas: Sequence[pa.Schema]) -> Step:
    """The last step of a query over leaves of these schemas; raises `NotHere`."""
    # Spark's escapes in strings are not sqlglot's, and its TRY functions look like the others.
    if "\\" in text or _TRY.search(text):
        raise NotHere("a text with escapes")
    tree = with_constants(parse_one(text, read="spark"))
    for literal in tree.find_all(exp.Literal):
        if LEAF in literal.this:
            raise NotHere("a literal that looks like a leaf")
    return _query(tree, schemas)


def _step(
    key: tuple[Any, ...],
    inputs: Sequence[Step],
    schema: pa.Schema,
    work: Callable[..., pa.Table],
    index: Callable[[pa.Table], Any] | None = None,
) -> Step:
    leaves = tuple(dict.fromkeys(leaf for each in inputs for leaf in each.leaves))
    below = tuple((each.shape, tuple(leaves.index(at) for at in each.leaves)) for each in inputs)
    return Step(schema, tuple(inputs), work, leaves, _shape((key, below)), index)


def _shape(key: Any) -> int:
    if len(_shapes) > _MOST_SHAPES:
        # Numbers are never used again, so whoever still holds an old one shares less, that is all.
        _shapes.clear()
    return _shapes.setdefault(key, next(_numbers))


def _query(node: exp.Expr, schemas: Sequence[pa.Schema]) -> Step:
    match node:
        case exp.Subquery():
            _only(node, {"this", "alias"})
            return _query(node.this, schemas)
        case exp.Union():
            return _union(node, schemas)
        case exp.Select():
            return _select(node, schemas)
        case exp.Table():
            _only(node, {"this"})
            number = node.name.removeprefix(LEAF)
            if not number.isdigit():
                raise NotHere(f"table {node.name}")
            schema = schemas[int(number)]
            kind = tuple((field.name, str(field.type)) for field in schema)
            return Step(schema, (), _nothing, (int(number),), _shape(("leaf", kind)))
        case _:
            raise NotHere(f"{type(node).__name__} is not known here")


def _nothing() -> pa.Table:
    raise AssertionError("a leaf is given")


def _only(node: exp.Expr, known: set[str]) -> None:
    unknown = {name for name, value in node.args.items() if value} - known
    if unknown:
        raise NotHere(f"{type(node).__name__} with {', '.join(sorted(unknown))}")


def _union(node: exp.Union, schemas: Sequence[pa.Schema]) -> Step:
    _only(node, {"this", "expression"})
    parts = [_query(each, schemas) for each in (node.this, node.expression)]
    first, second = (part.schema for part in parts)
    if first.types != second.types:
        raise NotHere("a union of different types")

    def work(a: pa.Table, b: pa.Table) -> pa.Table:
        return pa.concat_tables([a, pa.Table.from_arrays(b.columns, schema=first)]).combine_chunks()

    return _step(("union", tuple(first.names)), parts, first, work)


def _select(node: exp.Select, schemas: Sequence[pa.Schema]) -> Step:
    _only(node, _CLAUSES)
    origin = node.args.get("from_")
    if origin is None:
        raise NotHere("a query without FROM")
    below = _query(origin.this, schemas)
    for each in node.args.get("joins") or ():
        below = _join(each, below, _query(each.this, schemas))
    if (where := node.args.get("where")) is not None:
        below = _filtered(where.this, below)
    lifter = _Lifter()
    shown = [lifter.lift(each) for each in node.expressions]
    having = node.args.get("having")
    kept = None if having is None else lifter.lift(having.this)
    group = node.args.get("group")
    if group is not None or lifter.totals:
        if group is not None:
            _only(group, {"expressions"})
        below = _grouped([] if group is None else group.expressions, lifter, below)
    elif kept is not None:
        raise NotHere("HAVING without groups")
    if kept is not None:
        below = _filtered(kept, below)
    for name, window in lifter.windows.items():
        below = _placed(name, window, below)
    below = _projected(shown, below)
    if node.args.get("distinct") is not None:
        _only(node.args["distinct"], set())
        below = _distinct(below)
    return _ordered(node, below)


# Clauses


def _filtered(predicate: exp.Expr, below: Step) -> Step:
    made = condition(predicate, below.schema)

    def work(table: pa.Table) -> pa.Table:
        if made.constant:
            return table if made.of(table).as_py() else table.slice(0, 0)
        return table.filter(made.of(table))

    return _step(("where", predicate.sql("spark")), [below], below.schema, work)


def _projected(shown: Sequence[exp.Expr], below: Step) -> Step:
    if len(shown) == 1 and isinstance(shown[0], exp.Star):
        return below
    names: list[str] = []
    terms: list[Term] = []
    for each in shown:
        if isinstance(each, exp.Star):
            _only(each, set())
            names += below.schema.names
            terms += [term(exp.column(n, quoted=True), below.schema) for n in below.schema.names]
        else:
            names.append(each.alias_or_name)
            terms.append(term(each.unalias(), below.schema))
    if len(set(names)) < len(names) or "" in names:
        raise NotHere("columns without a name of their own")
    schema = pa.schema([(name, each.type) for name, each in zip(names, terms, strict=True)])

    def work(table: pa.Table) -> pa.Table:
        columns = []
        for each in terms:
            found = each.of(table)
            if isinstance(found, pa.Scalar):
                found = pa.repeat(found, table.num_rows)
            columns.append(found)
        return pa.Table.from_arrays(columns, schema=schema)

    return _step(("select", tuple(each.sql("spark") for each in shown)), [below], schema, work)


def _distinct(below: Step) -> Step:
    names = below.schema.names

    def work(table: pa.Table) -> pa.Table:
        return tables.grouped(table, names, [], [])

    return _step(("distinct",), [below], below.schema, work)


def _order(node: exp.Order, schema: pa.Schema) -> list[Order]:
    found = []
    for each in node.expressions:
        by = each.this if isinstance(each, exp.Ordered) else each
        while isinstance(by, exp.Paren):
            by = by.this
        if not isinstance(by, exp.Column) or schema.get_field_index(by.name) < 0:
            raise NotHere("an order by what is computed")
        if each.args.get("nulls_first") is None:
            raise NotHere("an order that does not say where nulls go")
        found.append(Order(by.name, bool(each.args.get("desc")), bool(each.args["nulls_first"])))
    return found


def _placed(name: str, window: exp.Window, below: Step) -> Step:
    _only(window, {"this", "partition_by", "order", "over"})
    function = _PLACES.get(type(window.this))
    if function is None or window.args.get("order") is None:
        raise NotHere("a window function")
    _only(window.this, set())
    order = _order(window.args["order"], below.schema)
    partition = _columns(window.args.get("partition_by") or (), below.schema)
    schema = below.schema.append(pa.field(name, pa.int32()))

    def work(table: pa.Table) -> pa.Table:
        if not table.num_rows:
            return schema.empty_table()
        numbers = tables.places(table, function, partition, order)
        return table.append_column(schema.field(name), numbers)

    return _step(("place", name, window.sql("spark")), [below], schema, work)


def _columns(nodes: Sequence[exp.Expr], schema: pa.Schema) -> list[str]:
    names = [node.name for node in nodes if isinstance(node, exp.Column) and not node.table]
    if len(names) < len(nodes) or any(schema.get_field_index(name) < 0 for name in names):
        raise NotHere("groups of what is computed")
    return names


def _ordered(node: exp.Select, below: Step) -> Step:
    clauses = {name: node.args.get(name) for name in ("order", "limit", "offset")}
    if not any(clauses.values()):
        return below
    if clauses["order"] is None:
        raise NotHere("any rows up to a limit")
    order = _order(clauses["order"], below.schema)
    limit, offset = (_count(clauses[name]) for name in ("limit", "offset"))

    def work(table: pa.Table) -> pa.Table:
        positions = tables.sorted_positions(table, order)[offset or 0 :]
        return tables.taken(table, positions if limit is None else positions[:limit])

    key = tuple("" if each is None else each.sql("spark") for each in clauses.values())
    return _step(("order", *key), [below], below.schema, work)


def _count(node: exp.Expr | None) -> int | None:
    if node is None:
        return None
    if not isinstance(node.expression, exp.Literal) or not node.expression.this.isdigit():
        raise NotHere("a limit that is computed")
    return int(node.expression.this)


# Groups


class _Lifter:
    """Takes aggregates and window functions out of expressions, and leaves columns."""

    def __init__(self) -> None:
        self.totals: dict[str, exp.Expr] = {}
        self.windows: dict[str, exp.Window] = {}

    def lift(self, node: exp.Expr) -> exp.Expr:
        return node.copy().transform(self._lifted)

    def _lifted(self, node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Window):
            name = f"{_LIFTED}{len(self.totals) + len(self.windows)}"
            self.windows[name] = node
        elif type(node) in _TOTALS:
            known = next((name for name, each in self.totals.items() if each == node), None)
            name = known or f"{_LIFTED}{len(self.totals) + len(self.windows)}"
            self.totals[name] = node
        else:
            return node
        return exp.column(name, quoted=True)


def _grouped(keys: Sequence[exp.Expr], lifter: _Lifter, below: Step) -> Step:
    names = _columns(keys, below.schema)
    arguments: list[exp.Expr] = [exp.column(name, quoted=True) for name in names]
    totals = []
    for name, call in lifter.totals.items():
        function = _TOTALS[type(call)]
        _only(call, {"this", "big_int"})
        if isinstance(call.this, exp.Star):
            totals.append(Total("count", None, pa.int64()))
            continue
        given = term(call.this, below.schema).type
        totals.append(Total(function, f"{name}_of", tables.total_type(function, given)))
        arguments.append(exp.alias_(call.this, f"{name}_of", quoted=True))
    if arguments:
        below = _projected(arguments, below)
    results = list(lifter.totals)
    schema = pa.schema(
        [
            *(below.schema.field(name) for name in names),
            *((name, each.type) for name, each in zip(results, totals, strict=True)),
        ]
    )

    def work(table: pa.Table) -> pa.Table:
        return tables.grouped(table, names, totals, results)

    return _step(("group", tuple(names), tuple(totals), tuple(results)), [below], schema, work)


# Joins


def _join(node: exp.Join, left: Step, right: Step) -> Step:
    _only(node, {"this", "side", "kind", "on"})
    kind = f"{node.side} {node.kind}".strip() or "INNER"
    if kind not in ("INNER", "LEFT", "LEFT SEMI", "LEFT ANTI"):
        raise NotHere(f"{kind} join")
    if set(left.schema.names) & set(right.schema.names):
        raise NotHere("sides that share names")
    both = pa.schema([*left.schema, *right.schema])
    equal: list[tuple[Term, Term]] = []
    rest: list[Term] = []
    safe: set[bool] = set()
    for each in _conjuncts(node.args.get("on")):
        found = _equality(each, left.schema, right.schema)
        if found is not None and len(safe | {isinstance(each, exp.NullSafeEQ)}) == 1:
            safe.add(isinstance(each, exp.NullSafeEQ))
            equal.append(found)
        elif not (isinstance(each, exp.Boolean) and each.this):
            rest.append(condition(each, both))

    indexed = len(equal) == 1 and True not in safe and KeyIndex.serves(equal[0][1].type)

    def work(a: pa.Table, b: pa.Table, index: KeyIndex | None = None) -> pa.Table:
        if index is not None:
            ours, theirs = index.pairs(_values(equal[0][0], a))
        else:
            ours, theirs = tables.pairs(
                [_values(each, a) for each, _ in equal],
                [_values(each, b) for _, each in equal],
                (a.num_rows, b.num_rows),
                null_safe=True in safe,
            )
        for each in rest:
            met = _side_by_side(a, b, ours, theirs, both)
            holds = np.asarray(pc.fill_null(_values(each, met), False))
            ours, theirs = ours[holds], theirs[holds]
        return _joined(kind, a, b, (ours, theirs), both)

    schema = left.schema if kind in ("LEFT SEMI", "LEFT ANTI") else both
    on = node.args.get("on")
    key = ("join", kind, on.sql("spark") if on else "")
    index = (lambda b: KeyIndex(_values(equal[0][1], b))) if indexed else None
    return _step(key, [left, right], schema, work, index)


def _joined(kind: str, a: pa.Table, b: pa.Table, met: tuple[Any, Any], both: pa.Schema) -> pa.Table:
    ours, theirs = met
    if kind == "INNER":
        return _side_by_side(a, b, ours, theirs, both)
    alone = np.ones(a.num_rows, dtype=np.bool_)
    alone[ours] = False
    if kind == "LEFT":
        lonely = tables.taken(a, np.flatnonzero(alone))
        nulls = [pa.nulls(lonely.num_rows, field.type) for field in b.schema]
        unmet = pa.Table.from_arrays([*lonely.columns, *nulls], schema=both)
        return pa.concat_tables([_side_by_side(a, b, ours, theirs, both), unmet]).combine_chunks()
    return a.filter(pa.array(alone if kind == "LEFT ANTI" else ~alone))


def _side_by_side(a: pa.Table, b: pa.Table, ours: Any, theirs: Any, both: pa.Schema) -> pa.Table:
    left, right = tables.taken(a, ours), tables.taken(b, theirs)
    return pa.Table.from_arrays([*left.columns, *right.columns], schema=both)


def _conjuncts(node: exp.Expr | None) -> list[exp.Expr]:
    while isinstance(node, exp.Paren):
        node = node.this
    if node is None:
        return []
    if isinstance(node, exp.And):
        return [*_conjuncts(node.left), *_conjuncts(node.right)]
    return [node]


def _equality(node: exp.Expr, left: pa.Schema, right: pa.Schema) -> tuple[Term, Term] | None:
    """The terms of both sides, when the condition says that they are equal."""
    if not isinstance(node, exp.EQ | exp.NullSafeEQ):
        return None
    for first, second in ((node.left, node.right), (node.right, node.left)):
        try:
            found = term(first, left), term(second, right)
        except NotHere:
            continue
        if any(each.constant for each in found):
            return None
        same = found[0].type == found[1].type and comparable(found[0].type, found[1].type)
        return found if same else None
    return None


def _values(each: Term, table: pa.Table) -> Any:
    found = each.of(table)
    return pa.repeat(found, table.num_rows) if isinstance(found, pa.Scalar) else found

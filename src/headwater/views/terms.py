"""The terms that deltas are sums of: joins, branches and signed rows."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from headwater.model.reserved import CHANGE_TYPE, SEQ
from headwater.model.spelling import quoted
from headwater.sql.algebra import Expression, Join, JoinKind, Output, UnionAll
from headwater.views import meaning
from headwater.views.desk import Side
from headwater.views.restriction import branch_names
from headwater.views.rows import UNKNOWN, Rows, together
from headwater.views.rows import side_by_side as pairs_of
from headwater.views.spelling import SIDES, WEIGHT, listed, names_of, null

_HASHED = "/*+ SHUFFLE_HASH(_hw_r) */"
_SENT_LEFT = "/*+ BROADCAST(_hw_l) */"
_SENT_RIGHT = "/*+ BROADCAST(_hw_r) */"


def branch_of(plan: UnionAll, number: int, rows: Rows, extra: Sequence[str]) -> Rows:
    """One input of a union all, as rows of the union."""
    names = {column: name for name, column in branch_names(plan, number).items()}
    return rows.passed(meaning.branch_sql(plan, number, rows.sql, extra), names)


def themselves(
    outputs: Sequence[Output], names: Sequence[str]
) -> tuple[tuple[Expression, Expression], ...]:
    """Columns as terms that are equal to themselves."""
    types = {output.name: output.type for output in outputs}
    columns = [Expression(quoted(name), types[name], frozenset({name})) for name in names]
    return tuple((column, column) for column in columns)


def turned(
    on: Sequence[tuple[Expression, Expression]],
) -> tuple[tuple[Expression, Expression], ...]:
    """The same terms with the sides exchanged."""
    return tuple((b, a) for a, b in on)


def swapped(join: Join, kind: JoinKind) -> Join:
    """The join of the exchanged sides, of another kind."""
    return replace(join, kind=kind, left=join.right, right=join.left, on=turned(join.on))


def joined(join: Join, left: Rows, right: Rows, extra: Sequence[str] = ()) -> Rows:
    """The join of two sides, in memory when both are there, else with the small side sent."""
    local = left.local and right.local
    hint = ""
    if local:
        hint = _HASHED if join.on else ""
    elif right.local:
        hint = _SENT_RIGHT
    elif left.local and join.kind in (JoinKind.INNER, JoinKind.RIGHT):
        hint = _SENT_LEFT
    sql = meaning.join_sql(join, left.sql, right.sql, extra, hint=hint)
    if join.kind in (JoinKind.SEMI, JoinKind.ANTI):
        origins = left.origins
    elif join.kind is JoinKind.INNER:
        origins = pairs_of(left, right)
    elif join.kind is JoinKind.LEFT:
        # The other side's columns may hold nulls that none of its rows had.
        origins = left.origins
    else:
        origins = UNKNOWN
    return Rows(sql=sql, local=local, origins=origins)


def at_side(sql: str, names: Sequence[str], side: Side) -> str:
    """Looked-up rows as they were on one side of the epoch."""
    return f"select {listed(names)} from ({sql}) where {quoted(SIDES)} & {side.value} <> 0"


def with_weight(rows: Rows, outputs: Sequence[Output], weight: int) -> Rows:
    """Rows as a delta in which all of them come, or go."""
    terms = [quoted(name) for name in names_of(outputs)]
    terms.append(f"cast({weight} as bigint) as {quoted(WEIGHT)}")
    return replace(rows, sql=f"select {', '.join(terms)} from ({rows.sql})")


def selected(rows: Rows, names: Sequence[str]) -> Rows:
    """Only these columns, in this order."""
    return replace(rows, sql=f"select {listed(names)} from ({rows.sql})")


def widened(join: Join, lonely: Rows) -> Rows:
    """Rows of the right side alone, with nulls for the left."""
    nulls = [null(output) for output in join.left.outputs]
    rest = listed([*names_of(join.right.outputs), WEIGHT])
    return Rows(
        sql=f"select {', '.join([*nulls, rest])} from ({lonely.sql})",
        local=lonely.local,
        origins=lonely.origins,
    )


def sum_of(terms: Sequence[Rows]) -> Rows | None:
    """The sum of deltas; None for none."""
    return together(terms) if terms else None


def added_up(sql: str, names: tuple[str, ...], exact: Collection[str] = ()) -> str:
    """One row per different row, with the sum of its weights, where that is not nothing.

    To Spark both zeros are one value, and grouping makes -0.0 a 0.0; `exact` columns keep theirs.
    """
    total = f"sum({quoted(WEIGHT)})"
    values = [f"any_value({quoted(n)}) as {quoted(n)}" if n in exact else quoted(n) for n in names]
    keys = [f"cast({quoted(n)} as string)" if n in exact else quoted(n) for n in names]
    return (
        f"select {', '.join(values)}, {total} as {quoted(WEIGHT)} from ({sql}) "
        f"group by {', '.join(keys)} having {total} <> 0"
    )


def changes_sql(delta: str, outputs: Sequence[Output]) -> str:
    """A delta of rows that have a key as changes with their type and order: deletes come first."""
    terms = [
        f"cast({quoted(o.name)} as {o.type.spark}) as {quoted(o.name)}"
        for o in outputs
        if o.name != WEIGHT
    ]
    comes = f"{quoted(WEIGHT)} > 0"
    terms.append(f"case when {comes} then 'insert' else 'delete' end as {CHANGE_TYPE}")
    terms.append(f"case when {comes} then 1L else 0L end as {SEQ}")
    return f"select {', '.join(terms)} from ({delta})"

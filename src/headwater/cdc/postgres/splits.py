"""Where to cut a table: bounds in the database's own order of keys, spelled by the database.

    a small table                        one split
    a large table                        a sample of pages; every n-th key of it, in key order
    a split that proved too large,       every n-th key, by counting through the index
      or `even` is off
    a table without a key                ranges of pages (ctid)

A sample follows skewed and sparse keys, any type and any collation, since the server itself sorts
it; statistics may be missing or old, and the histogram knows one column only.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headwater.cdc.external_table import Split, SplitOptions
from headwater.cdc.postgres.schema import PgTable
from headwater.errors import ConfigError
from headwater.model.spelling import sql_quoted

PLACE = ("ctid",)
"""The columns of a split by physical place."""
_SAMPLES_PER_SPLIT = 40
_SAMPLE_PAGES = 200
_MOST_PAGE = (1 << 32) - 2
_PIECES = 4

_SIZE = """
    SELECT coalesce(sum(pg_relation_size(r)), 0)::bigint,
           coalesce(sum(pg_table_size(r)), 0)::bigint,
           coalesce(sum(CASE WHEN c.reltuples < 0 THEN 0 ELSE c.reltuples END), 0)::float8,
           coalesce(sum(CASE WHEN c.reltuples < 0 THEN 0 ELSE c.relpages END), 0)::float8
    FROM (SELECT relid AS r FROM pg_partition_tree(%(oid)s::bigint::oid) WHERE isleaf
          UNION SELECT %(oid)s::bigint::oid) t
    JOIN pg_class c ON c.oid = t.r AND c.relkind = 'r'"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSize:
    """How large a table is; the rows are an estimate."""

    pages: int
    bytes: int
    rows: int

    @property
    def row_bytes(self) -> int:
        """About how many bytes a row has."""
        return max(32, self.bytes // max(self.rows, 1))


def table_size(connection: Any, table: PgTable) -> TableSize:
    """The size now, with the density that the last ANALYZE saw."""
    page = int(connection.execute("SELECT current_setting('block_size')").fetchone()[0])
    main, all_, rows, pages = connection.execute(_SIZE, {"oid": table.oid}).fetchone()
    now = main // page
    if pages:
        estimate = rows / pages * now
    else:
        # Never analyzed: what the planner does, with rows of a hundred bytes.
        estimate = main / 100
    return TableSize(pages=now, bytes=all_, rows=int(estimate))


def plan_splits(connection: Any, table: PgTable, options: SplitOptions) -> Sequence[Split]:
    """Ranges that together are the whole table."""
    size = table_size(connection, table)
    count = max(
        -(-size.rows // max(options.rows_per_split, 1)),
        -(-size.bytes // max(options.bytes_per_split, 1)),
        1,
    )
    if not table.key:
        return by_place(size, count)
    if not 0 <= options.column < len(table.key):
        raise ConfigError(
            f"{table.full_name} cannot be split by key column number {options.column}",
            detail=f"Its key, counted from 0: {', '.join(table.key)}.",
        )
    columns = table.key if options.column == 0 else (table.key[options.column],)
    if options.even and size.pages > _SAMPLE_PAGES:
        if count == 1:
            return [Split(number=0, columns=columns, rows=size.rows)]
        bounds = _sampled(connection, table, columns, count, size)
    else:
        bounds = _counted(connection, table, columns, options.rows_per_split, "true")
    rows = size.rows // (len(bounds) + 1)
    return between(columns, None, bounds, None, rows=rows)


def divide_split(connection: Any, table: PgTable, split: Split) -> Sequence[Split]:
    """A split as several of about the same number of rows; numbers are the caller's to give."""
    if split.columns == PLACE:
        return _divided_place(connection, table, split)
    where = " AND ".join(range_conditions(table, split)) or "true"
    (rows,) = connection.execute(f"SELECT count(*) FROM {table.sql_from} WHERE {where}").fetchone()
    each = max(-(-rows // _PIECES), 1)
    bounds = [
        bound
        for bound in _counted(connection, table, split.columns, each, where)
        if bound != split.left
    ]
    return between(split.columns, split.left, bounds, split.right, rows=each)


def between(
    columns: Sequence[str],
    left: tuple[str, ...] | None,
    bounds: Sequence[tuple[str, ...]],
    right: tuple[str, ...] | None,
    *,
    rows: int | None,
) -> list[Split]:
    """The splits that some bounds make."""
    edges = [left, *bounds, right]
    return [
        Split(number=number, columns=tuple(columns), left=begin, right=end, rows=rows)
        for number, (begin, end) in enumerate(itertools.pairwise(edges))
    ]


def range_conditions(table: PgTable, split: Split) -> list[str]:
    """The split's range as conditions of SQL."""
    conditions = []
    if split.left is not None:
        conditions.append(compared(table, split.columns, ">=", split.left))
    if split.right is not None:
        conditions.append(compared(table, split.columns, "<", split.right))
    return conditions


def compared(table: PgTable, columns: Sequence[str], operator: str, values: Sequence[str]) -> str:
    """A comparison of whole keys, which an index on them can answer."""
    if tuple(columns) == PLACE:
        return f"ctid {operator} {quoted_text(values[0])}::tid"
    names = ", ".join(sql_quoted(name) for name in columns)
    bounds = ", ".join(
        f"{quoted_text(value)}::{table.column(name).upstream_type}"
        for name, value in zip(columns, values, strict=True)
    )
    # A row of one is not a row: (a) is a, which is what a single column needs.
    return f"({names}) {operator} ({bounds})"


def quoted_text(text: str) -> str:
    """A literal; sessions have standard_conforming_strings on."""
    return "'" + text.replace("'", "''") + "'"


def by_place(size: TableSize, count: int) -> list[Split]:
    """Ranges of pages; the last is open, for pages that are added later."""
    step = max(-(-size.pages // count), 1)
    pages = range(step, max(size.pages, 1), step)
    bounds = [(f"({page},0)",) for page in pages]
    return between(PLACE, None, bounds, None, rows=size.rows // (len(bounds) + 1))


def _divided_place(connection: Any, table: PgTable, split: Split) -> list[Split]:
    first = int(split.left[0].strip("()").split(",")[0]) if split.left else 0
    if split.right is None:
        last = max(table_size(connection, table).pages, first + 1)
    else:
        last = int(split.right[0].strip("()").split(",")[0])
    step = max(-(-(last - first) // _PIECES), 1)
    bounds = [(f"({page},0)",) for page in range(first + step, last, step)]
    return between(PLACE, split.left, bounds, split.right, rows=None)


def _sampled(
    connection: Any, table: PgTable, columns: Sequence[str], count: int, size: TableSize
) -> list[tuple[str, ...]]:
    """Every n-th key of a sample of pages, in the server's order."""
    rows_per_page = max(size.rows / max(size.pages, 1), 1)
    pages = max(count * _SAMPLES_PER_SPLIT / rows_per_page, _SAMPLE_PAGES)
    percent = min(100.0, 100.0 * pages / max(size.pages, 1))
    sample = f"{table.sql_from} TABLESAMPLE SYSTEM ({percent:.6f}) REPEATABLE (7)"
    return _every(connection, columns, sample, "true", f"max(n) OVER () / {count}::float8")


def _counted(
    connection: Any, table: PgTable, columns: Sequence[str], rows: int, where: str
) -> list[tuple[str, ...]]:
    return _every(connection, columns, table.sql_from, where, f"{max(rows, 1)}::float8")


def _every(
    connection: Any, columns: Sequence[str], source: str, where: str, step: str
) -> list[tuple[str, ...]]:
    """The distinct keys at every `step` rows of a source."""
    names = ", ".join(sql_quoted(name) for name in columns)
    texts = ", ".join(f"picked.{sql_quoted(name)}::text" for name in columns)
    # Qualified, since a bare name in ORDER BY means the output, which is the key's text.
    order = ", ".join(f"picked.{sql_quoted(name)}" for name in columns)
    query = f"""
        SELECT {texts} FROM (
            SELECT DISTINCT {names} FROM (
                SELECT *, {step} AS step FROM (
                    SELECT {names}, row_number() OVER (ORDER BY {names}) AS n
                    FROM {source} WHERE {where}
                ) numbered
            ) stepped
            WHERE n > 1 AND floor((n - 1) / step) > floor((n - 2) / step)
        ) picked ORDER BY {order}"""
    return [tuple(row) for row in connection.execute(query).fetchall()]

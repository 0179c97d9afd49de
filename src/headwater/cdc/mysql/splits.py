"""Divide a table into ranges of its key, in the server's own order.

Integers are divided evenly between the least and the greatest, then by what the server's
optimizer estimates for each range, which it finds by a dive into the index and not by a scan:
ranges with too many rows are halved, empty neighbours are joined. All other keys, and composite
ones, are divided by walking the index with large steps: the server counts, and sends one key
per step.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from headwater.cdc.external_table import Split, SplitOptions
from headwater.cdc.mysql.connection import MySqlConnection
from headwater.cdc.mysql.keys import after, at_least, below
from headwater.cdc.mysql.schema import MySqlSchema, name_in_sql
from headwater.cdc.mysql.types import Family, MySqlColumn
from headwater.errors import ConfigError

NextKey = Callable[[str, Sequence[MySqlColumn]], tuple[str, ...] | None]
"""Runs a query for one key; gives it as text."""

_PARTS = 4
_MOST_EVEN = 100_000


@dataclass(frozen=True, slots=True)
class Divider:
    """What it takes to divide one table."""

    connection: MySqlConnection
    schema: MySqlSchema
    next_key: NextKey

    def splits(self, options: SplitOptions) -> list[Split]:
        """Ranges that together are the whole table, in key order."""
        wanted = max(
            1, min(options.rows_per_split, options.bytes_per_split // self.schema.row_bytes)
        )
        if not 0 <= options.column < len(self.schema.key):
            raise ConfigError(
                f"a table cannot be divided by key column {options.column}",
                detail=f'The key of "{self.schema.name}" is ({", ".join(self.schema.key)}), '
                "counted from 0.",
            )
        column = self.schema.key_columns[options.column]
        single = len(self.schema.key) == 1 or options.column > 0
        if single and column.family is Family.INTEGER and (options.even or options.column > 0):
            found = self._even(column, wanted)
        elif options.column > 0:
            raise ConfigError(f'a table can be divided by "{column.name}" only if it is an integer')
        else:
            found = list(self._walk(Split(number=0, columns=self.schema.key), wanted))
        return _numbered(found)

    def divide(self, split: Split) -> list[Split]:
        """A split as several, numbered from 0; the caller gives them numbers of its own."""
        rows = self._estimate(split)
        return _numbered(self._walk(split, max(1, rows // _PARTS)))

    def condition(self, split: Split) -> str:
        """Which rows belong to a split."""
        columns = [self.schema[name] for name in split.columns]
        parts = []
        if split.left is not None:
            parts.append(at_least(columns, split.left))
        if split.right is not None:
            parts.append(below(columns, split.right))
        return " AND ".join(f"({part})" for part in parts) or "TRUE"

    def _walk(self, split: Split, step: int) -> Iterator[Split]:
        """Bounds by counting: a short query for each."""
        columns = [self.schema[name] for name in split.columns]
        listed = ", ".join(name_in_sql(column.name) for column in columns)
        left, inside = split.left, self.condition(split)
        while True:
            start = "TRUE" if left is None else after(columns, left)
            # With fewer columns than the key, equal values must stay in one range.
            distinct = "DISTINCT " if len(columns) < len(self.schema.key) else ""
            bound = self.next_key(
                f"SELECT {distinct}{listed} FROM {self._from()} WHERE ({start}) AND ({inside}) "
                f"ORDER BY {listed} LIMIT 1 OFFSET {step if left is None else step - 1}",
                columns,
            )
            if bound is None:
                yield replace(split, left=left, rows=step)
                return
            yield replace(split, left=left, right=bound, rows=step)
            left = bound

    def _even(self, column: MySqlColumn, wanted: int) -> list[Split]:
        name = name_in_sql(column.name)
        row = self.connection.query(f"SELECT MIN({name}), MAX({name}) FROM {self._from()}")[0]
        if row[0] is None:
            return [Split(number=0, columns=(column.name,), rows=0)]
        least, greatest = int(row[0]), int(row[1])
        count = min(max(1, self.schema.rows // wanted), _MOST_EVEN, greatest - least + 1)
        width = -(-(greatest - least + 1) // count)
        pieces: list[tuple[int, int, int]] = []
        for left in range(least, greatest + 1, width):
            self._halve(column, left, min(left + width, greatest + 1), wanted, pieces)
        return _joined(column, pieces, wanted)

    def _halve(
        self,
        column: MySqlColumn,
        left: int,
        right: int,
        wanted: int,
        pieces: list[tuple[int, int, int]],
    ) -> None:
        rows = self._estimate(
            Split(number=0, columns=(column.name,), left=(str(left),), right=(str(right),))
        )
        if rows <= 2 * wanted or right - left < 2:
            pieces.append((left, right, rows))
            return
        middle = (left + right) // 2
        self._halve(column, left, middle, wanted, pieces)
        self._halve(column, middle, right, wanted, pieces)

    def _estimate(self, split: Split) -> int:
        form = "" if self.connection.mariadb else "FORMAT=TRADITIONAL "
        # Not with a forced index: MySQL then does not look into it.
        row = self.connection.row(
            f"EXPLAIN {form}SELECT 1 FROM {self._table()} WHERE {self.condition(split)}"
        )
        return int(row.get("rows") or 0)

    def _from(self) -> str:
        return f"{self._table()} FORCE INDEX (PRIMARY)"

    def _table(self) -> str:
        return f"{name_in_sql(self.schema.database)}.{name_in_sql(self.schema.table)}"


def _joined(column: MySqlColumn, pieces: list[tuple[int, int, int]], wanted: int) -> list[Split]:
    """Small neighbours as one; the first and the last range are open."""
    merged: list[tuple[int, int, int]] = []
    for left, right, rows in pieces:
        if merged and merged[-1][2] + rows <= wanted:
            merged[-1] = (merged[-1][0], right, merged[-1][2] + rows)
        else:
            merged.append((left, right, rows))
    last = len(merged) - 1
    return [
        Split(
            number=place,
            columns=(column.name,),
            left=(str(left),) if place else None,
            right=(str(right),) if place < last else None,
            rows=rows,
        )
        for place, (left, right, rows) in enumerate(merged)
    ]


def _numbered(splits: Iterator[Split] | Sequence[Split]) -> list[Split]:
    return [replace(split, number=place) for place, split in enumerate(splits)]

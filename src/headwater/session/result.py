"""What `sql` gives in Python: the rows of a query, or what became of a statement.

A result shows itself: as a table in a notebook, as text at a prompt. The result of a query also
is its Spark DataFrame: every method of one can be called on it.
"""

import html
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headwater.errors import NotSupported, UserError
from headwater.pgwire.session import Done, ResultColumn, Rows, StatementResult
from headwater.pgwire.text import text_of
from headwater.runtime.spark_errors import explained

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SHOWN_ROWS = 20
_WIDEST = 40


@dataclass
class Result:
    """The outcome of one statement."""

    tag: str
    columns: tuple[ResultColumn, ...]
    frame: "DataFrame | None" = None
    table: pa.Table | None = None
    notices: tuple[str, ...] = field(default=())

    def arrow(self) -> pa.Table:
        """All rows as an Arrow table, in this process."""
        if self.table is None:
            if self.frame is None:
                return pa.table({})
            try:
                self.table = self.frame.toArrow()
            except Exception as error:
                raise explained(error) from error
        return self.table

    def rows(self) -> list[tuple[Any, ...]]:
        """All rows as tuples, in this process."""
        columns = [column.to_pylist() for column in self.arrow().columns]
        return list(zip(*columns, strict=True))

    def __getattr__(self, name: str) -> Any:
        # Only what is not found here comes here.
        if name.startswith("_") or self.frame is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.frame, name)

    def __repr__(self) -> str:
        if not self.columns:
            return "\n".join([*self.notices, self.tag])
        names, rows, more = self._shown()
        widths = [max(len(r[i]) for r in [names, *rows]) for i in range(len(names))]
        lines = [" | ".join(n.ljust(w) for n, w in zip(names, widths, strict=True))]
        lines.append("-+-".join("-" * w for w in widths))
        lines += [" | ".join(v.ljust(w) for v, w in zip(row, widths, strict=True)) for row in rows]
        return "\n".join(line.rstrip() for line in [*lines, more])

    def _repr_html_(self) -> str:
        if not self.columns:
            return f"<pre>{html.escape(repr(self))}</pre>"
        names, rows, more = self._shown()
        head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(value)}</td>" for value in row) + "</tr>"
            for row in rows
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{more}</p>"

    def _shown(self) -> tuple[list[str], list[list[str]], str]:
        if self.table is None and self.frame is not None:
            try:
                first = self.frame.limit(_SHOWN_ROWS + 1).toArrow()
            except Exception as error:
                raise explained(error) from error
        else:
            first = self.arrow()
        shown = first.slice(0, _SHOWN_ROWS)
        texts = [
            text_of(column.combine_chunks(), described.type).to_pylist()
            for column, described in zip(shown.columns, self.columns, strict=True)
        ]
        rows = [[_cut(value) for value in row] for row in zip(*texts, strict=True)]
        if first.num_rows > _SHOWN_ROWS:
            return [c.name for c in self.columns], rows, f"(the first {_SHOWN_ROWS} rows)"
        word = "row" if len(rows) == 1 else "rows"
        return [c.name for c in self.columns], rows, f"({len(rows)} {word})"


def _cut(value: str | None) -> str:
    if value is None:
        return "NULL"
    return value if len(value) <= _WIDEST else value[: _WIDEST - 1] + "…"


async def gathered(outcome: StatementResult) -> Result:
    """A result of the protocol, with all of its rows."""
    if isinstance(outcome, Done):
        return Result(outcome.tag, (), notices=tuple(n.message for n in outcome.notices))
    if not isinstance(outcome, Rows):
        raise NotSupported("COPY needs a client of the wire protocol", hint="Use INSERT.")
    batches = [batch async for batch in outcome.batches]
    names = [f"c{place}" for place in range(len(outcome.columns))]
    renamed = [batch.rename_columns(names) for batch in batches]
    schema = pa.schema([(n, c.type.arrow) for n, c in zip(names, outcome.columns, strict=True)])
    table = pa.Table.from_batches(renamed) if renamed else schema.empty_table()
    return Result(outcome.tag.strip(), outcome.columns, table=table)


def literal_text(value: object) -> str | None:
    """A Python value as PostgreSQL reads it in a literal."""
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case str() | int() | float() | Decimal():
            return str(value)
        case bytes():
            return "\\x" + value.hex()
        case list() | tuple():
            inner = ("NULL" if v is None else _element(literal_text(v) or "") for v in value)
            return "{" + ",".join(inner) + "}"
        case _ if hasattr(value, "isoformat"):
            text: str = value.isoformat()
            return text
        case _:
            raise UserError(f"a parameter cannot be a {type(value).__name__}")


def _element(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'

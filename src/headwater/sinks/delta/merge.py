"""An upsert into a Delta table, as one MERGE that delta-rs commits.

Staged parts hold the rows under names of our own (`op`, `c0`, `c1`, ...), so that only the
target's names have to be quoted. Keys that hold a null are equal to each other here, which SQL's
`=` does not say. NaN is one key, and both zeros are; the sum keeps files from being left out by
bounds in which the zeros differ.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable

from headwater.model.change import RowOp
from headwater.model.schema import Column
from headwater.model.types import Kind

_IN_MEMORY_ROWS = 200_000
"""Up to so many rows are read at once, so that their bounds say which files can be skipped."""


def staged_schema(columns: Sequence[Column]) -> pa.Schema:
    """The columns of a staged part."""
    fields = [pa.field(f"c{place}", column.type.arrow) for place, column in enumerate(columns)]
    return pa.schema([pa.field("op", pa.int8()), *fields])


def merge(  # noqa: PLR0913  what is merged, where to, and how it is committed
    table: DeltaTable,
    source: pa.RecordBatchReader,
    columns: Sequence[Column],
    key: Sequence[str],
    *,
    rows: int,
    null_keys: bool,
    commit: CommitProperties,
) -> bool:
    """Set and delete rows by key; False where nothing changed, and so nothing was committed."""
    places = {column.name: place for place, column in enumerate(columns)}
    same = " AND ".join(
        _same(columns[places[name]], f"s.c{places[name]}", null_keys=null_keys) for name in key
    )
    values: Mapping[str, str] = {_quoted(name): f"s.c{place}" for name, place in places.items()}
    told: dict[str, Any] = (
        table.merge(
            source,
            same,
            source_alias="s",
            target_alias="t",
            streamed_exec=rows > _IN_MEMORY_ROWS,
            commit_properties=commit,
        )
        .when_matched_delete(f"s.op = {RowOp.DELETE}")
        .when_matched_update(dict(values), predicate=f"s.op = {RowOp.INSERT}")
        .when_not_matched_insert(dict(values), predicate=f"s.op = {RowOp.INSERT}")
        .execute()
    )
    return bool(told["num_target_files_added"] or told["num_target_files_removed"])


def _same(column: Column, source: str, *, null_keys: bool) -> str:
    target = f"t.{_quoted(column.name)}"
    if column.type.kind in (Kind.REAL, Kind.DOUBLE):
        target, source = f"{target} + 0.0", f"{source} + 0.0"
    return f"({target} IS NOT DISTINCT FROM {source})" if null_keys else f"{target} = {source}"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'

"""What an INSERT of a key that exists does, as the table was told when it was created.

    rule                 the row that exists      two rows of one key in one INSERT
    update               is replaced              the last one counts
    nothing              stays                    the first one counts
    update if not null   takes the new values     each takes the new values of the next that
                         that are not null        are not null
    error                is an error, 23505,      are an error
                         and nothing is written

All but the first need the rows that exist, so the caller holds the lock under which nobody else
writes, and has made everything visible that was written before. Few rows are looked up by their
keys and decided here; many are joined with the table in Spark. Either way plain rows come out,
which replace what is there.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headwater.catalog.relation import TableDef
from headwater.errors import NotSupported
from headwater.model.change import ChangeType
from headwater.model.epoch import Epoch
from headwater.model.ids import TableId
from headwater.model.reserved import CHANGE_TYPE, SEQ
from headwater.model.spelling import quoted
from headwater.runtime.engine import Engine
from headwater.runtime.spark_errors import explained
from headwater.session.writes.spill import Gathered, Spill, gather, select_columns
from headwater.session.writes.target import key_taken
from headwater.sql.statement import Conflict
from headwater.state.key_hash import exact_keys

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Existing:
    """Rows that exist, and where each key's is."""

    rows: pa.Table
    places: Mapping[Key, int]


def look_up(
    engine: Engine,
    table: TableDef,
    keys: pa.Table,
    epoch: Epoch,
    written: "Iterable[Mapping[TableId, pa.Table | DataFrame]]" = (),
) -> Existing:
    """The rows of some keys, after what an open transaction has `written`. Blocking."""
    schema = table.schema
    first = {key: place for place, key in reversed(list(enumerate(keys_of(keys, table))))}
    distinct = keys.take(pa.array(sorted(first.values()), pa.int64()))
    found = engine.store[table.id].lookup(distinct, epoch).select(list(schema.names))
    places = {key: place for place, key in enumerate(keys_of(found, table))}
    parts = [found]
    for write in written:
        changes = write.get(table.id)
        if changes is None:
            continue
        if not isinstance(changes, pa.Table):
            refuse_written(table, (write,))
            continue
        rows = changes.select(list(schema.names)).cast(schema.arrow)
        offset = sum(part.num_rows for part in parts)
        kinds = changes.column(CHANGE_TYPE).to_pylist()
        for place, (key, kind) in enumerate(zip(keys_of(rows, table), kinds, strict=True)):
            if ChangeType(kind).adds:
                places[key] = offset + place
            else:
                places.pop(key, None)
        parts.append(rows)
    return Existing(pa.concat_tables(parts), places)


def refuse_written(
    table: TableDef, written: "Iterable[Mapping[TableId, pa.Table | DataFrame]]"
) -> None:
    """Refuse a table that the open transaction has written: its rows are not visible yet."""
    if any(table.id in write for write in written):
        raise NotSupported(
            f'table "{table.name}" was written in this transaction already',
            detail="What a transaction writes becomes visible when it is committed.",
            hint="COMMIT first.",
        )


def keys_of(rows: pa.Table, table: TableDef) -> list[Key]:
    """Each row's key, as values that are equal exactly when the keys are."""
    return list(exact_keys(rows, table.schema.key_columns)) if rows.num_rows else []


def resolve(rows: pa.Table, table: TableDef, rule: Conflict, existing: Existing) -> pa.Table:
    """The rows that an INSERT of few rows leaves, under a rule that needs those that exist."""
    match rule:
        case Conflict.NOTHING:
            return _first_new(rows, table, existing)
        case Conflict.ERROR:
            kept = _first_new(rows, table, existing)
            if kept.num_rows < rows.num_rows:
                raise key_taken(table, _first_clash(rows, table, existing))
            return kept
        case Conflict.UPDATE_IF_NOT_NULL:
            return _merged(rows, table, existing)
        case Conflict.UPDATE:
            return rows


def _first_new(rows: pa.Table, table: TableDef, existing: Existing) -> pa.Table:
    seen = set(existing.places)
    kept = []
    for place, key in enumerate(keys_of(rows, table)):
        if key not in seen:
            seen.add(key)
            kept.append(place)
    return rows if len(kept) == rows.num_rows else rows.take(pa.array(kept, pa.int64()))


def _first_clash(rows: pa.Table, table: TableDef, existing: Existing) -> pa.Table:
    seen = set(existing.places)
    for place, key in enumerate(keys_of(rows, table)):
        if key in seen:
            return rows.slice(place, 1)
        seen.add(key)
    raise AssertionError("there is no clash")


def _merged(rows: pa.Table, table: TableDef, existing: Existing) -> pa.Table:
    """Each row with the values before it where its own are null.

    Per column, `sources` has for each key the place of the value that counts, in the existing
    rows followed by the new ones. One row comes out for each that went in.
    """
    both = pa.concat_tables([existing.rows, rows.select(existing.rows.column_names)])
    offset = existing.rows.num_rows
    keys = keys_of(rows, table)
    columns = []
    for name in both.column_names:
        values = both.column(name)
        valid = np.asarray(values.is_valid())
        sources = dict(existing.places)
        chosen = np.empty(len(keys), dtype=np.int64)
        for place, key in enumerate(keys, offset):
            if valid[place] or key not in sources:
                sources[key] = place
            chosen[place - offset] = sources[key]
        columns.append(values.take(pa.array(chosen)))
    return pa.Table.from_arrays(columns, names=both.column_names)


def resolve_spill(
    engine: Engine, rows: Spill, table: TableDef, rule: Conflict, epoch: Epoch
) -> Gathered:
    """The same for many rows, in Spark; the files that went in are deleted. Blocking."""
    names = [column.name for column in rows.columns]
    try:
        frame = rows.frame(engine.spark())
        stored = engine.store[table.id].frame(epoch)
        match rule:
            case Conflict.ERROR:
                taken = clash(frame, stored, table)
                if taken.num_rows:
                    raise key_taken(table, taken)
                return rows
            case Conflict.NOTHING:
                kept = _without_existing(frame, stored, table)
            case _:
                kept = _not_null_merged(frame, stored, table, names)
    except Exception as error:
        raise explained(error) from error
    # The rows are computed now: when their epoch is staged, this one may be gone.
    result = gather(engine, select_columns(kept, [*names, SEQ]), rows.columns, parts=rows.parts)
    rows.remove()
    return result


def clash(frame: "DataFrame", stored: "DataFrame", table: TableDef) -> pa.Table:
    """A key that is there twice, or in the table already."""
    key = list(table.schema.key)
    keys = select_columns(frame, key)
    twice = keys.groupBy(*_columns(key)).count().where("count > 1")
    taken = keys.join(select_columns(stored, key), key, "left_semi")
    found = select_columns(twice, key).unionAll(select_columns(taken, key)).limit(1).toArrow()
    return found.cast(pa.schema([(c.name, c.type.arrow) for c in table.schema.key_columns]))


def _without_existing(frame: "DataFrame", stored: "DataFrame", table: TableDef) -> "DataFrame":
    """The first row of each key that the table does not have."""
    from pyspark.sql import Window  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: PLC0415

    key = list(table.schema.key)
    new = frame.join(select_columns(stored, key), key, "left_anti")
    first = F.row_number().over(Window.partitionBy(*_columns(key)).orderBy(SEQ))
    return new.withColumn("_hw_rank", first).where("_hw_rank = 1").drop("_hw_rank")


def _not_null_merged(
    frame: "DataFrame", stored: "DataFrame", table: TableDef, names: list[str]
) -> "DataFrame":
    """The last value of each column that is not null, the stored one where all are."""
    from pyspark.sql import functions as F  # noqa: PLC0415

    key = list(table.schema.key)
    others = [name for name in names if name not in key]
    last = [
        F.expr(f"max_by({quoted(name)}, `{SEQ}`) filter (where {quoted(name)} is not null)").alias(
            f"_hw_new_{place}"
        )
        for place, name in enumerate(others)
    ]
    merged = frame.groupBy(*_columns(key)).agg(F.max(SEQ).alias(SEQ), *last)
    old = stored.toDF(*[c if c in key else f"_hw_old_{c}" for c in stored.columns])
    joined = merged.join(old, key, "left")
    values = [
        F.coalesce(F.col(f"_hw_new_{place}"), F.col(quoted(f"_hw_old_{name}"))).alias(name)
        for place, name in enumerate(others)
    ]
    return joined.select(*_columns(key), *values, SEQ)


def _columns(names: list[str]) -> "list[Any]":
    from pyspark.sql import functions as F  # noqa: PLC0415

    return [F.col(quoted(name)) for name in names]

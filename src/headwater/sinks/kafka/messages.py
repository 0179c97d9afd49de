"""From rows to messages: FORMAT says which, ENCODE how they are written.

    format     takes         an insert     an update      a delete
    PLAIN      append-only   the row       -              -
    UPSERT     upsert        the row       the row        the key with a null value
    DEBEZIUM   retract       op c, after   op u, both     op d, before; then the key with a null
                                                          value, so that compaction forgets it

A key is made of the columns of `primary_key`, in their order. The same key is always written as
the same bytes, which is what keeps it in one partition.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import BrokenInvariant, ConfigError, UserError
from headwater.model.change import RowOp
from headwater.model.epoch import epoch_millis
from headwater.model.schema import Column
from headwater.sinks.kafka.json_rows import JsonStyle, joined, json_rows, json_text
from headwater.sinks.sink import Batches, Delivery, SinkKind, SinkSpec

FORMATS = {
    SinkKind.APPEND_ONLY: "PLAIN",
    SinkKind.UPSERT: "UPSERT",
    SinkKind.RETRACT: "DEBEZIUM",
}
_TYPES = {"PLAIN": "append-only", "UPSERT": "upsert", "DEBEZIUM": "retract"}
_OPS = pa.array(["", "c", "d", "u"])
"""By `RowOp`."""
ROWS_AT_ONCE = 16_384
"""Small enough for its texts to stay in the processor's cache."""

Messages = tuple[list[bytes | None], list[bytes | None]]
"""Keys and values, in order."""


def checked_format(spec: SinkSpec) -> str:
    """FORMAT, checked against what the sink takes."""
    format_ = spec.encoding.format.upper() or FORMATS[spec.kind]
    if format_ not in _TYPES:
        raise ConfigError(
            f'connector "kafka" has no FORMAT {format_}', hint="Use PLAIN, UPSERT or DEBEZIUM."
        )
    if FORMATS[spec.kind] != format_:
        raise ConfigError(
            f"FORMAT {format_} takes a sink of type {_TYPES[format_]}, "
            f'and "{spec.name}" is {spec.kind.value}',
            hint=f"Use FORMAT {FORMATS[spec.kind]}, or type = '{_TYPES[format_]}'.",
        )
    if format_ != "PLAIN" and not spec.key:
        raise ConfigError(
            f"primary key not defined: FORMAT {format_} needs one",
            hint="Add primary_key = 'column, ...' to WITH.",
        )
    return format_


@dataclass(frozen=True, slots=True, kw_only=True)
class RowColumns:
    """The columns of a sink's rows, and of their key."""

    sink: str
    all: tuple[Column, ...]
    key: tuple[Column, ...]

    @classmethod
    def of(cls, spec: SinkSpec) -> Self:
        """What a user has asked for."""
        named = {column.name: column for column in spec.columns}
        return cls(sink=spec.name, all=spec.columns, key=tuple(named[name] for name in spec.key))


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelopes:
    """What Debezium's envelopes are made of, a place in each list for each message."""

    rows: pa.RecordBatch
    before: Any
    """Numbers of rows; null for none."""
    after: Any
    ops: Any
    delivery: Delivery


class Encoder(Protocol):
    """How messages are written."""

    def open(self) -> None:
        """Get ready: register schemas. Replay: they are there already."""
        ...

    def keys(self, rows: pa.RecordBatch) -> Any:
        """Keys, as a column of bytes."""
        ...

    def values(self, rows: pa.RecordBatch) -> Any:
        """Values, as a column of bytes."""
        ...

    def envelopes(self, parts: Envelopes) -> Any:
        """Debezium's envelopes, as a column of bytes."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonEncoder:
    """Messages as JSON."""

    columns: RowColumns
    style: JsonStyle

    def open(self) -> None:
        """Nothing to get ready."""

    def keys(self, rows: pa.RecordBatch) -> Any:
        """As `{"id":1}`."""
        return _bytes(json_rows(self.columns.key, _arrays(rows, self.columns.key), self.style))

    def values(self, rows: pa.RecordBatch) -> Any:
        """As `{"id":1,"name":"ann"}`."""
        return _bytes(self._rows(rows))

    def envelopes(self, parts: Envelopes) -> Any:
        """As `{"before":null,"after":{...},"op":"c","ts_ms":...,"source":{...}}`."""
        texts = self._rows(parts.rows)
        before = texts.take(parts.before).fill_null("null")
        after = texts.take(parts.after).fill_null("null")
        millis, epoch = epoch_millis(parts.delivery.epoch), parts.delivery.epoch
        end = (
            f'","ts_ms":{millis},"source":{{"connector":"headwater","name":{json_text(self.columns.sink)},'
            f'"ts_ms":{millis},"epoch":"{epoch}"}}}}'
        )
        return _bytes(
            joined('{"before":', before, ',"after":', after, ',"op":"', parts.ops, pa.scalar(end))
        )

    def _rows(self, rows: pa.RecordBatch) -> Any:
        return json_rows(self.columns.all, _arrays(rows, self.columns.all), self.style)


def messages(
    spec: SinkSpec, format_: str, encoder: Encoder, delivery: Delivery, batches: Batches
) -> Iterator[Messages]:
    """All messages of a delivery, some thousands at a time."""
    for rows in _pieces(batches):
        _no_null_key(spec, rows)
        ops = rows.column(0)
        if format_ == "DEBEZIUM":
            yield _debezium(rows, encoder, delivery)
        elif format_ == "UPSERT":
            yield _upserts(rows, ops, encoder)
        elif spec.key:
            yield encoder.keys(rows).to_pylist(), encoder.values(rows).to_pylist()
        else:
            yield [None] * rows.num_rows, encoder.values(rows).to_pylist()


def _upserts(rows: pa.RecordBatch, ops: Any, encoder: Encoder) -> Messages:
    adds = pc.equal(ops, int(RowOp.INSERT))
    kept = pc.sum(adds).as_py() or 0
    keys = encoder.keys(rows)
    if kept == rows.num_rows:
        return keys.to_pylist(), encoder.values(rows).to_pylist()
    # Of a row that is deleted only the key counts: its other columns may be anything.
    values = encoder.values(rows.filter(adds)).to_pylist() if kept else []
    if pc.all(pc.invert(adds.slice(0, rows.num_rows - kept))).as_py():
        return keys.to_pylist(), [None] * (rows.num_rows - kept) + values
    following = iter(values)
    return keys.to_pylist(), [next(following) if add else None for add in adds.to_pylist()]


def _debezium(rows: pa.RecordBatch, encoder: Encoder, delivery: Delivery) -> Messages:
    ops = rows.column(0).to_numpy(zero_copy_only=False)
    places = np.flatnonzero(ops != RowOp.UPDATE_DELETE)
    kinds = ops[places]
    updates, deletes = kinds == RowOp.UPDATE_INSERT, kinds == RowOp.DELETE
    keys = encoder.keys(rows)
    _pairs_match(ops, places[updates], keys)
    values = encoder.envelopes(
        Envelopes(
            rows=rows,
            before=pa.array(places - updates, mask=kinds == RowOp.INSERT),
            after=pa.array(places, mask=deletes),
            ops=_OPS.take(pa.array(kinds)),
            delivery=delivery,
        )
    )
    keys = keys.take(pa.array(places))
    if not deletes.any():
        return keys.to_pylist(), values.to_pylist()
    # Each delete is followed by its key with no value.
    again = np.repeat(np.arange(len(places)), 1 + deletes)
    tombstones = np.zeros(len(again), dtype=np.bool_)
    tombstones[1:] = again[1:] == again[:-1]
    return (
        keys.take(pa.array(again)).to_pylist(),
        values.take(pa.array(again, mask=tombstones)).to_pylist(),
    )


def _pairs_match(ops: Any, news: Any, keys: Any) -> None:
    olds = news - 1
    if (
        (olds < 0).any()
        or (ops[olds] != RowOp.UPDATE_DELETE).any()
        or len(olds) != np.count_nonzero(ops == RowOp.UPDATE_DELETE)
        or not keys.take(pa.array(olds)).equals(keys.take(pa.array(news)))
    ):
        raise BrokenInvariant("the old and the new row of an update do not stand side by side")


def _pieces(batches: Batches) -> Iterator[pa.RecordBatch]:
    """Cut large batches, and never between the two rows of an update."""
    held: pa.RecordBatch | None = None
    for batch in batches:
        at = 0
        while at < batch.num_rows:
            piece = batch.slice(at, ROWS_AT_ONCE)
            at += piece.num_rows
            if held is not None:
                piece, held = _stacked(held, piece), None
            if piece.column(0)[-1].as_py() == RowOp.UPDATE_DELETE:
                held = piece.slice(piece.num_rows - 1)
                piece = piece.slice(0, piece.num_rows - 1)
            if piece.num_rows:
                yield piece
    if held is not None:
        raise BrokenInvariant("a delivery ends with the old row of an update")


def _stacked(first: pa.RecordBatch, second: pa.RecordBatch) -> pa.RecordBatch:
    return pa.Table.from_batches([first, second]).combine_chunks().to_batches()[0]


def _no_null_key(spec: SinkSpec, rows: pa.RecordBatch) -> None:
    for name in spec.key:
        column = rows.column(name)
        if not column.null_count:
            continue
        row = rows.slice(pc.index(pc.is_null(column), True).as_py(), 1)
        others = {other: row.column(other)[0].as_py() for other in spec.key}
        raise UserError(
            f'column "{name}" of the key of sink "{spec.name}" is null',
            detail=f"Key: {', '.join(f'{other} = {value}' for other, value in others.items())}.",
            hint="Kafka needs a key for every row: choose other columns with primary_key, "
            "or leave such rows out.",
        )


def _arrays(rows: pa.RecordBatch, columns: Sequence[Column]) -> list[Any]:
    return [rows.column(column.name) for column in columns]


def _bytes(texts: Any) -> Any:
    return texts.view(pa.binary())

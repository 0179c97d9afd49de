"""Rows in files of the log: by (vnode, epoch, seq_id), with what happens to each.

    layout   key                    columns of the file
    v1       epoch, seq_id          seq_id | row_op | the sink's columns;        rows in seq order
    v2       vnode, epoch, seq_id   seq_id | vnode | row_op | the sink's columns; rows by vnode

A file is an Arrow IPC file, compressed by lz4. It is cut into batches where a vnode ends, and its
metadata says which vnodes each batch has, so that a reader of some vnodes reads little more than
its own. The epoch of a file is the same for all its rows and stands once in the metadata, as a
signed number with the top bit flipped, which keeps the order of unsigned ones. `seq_id` counts from
0 in each file; the log says with which number a file begins (`Segment.first_seq`).

    row_op   1 insert   2 delete   3 update insert   4 update delete   5 barrier
             6 checkpoint barrier

Barriers are no rows of a file: they stand in the log's end (`state.py`), so an epoch without rows
writes no file. New files have layout v2; v1 is read as well, and rewritten when a log is opened.

Promises
    Columnar    No Python per row; a million rows are written or read in a fraction of a second.
    Anywhere    `write_segment` and `read_segment` are plain functions with picklable arguments.
    Checked     A file that is missing, cut short or not what its segment says is `DamagedState`.
"""

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.errors import BrokenInvariant, DamagedState
from headwater.logstore.items import OP, VNODE, Lender, Segment
from headwater.logstore.storage import LogStorage, Origin
from headwater.model.change import RowOp
from headwater.model.epoch import Epoch
from headwater.model.ids import Term
from headwater.model.vnode import VNODE_COUNT, VnodeBitmap

EPOCH_COLUMN = "kv_log_store_epoch"
SEQ_COLUMN = "kv_log_store_seq_id"
VNODE_COLUMN = "kv_log_store_vnode"
OP_COLUMN = "kv_log_store_row_op"

VnodeOf = Callable[[pa.Table], npt.NDArray[np.int16]]
"""The vnodes of rows, from their columns; `OP` is among them."""

_BATCH_ROWS = 16_384
"""From so many rows on a batch ends with the next vnode."""
_LARGEST_BATCH = 4 * _BATCH_ROWS
_WORTH_THREADS = 1 << 20
"""Below so many bytes handing work to other threads takes longer than the work."""
_META = b"headwater.log"
_SIGN = 1 << 63


class Layout(IntEnum):
    """The version of a file's columns and order."""

    V1 = 1
    V2 = 2


class BarrierOp(IntEnum):
    """What stands for a barrier where rows have a `RowOp`."""

    BARRIER = 5
    CHECKPOINT_BARRIER = 6


def stored_epoch(epoch: Epoch) -> int:
    """An unsigned epoch as a signed number that sorts the same way."""
    return epoch - _SIGN


def loaded_epoch(stored: int) -> Epoch:
    """The epoch that `stored_epoch` was given."""
    return Epoch(stored + _SIGN)


@dataclass(frozen=True, slots=True)
class SortedRows:
    """Rows by vnode, and where each of them stood before."""

    table: pa.Table
    seq: npt.NDArray[np.int32]

    @classmethod
    def of(cls, rows: pa.Table) -> "SortedRows":
        """Sort rows by vnode; those of one vnode stay in their order."""
        rows = rows.combine_chunks()
        vnodes = _numbers(rows[VNODE])
        if len(vnodes) < 2 or bool((vnodes[1:] >= vnodes[:-1]).all()):
            return cls(rows, np.arange(len(vnodes), dtype=np.int32))
        order = np.argsort(vnodes, kind="stable")
        return cls(rows.take(pa.array(order)).combine_chunks(), order.astype(np.int32))

    @property
    def vnodes(self) -> VnodeBitmap:
        """Which vnodes there are rows of."""
        return VnodeBitmap.of(np.flatnonzero(_counts(self.table)).tolist())


@dataclass(frozen=True, slots=True)
class LogStoreRowSerde:
    """Rows to the bytes of a file and back, in one layout."""

    layout: Layout = Layout.V2

    def encode(self, rows: SortedRows, epoch: Epoch) -> pa.Buffer:
        """The file of some rows of one epoch."""
        stored = self._stored(rows)
        cuts = [] if self.layout is Layout.V1 else list(_cuts(_counts(rows.table)))
        about = {
            "layout": int(self.layout),
            "epoch": stored_epoch(epoch),
            "rows": stored.num_rows,
            "batches": cuts,
        }
        schema = stored.schema.with_metadata({_META: json.dumps(about).encode()})
        sizes = [rows for _, _, rows in cuts] or _even(stored.num_rows)
        sink = pa.BufferOutputStream()
        threads = stored.nbytes > _WORTH_THREADS
        options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=threads)
        with pa.ipc.new_file(sink, schema, options=options) as writer:
            for begin, size in zip(itertools.accumulate(sizes, initial=0), sizes, strict=False):
                (batch,) = stored.slice(begin, size).combine_chunks().to_batches()
                writer.write_batch(batch)
        return sink.getvalue()

    def _stored(self, rows: SortedRows) -> pa.Table:
        columns = [pa.array(rows.seq), rows.table[VNODE], rows.table[OP]]
        names = [SEQ_COLUMN, VNODE_COLUMN, OP_COLUMN]
        if self.layout is Layout.V1:
            del columns[1], names[1]
        payload = [name for name in rows.table.column_names if name not in (OP, VNODE)]
        columns += [rows.table[name] for name in payload]
        stored = pa.Table.from_arrays(columns, names=[*names, *payload])
        if self.layout is Layout.V2:
            return stored
        return stored.take(pa.array(np.argsort(rows.seq, kind="stable")))

    @staticmethod
    def decode(
        file: pa.ipc.RecordBatchFileReader,
        vnodes: VnodeBitmap | None = None,
        vnode_of: VnodeOf | None = None,
    ) -> tuple[pa.Table, dict[str, Any]]:
        """Rows of some vnodes, by vnode, with their key; and what the file says of itself."""
        about: dict[str, Any] = json.loads(file.schema.metadata[_META])
        layout = Layout(about["layout"])
        batches = list(range(file.num_record_batches))
        if layout is Layout.V2 and vnodes is not None:
            wanted = zip(batches, about["batches"], strict=True)
            batches = [n for n, (low, high, _) in wanted if _any_between(vnodes, low, high)]
        table = pa.Table.from_batches([file.get_batch(n) for n in batches], schema=file.schema)
        table = table.replace_schema_metadata(None)
        if layout is Layout.V1:
            table = _with_vnodes(table, vnode_of)
        if vnodes is not None:
            table = _only(table, VNODE_COLUMN, vnodes)
        return table, about


def write_segment(  # noqa: PLR0913  what a file is made of, and where it goes
    storage: LogStorage,
    rows: pa.Table | SortedRows,
    epoch: Epoch,
    *,
    term: Term,
    first_seq: int = 0,
    layout: Layout = Layout.V2,
    name: str = "",
) -> Segment:
    """Write rows (`OP`, `VNODE` and columns, in their order) to a file of the log, a new one.

    Replay: writes another file; what nobody names is collected.
    """
    rows = rows if isinstance(rows, SortedRows) else SortedRows.of(rows)
    content = LogStoreRowSerde(layout).encode(rows, epoch)
    name = name or Origin(term, epoch).rows_file(layout)
    storage.put(name, content.to_pybytes())
    return Segment(
        name=name,
        epoch=epoch,
        first_seq=first_seq,
        rows=rows.table.num_rows,
        bytes=content.size,
        vnodes=rows.vnodes,
    )


def read_segment(  # noqa: PLR0913  which rows, and what it takes to read them
    storage: LogStorage,
    segment: Segment,
    vnodes: VnodeBitmap | None = None,
    *,
    vnode_of: VnodeOf | None = None,
    lender: Lender | None = None,
    with_key: bool = False,
) -> pa.Table:
    """Read rows back: `OP`, `VNODE` and columns, by vnode, then seq_id; of some vnodes, if given.

    `vnode_of` is needed for files of layout v1, `lender` for lent segments. `with_key` puts epoch
    and seq_id before them.
    """
    if segment.lent:
        if with_key:
            raise BrokenInvariant(f"the numbers of lent rows are asked for: {segment.name}")
        return _lent_rows(segment, vnodes, lender)
    if vnodes is not None and not segment.vnodes - vnodes:
        vnodes = None
    options = pa.ipc.IpcReadOptions(use_threads=segment.bytes > _WORTH_THREADS)
    with _content(storage, segment) as source, pa.ipc.open_file(source, options=options) as file:
        table, about = LogStoreRowSerde.decode(file, vnodes, vnode_of)
    # Rows may be written before it is known which epoch takes them.
    if about["rows"] != segment.rows or loaded_epoch(about["epoch"]) > segment.epoch:
        raise DamagedState(
            f"a file of a sink's log is not the one that was written: {segment.name}",
            detail=f"It has {about['rows']} rows, and should have {segment.rows}.",
        )
    shown = [table[OP_COLUMN], table[VNODE_COLUMN]]
    names = [OP, VNODE]
    payload = [n for n in table.column_names if n not in (SEQ_COLUMN, VNODE_COLUMN, OP_COLUMN)]
    if with_key:
        epochs = pa.array(np.full(table.num_rows, stored_epoch(segment.epoch), dtype=np.int64))
        seq = _numbers(table[SEQ_COLUMN]).astype(np.int64) + segment.first_seq
        shown, names = [epochs, pa.array(seq), *shown], [EPOCH_COLUMN, SEQ_COLUMN, *names]
    return pa.Table.from_arrays([*shown, *(table[n] for n in payload)], names=[*names, *payload])


def _lent_rows(segment: Segment, vnodes: VnodeBitmap | None, lender: Lender | None) -> pa.Table:
    if lender is None:
        raise BrokenInvariant(f"lent rows are read without their lender: {segment.name}")
    rows = lender(segment)
    if rows.num_rows != segment.rows:
        raise DamagedState(
            f"rows that a sink's log was lent are not those that were counted: {segment.name}",
            detail=f"There are {rows.num_rows} rows, and should be {segment.rows}.",
        )
    numbers = _numbers(rows[VNODE])
    if not bool((numbers[1:] >= numbers[:-1]).all()):
        rows = SortedRows.of(rows).table
    return rows if vnodes is None else _only(rows, VNODE, vnodes)


def only_inserts(storage: LogStorage, segment: Segment) -> bool:
    """Whether all rows of a segment are plain inserts; reads nothing but that column."""
    if segment.lent:
        return True
    with _content(storage, segment) as source:
        with pa.ipc.open_file(source) as file:
            place = file.schema.get_field_index(OP_COLUMN)
        options = pa.ipc.IpcReadOptions(included_fields=[place])
        with pa.ipc.open_file(source, options=options) as file:
            batches = (file.get_batch(number) for number in range(file.num_record_batches))
            ops = (batch.column(0).to_numpy(zero_copy_only=False) for batch in batches)
            return all(bool((each == RowOp.INSERT).all()) for each in ops)


@contextmanager
def _content(storage: LogStorage, segment: Segment) -> Iterator[Any]:
    """A segment's file, in place where it can be opened; what is wrong with it is damage."""
    try:
        root = storage.local_root
        yield (
            pa.BufferReader(storage.get(segment.name))
            if root is None
            else pa.memory_map(str(root / segment.name))
        )
    except FileNotFoundError as error:
        raise DamagedState(f"a file of a sink's log is missing: {segment.name}") from error
    except (pa.ArrowInvalid, OSError, KeyError, ValueError, TypeError) as error:
        raise DamagedState(
            f"a file of a sink's log cannot be read: {segment.name}", detail=str(error)[:300]
        ) from error


def is_old_layout(segment: Segment) -> bool:
    """Whether a segment's file has layout v1."""
    return segment.name.endswith(f".v{int(Layout.V1)}.arrow")


def migrate_segment(
    storage: LogStorage, segment: Segment, *, term: Term, vnode_of: VnodeOf
) -> Segment:
    """Write a file of layout v1 again in layout v2. Replay: as `write_segment`."""
    table = read_segment(storage, segment, vnode_of=vnode_of, with_key=True)
    seq = (_numbers(table[SEQ_COLUMN]) - segment.first_seq).astype(np.int32)
    rows = SortedRows(table.drop_columns([EPOCH_COLUMN, SEQ_COLUMN]).combine_chunks(), seq)
    written = write_segment(storage, rows, segment.epoch, term=term)
    return replace(written, first_seq=segment.first_seq)


def checked_rows(rows: pa.Table, columns: pa.Schema | None, vnode_of: VnodeOf | None) -> pa.Table:
    """Bring what a caller writes into the form of the log: `OP`, `VNODE`, then the columns."""
    if VNODE not in rows.column_names:
        if vnode_of is None:
            raise BrokenInvariant(f"rows for a log have no column {VNODE}, and nothing to make it")
        vnodes = np.asarray(vnode_of(rows), dtype=np.int16)
        rows = rows.append_column(VNODE, pa.array(vnodes))
    payload = [n for n in rows.column_names if n not in (OP, VNODE)]
    wanted = payload if columns is None else columns.names
    if missing := [name for name in (OP, *wanted) if name not in rows.column_names]:
        raise BrokenInvariant(f"rows for a log have no column {', '.join(missing)}")
    fields = [pa.field(OP, pa.int8()), pa.field(VNODE, pa.int16())]
    fields += [rows.schema.field(n) for n in payload] if columns is None else list(columns)
    rows = rows.select([OP, VNODE, *wanted]).replace_schema_metadata(None)
    schema = pa.schema(fields)
    rows = rows if rows.schema.equals(schema) else rows.cast(schema)
    return _with_whole_pairs(rows)


def pair_safe_cut(rows: pa.Table, at: int) -> int:
    """The place at or right after `at` that does not part an update's two halves."""
    if 0 < at < rows.num_rows:
        before, after = rows[OP][at - 1].as_py(), rows[OP][at].as_py()
        if (before, after) == (RowOp.UPDATE_DELETE, RowOp.UPDATE_INSERT):
            return at + 1
    return at


def only_vnodes(rows: pa.Table, vnodes: VnodeBitmap) -> pa.Table:
    """The rows of some vnodes, in their order."""
    return _only(rows, VNODE, vnodes)


def _with_whole_pairs(rows: pa.Table) -> pa.Table:
    """An update that moves its row to another vnode is a delete there and an insert here."""
    ops, vnodes = _numbers(rows[OP]), _numbers(rows[VNODE])
    pairs = (ops[:-1] == RowOp.UPDATE_DELETE) & (ops[1:] == RowOp.UPDATE_INSERT)
    parted = np.flatnonzero(pairs & (vnodes[:-1] != vnodes[1:]))
    if not len(parted):
        return rows
    ops = ops.copy()
    ops[parted], ops[parted + 1] = RowOp.DELETE, RowOp.INSERT
    return rows.set_column(0, rows.schema.field(0), pa.array(ops))


def _with_vnodes(table: pa.Table, vnode_of: VnodeOf | None) -> pa.Table:
    if vnode_of is None:
        raise BrokenInvariant("a log file of layout v1 is read without a way to tell vnodes")
    shown = [OP if name == OP_COLUMN else name for name in table.column_names]
    vnodes = np.asarray(vnode_of(table.rename_columns(shown)), dtype=np.int16)
    table = table.append_column(VNODE_COLUMN, pa.array(vnodes)).combine_chunks()
    return table.take(pa.array(np.argsort(vnodes, kind="stable")))


def _only(table: pa.Table, column: str, vnodes: VnodeBitmap) -> pa.Table:
    chosen = np.zeros(VNODE_COUNT, dtype=bool)
    chosen[list(vnodes)] = True
    mask = chosen[_numbers(table[column])]
    return table if bool(mask.all()) else table.filter(pa.array(mask))


def _numbers(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    numbers: npt.NDArray[Any] = column.to_numpy()
    return numbers


def _counts(rows: pa.Table) -> npt.NDArray[np.int64]:
    counts = np.bincount(_numbers(rows[VNODE]), minlength=VNODE_COUNT)
    if len(counts) > VNODE_COUNT:
        raise BrokenInvariant(f"a row for a log has vnode {len(counts) - 1}")
    return counts


def _cuts(counts: Sequence[int] | npt.NDArray[np.int64]) -> Iterator[tuple[int, int, int]]:
    """First vnode, last vnode and rows of each batch."""
    first, gathered = -1, 0
    last = 0
    for vnode, count in enumerate(int(count) for count in counts):
        if not count:
            continue
        first, last = (vnode if first < 0 else first), vnode
        gathered += count
        if gathered >= _BATCH_ROWS:
            yield from ((first, last, size) for size in _even(gathered))
            first, gathered = -1, 0
    if gathered:
        yield first, last, gathered


def _even(rows: int) -> list[int]:
    parts = max(1, -(-rows // _LARGEST_BATCH))
    edges = [rows * part // parts for part in range(parts + 1)]
    return [high - low for low, high in itertools.pairwise(edges)]


def _any_between(vnodes: VnodeBitmap, low: int, high: int) -> bool:
    return bool((vnodes.bits >> low) & ((1 << (high - low + 1)) - 1))

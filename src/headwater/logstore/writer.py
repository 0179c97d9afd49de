"""Puts the rows of a sink's epochs into its log, to be named by the ledger.

    write_chunk, add_segments        rows of the epoch that goes on
    flush_current_epoch              the epoch ends; at a checkpoint everything since the last one
                                     is in files, and a text for `EpochRecord.log_ends` comes back
    confirm                          the ledger has that text: readers are given its items
    discard                          it does not, and will not: the epochs are written again

Promises
    Numbered     `seq_id` begins at 0 in each epoch and has no gaps; rows in the order they came.
                 Chunks without rows leave no trace.
    Committed    Nothing reaches a reader before `confirm`. What was discarded never does.
    Whole        The two halves of an update stay in one chunk.
    Idle         An epoch without rows costs no file and no thread.

One call at a time. A call that fails or is cancelled leaves the epoch half written: `discard`, then
`init` and write again.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from headwater.errors import BrokenInvariant
from headwater.logstore.items import LogItem, Segment
from headwater.logstore.open_log import OpenLog, Resharding
from headwater.logstore.serde import (
    Layout,
    SortedRows,
    checked_rows,
    pair_safe_cut,
    write_segment,
)
from headwater.logstore.state import LoggedEpoch, LogStoreState, settle, stored_chunk
from headwater.logstore.storage import Origin
from headwater.model.epoch import Epoch
from headwater.model.vnode import VnodeBitmap


@dataclass(slots=True, kw_only=True)
class _Chunk:
    """Rows with their numbers: in memory, in a segment, or both."""

    epoch: Epoch
    first_seq: int
    name: str
    """Of its file, known before it is written so that it is found again when that fails."""
    rows: SortedRows | None = None
    segment: Segment | None = None

    @property
    def held_bytes(self) -> int:
        return self.rows.table.nbytes if self.rows is not None else 0


@dataclass(slots=True, kw_only=True)
class _EndedEpoch:
    epoch: Epoch
    checkpoint: bool
    stop: bool
    shards: tuple[VnodeBitmap, ...] | None
    chunks: list[_Chunk] = field(default_factory=list)

    def logged(self) -> LoggedEpoch:
        segments = tuple(c.segment for c in self.chunks if c.segment is not None)
        if len(segments) != len(self.chunks):
            raise BrokenInvariant(f"epoch {self.epoch} of a log has rows that are in no file")
        return LoggedEpoch(
            epoch=self.epoch,
            checkpoint=self.checkpoint,
            segments=segments,
            first=self.epoch,
            stop=self.stop,
        )

    def items(self) -> Iterator[LogItem]:
        logged = self.logged()
        for number, (chunk, segment) in enumerate(zip(self.chunks, logged.segments, strict=True)):
            rows = chunk.rows.table if chunk.rows is not None else None
            yield replace(stored_chunk(segment, number), rows=rows)
        yield logged.barrier()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Staged:
    """What waits for the ledger."""

    epoch: Epoch
    state: LogStoreState
    ended: tuple[_EndedEpoch, ...]


class KvLogStoreWriter:
    """The writing end of a log."""

    def __init__(
        self,
        log: OpenLog,
        *,
        columns: pa.Schema | None,
        chunk_bytes: int,
        layout: Layout = Layout.V2,
    ) -> None:
        self._log = log
        self._columns = columns
        self._chunk_bytes = chunk_bytes
        self._layout = layout
        self._epoch: Epoch | None = None
        self._next_seq = 0
        self._gathered: list[pa.Table] = []
        self._gathered_bytes = 0
        self._chunks: list[_Chunk] = []
        self._ended: list[_EndedEpoch] = []
        self._staged: list[_Staged] = []
        self._broken = False

    @property
    def epoch(self) -> Epoch | None:
        """The epoch that goes on."""
        return self._epoch

    async def init(self, epoch: Epoch) -> None:
        """Begin to write with this epoch; once, and again after each `discard`."""
        if self._epoch is not None:
            raise BrokenInvariant(f"a log's writer is at epoch {self._epoch} already")
        if epoch <= self._log.state.epoch:
            raise BrokenInvariant(
                f"a log cannot go on with epoch {epoch}: it has {self._log.state.epoch}"
            )
        self._epoch = epoch

    async def write_chunk(self, rows: pa.Table) -> None:
        """Add rows (`OP`, `VNODE` unless it can be computed, the sink's columns)."""
        if self._log.paused:
            raise BrokenInvariant(f"rows of epoch {self._epoch} come to a log that is paused")
        with self._step() as epoch:
            if not rows.num_rows:
                return
            vnode_of = self._log.vnode_of
            checked = await self._log.blocking(checked_rows, rows, self._columns, vnode_of)
            most = min(self._chunk_bytes, self._log.buffer.gather_bytes)
            for piece in _pieces(checked, self._chunk_bytes):
                if self._gathered and self._gathered_bytes + piece.nbytes > most:
                    await self._seal(epoch, store=True)
                self._gathered.append(piece)
                self._gathered_bytes += piece.nbytes
                if self._gathered_bytes >= most:
                    await self._seal(epoch, store=True)

    async def add_segments(self, segments: Sequence[Segment]) -> None:
        """Add rows that Spark tasks have written, in this order; they may have been early."""
        with self._step() as epoch:
            await self._seal(epoch, store=False)
            for segment in segments:
                if segment.epoch > epoch:
                    raise BrokenInvariant(f"{segment.name} is of a later epoch than {epoch}")
                if segment.rows:
                    placed = replace(segment, epoch=epoch, first_seq=self._next_seq)
                    self._chunks.append(
                        _Chunk(
                            epoch=epoch,
                            first_seq=self._next_seq,
                            name=segment.name,
                            segment=placed,
                        )
                    )
                    self._next_seq += segment.rows

    async def flush_current_epoch(
        self,
        next_epoch: Epoch,
        *,
        checkpoint: bool,
        vnodes: Sequence[VnodeBitmap] | None = None,
        stop: bool = False,
    ) -> str | None:
        """End the epoch; at a checkpoint give the text that the ledger is to have.

        `vnodes` says how readers share them from here on, which only a checkpoint can change.
        Replay: after `discard` the same epoch is written to other files, with another text.
        """
        with self._step() as epoch:
            if next_epoch <= epoch:
                raise BrokenInvariant(f"epoch {next_epoch} cannot follow epoch {epoch}")
            shards = _checked_shards(vnodes, checkpoint=checkpoint)
            await self._seal(epoch, store=False)
            self._ended.append(
                _EndedEpoch(
                    epoch=epoch,
                    checkpoint=checkpoint,
                    stop=stop,
                    shards=shards,
                    chunks=self._chunks,
                )
            )
            self._epoch, self._next_seq, self._chunks = next_epoch, 0, []
            return await self._stage(epoch) if checkpoint else None

    def confirm(self, epoch: Epoch) -> None:
        """The ledger has the text of this epoch. Replay: nothing left to do."""
        due = [staged for staged in self._staged if staged.epoch <= epoch]
        last = due[-1].epoch if due else self._log.state.epoch
        if epoch != last and not (epoch < last and not due):
            raise BrokenInvariant(f"epoch {epoch} of a log is confirmed, and was never staged")
        for staged in due:
            items = [item for ended in staged.ended for item in ended.items()]
            reshardings = [
                Resharding(ended.epoch, ended.shards)
                for ended in staged.ended
                if ended.shards is not None
            ]
            self._log.commit(staged.state, items, reshardings)
        self._staged = self._staged[len(due) :]

    def discard(self) -> None:
        """Forget every epoch that is not confirmed; `init` must follow.

        Only for epochs that the ledger certainly does not have. Replay: nothing left to do.
        """
        ended = [e for staged in self._staged for e in staged.ended] + self._ended
        chunks = [chunk for e in ended for chunk in e.chunks] + self._chunks
        for chunk in chunks:
            self._log.buffer.release(chunk.held_bytes)
        self._log.doom(chunk.name for chunk in chunks)
        named = {index.name for index in self._log.state.indexes}
        indexes = {index.name for staged in self._staged for index in staged.state.indexes}
        self._log.doom(sorted(indexes - named))
        self._epoch, self._next_seq, self._broken = None, 0, False
        self._gathered, self._gathered_bytes = [], 0
        self._chunks, self._ended, self._staged = [], [], []

    def pause(self) -> None:
        """Readers wait, and no rows may come until `resume`; epochs go on."""
        self._log.pause(paused=True)

    def resume(self) -> None:
        """Go on after `pause`."""
        self._log.pause(paused=False)

    @contextlib.contextmanager
    def _step(self) -> Iterator[Epoch]:
        if self._epoch is None:
            raise BrokenInvariant("a log is written to before `init`")
        if self._broken:
            raise BrokenInvariant("a call to a log's writer did not end: it must be discarded")
        self._broken = True
        yield self._epoch
        # Not in a `finally`: what was raised has left an epoch that is half written.
        self._broken = False

    async def _seal(self, epoch: Epoch, *, store: bool) -> None:
        """Make a chunk of what was gathered; store it now if asked to, or if it finds no room."""
        if not self._gathered:
            return
        gathered, self._gathered, self._gathered_bytes = self._gathered, [], 0
        rows = await self._log.blocking(_sorted, gathered)
        name = Origin(self._log.term, epoch).rows_file(self._layout)
        chunk = _Chunk(epoch=epoch, first_seq=self._next_seq, name=name)
        self._next_seq += rows.table.num_rows
        self._chunks.append(chunk)
        if self._log.buffer.admit(rows.table.nbytes):
            chunk.rows = rows
        if store or chunk.rows is None:
            chunk.segment = await self._log.blocking(self._written, chunk, rows)

    def _written(self, chunk: _Chunk, rows: SortedRows) -> Segment:
        return write_segment(
            self._log.storage,
            rows,
            chunk.epoch,
            term=self._log.term,
            first_seq=chunk.first_seq,
            layout=self._layout,
            name=chunk.name,
        )

    async def _stage(self, epoch: Epoch) -> str:
        for ended in self._ended:
            for chunk in ended.chunks:
                if chunk.segment is None and chunk.rows is not None:
                    chunk.segment = await self._log.blocking(self._written, chunk, chunk.rows)
        before = self._staged[-1].state if self._staged else self._log.state
        state = before.grown((ended.logged() for ended in self._ended), self._log.progress)
        if state.overfull:
            origin = Origin(self._log.term, epoch)
            state = await self._log.blocking(settle, self._log.storage, state, origin)
        self._staged.append(_Staged(epoch=epoch, state=state, ended=tuple(self._ended)))
        self._ended = []
        return state.encode()


def _sorted(pieces: Sequence[pa.Table]) -> SortedRows:
    return SortedRows.of(pa.concat_tables(pieces))


def _pieces(rows: pa.Table, most_bytes: int) -> Iterator[pa.Table]:
    """Parts of about so many bytes; none begins with the second half of an update."""
    parts = max(1, -(-rows.nbytes // most_bytes))
    size = max(1, -(-rows.num_rows // parts))
    begin = 0
    while begin < rows.num_rows:
        end = pair_safe_cut(rows, min(begin + size, rows.num_rows))
        yield rows.slice(begin, end - begin)
        begin = end


def _checked_shards(
    vnodes: Sequence[VnodeBitmap] | None, *, checkpoint: bool
) -> tuple[VnodeBitmap, ...] | None:
    if vnodes is None:
        return None
    if not checkpoint:
        raise BrokenInvariant("vnodes of a log can change hands at a checkpoint only")
    together = VnodeBitmap.empty()
    for shard in vnodes:
        if shard & together:
            raise BrokenInvariant("two readers of a log cannot have the same vnode")
        together |= shard
    if together != VnodeBitmap.full():
        raise BrokenInvariant("every vnode of a log must have a reader")
    return tuple(vnodes)

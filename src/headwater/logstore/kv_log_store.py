"""Opens the log of a sink, from what the ledger says about it.

    factory = KvLogStoreFactory(storage, "orders_sink", columns, blocking=blocking, term=term)
    reader, writer = await factory.open(facts.log_ends.get("orders_sink"), delivered=epoch)

The log is rebuilt from the last text in the ledger alone; what a crash left beside it is collected.
Design: docs/design/0012-log-store.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import pyarrow as pa

from headwater.config import Settings
from headwater.errors import BrokenInvariant
from headwater.logstore.backoff import RewindBackoff
from headwater.logstore.items import Lender, Offset
from headwater.logstore.open_log import Blocking, OpenLog, migrated
from headwater.logstore.reader import KvLogStoreReader
from headwater.logstore.serde import Layout, VnodeOf
from headwater.logstore.state import LogStoreState
from headwater.logstore.storage import LogStorage
from headwater.logstore.writer import KvLogStoreWriter
from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.ids import Term
from headwater.model.schema import Column
from headwater.model.vnode import VnodeBitmap


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStoreOptions:
    """How much a log may take, and how patient it is."""

    buffer_bytes: int = Settings().sink_buffer_bytes
    chunk_bytes: int = Settings().sink_chunk_bytes
    backoff: RewindBackoff = field(default_factory=RewindBackoff)
    layout: Layout = Layout.V2
    """Of new files; the older one is for tests of what older ones are turned into."""

    @classmethod
    def of(cls, settings: Settings) -> "LogStoreOptions":
        """As the engine's settings say."""
        return cls(buffer_bytes=settings.sink_buffer_bytes, chunk_bytes=settings.sink_chunk_bytes)


class KvLogStoreFactory:
    """Makes the two ends of one sink's log."""

    ALLOW_REWIND: ClassVar[bool] = True
    """A log that is in storage can be read again."""

    def __init__(  # noqa: PLR0913  what a log is made of
        self,
        storage: LogStorage,
        sink: str,
        columns: Sequence[Column] | None = None,
        *,
        blocking: Blocking,
        term: Term,
        vnode_of: VnodeOf | None = None,
        lender: Lender | None = None,
        options: LogStoreOptions | None = None,
    ) -> None:
        """`storage` has this log's files and no others; `sink` names it in messages."""
        self._storage = storage
        self._sink = sink
        self._columns = columns
        self._blocking = blocking
        self._term = term
        self._vnode_of = vnode_of
        self._lender = lender
        self._options = options or LogStoreOptions()
        self._log: OpenLog | None = None

    @property
    def log(self) -> OpenLog:
        """The log, once it is open."""
        if self._log is None:
            raise BrokenInvariant(f'the log of sink "{self._sink}" is not open')
        return self._log

    async def open(
        self, log_end: str | None, *, delivered: Epoch = NO_EPOCH
    ) -> tuple[KvLogStoreReader, KvLogStoreWriter]:
        """Both ends, the reader for all vnodes.

        `log_end` is the ledger's last text, if there is one; `delivered` an epoch that the ledger
        says is at the target, and never an older one than before: its files may be gone.
        Replay: what is in storage already is left or collected.
        """
        (reader,), writer = await self.open_shared(
            log_end, delivered=delivered, shards=(VnodeBitmap.full(),)
        )
        return reader, writer

    async def open_shared(
        self,
        log_end: str | None,
        *,
        delivered: Epoch = NO_EPOCH,
        shards: Sequence[VnodeBitmap],
    ) -> tuple[tuple[KvLogStoreReader, ...], KvLogStoreWriter]:
        """Both ends, with several readers that share the vnodes. Replay: as `open`."""
        if self._log is not None:
            raise BrokenInvariant(f'the log of sink "{self._sink}" is opened twice')
        state = LogStoreState.decode(log_end) if log_end else LogStoreState()
        if delivered > NO_EPOCH:
            # The target cannot have what the log does not: an older text says less, not more.
            place = Offset(min(delivered, state.epoch))
            state = state.grown((), state.progress.reach(VnodeBitmap.full(), place))
        replaced: tuple[str, ...] = ()
        if self._vnode_of is not None and self._options.layout is not Layout.V1:
            state, replaced = await self._blocking(
                migrated, self._storage, state, term=self._term, vnode_of=self._vnode_of
            )
        self._log = OpenLog(
            storage=self._storage,
            term=self._term,
            state=state,
            blocking=self._blocking,
            max_bytes=self._options.buffer_bytes,
            vnode_of=self._vnode_of,
            lender=self._lender,
            replaced=replaced,
        )
        await self._log.collect_orphans()
        readers = tuple(self._reader(number, vnodes, None) for number, vnodes in enumerate(shards))
        writer = KvLogStoreWriter(
            self._log,
            columns=self._schema(),
            chunk_bytes=self._options.chunk_bytes,
            layout=self._options.layout,
        )
        return readers, writer

    def joining_reader(self, number: int, since: Epoch) -> KvLogStoreReader:
        """One more reader, from the barrier on at which it is given vnodes."""
        for change in self.log.reshardings:
            if change.epoch == since:
                return self._reader(number, change.of(number), since)
        raise BrokenInvariant(f'no vnodes of sink "{self._sink}" change hands at epoch {since}')

    def _reader(self, number: int, vnodes: VnodeBitmap, since: Epoch | None) -> KvLogStoreReader:
        return KvLogStoreReader(
            self.log,
            vnodes=vnodes,
            number=number,
            since=since,
            backoff=self._options.backoff,
            allow_rewind=self.ALLOW_REWIND,
        )

    def _schema(self) -> pa.Schema | None:
        if self._columns is None:
            return None
        return pa.schema([pa.field(c.name, c.type.arrow) for c in self._columns])

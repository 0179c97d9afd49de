"""The ledger: the only place where anything is committed.

Before the ledger says so, nothing has happened; after it says so, everything else can be redone.
`append` puts one epoch's record, the facts that follow from it, manifests and the catalog's
changes into the database in one transaction, under two conditions:

    the record's                   must be                            else
    term                           the current one                    Fenced
    `after`                        the last epoch in the chain        LedgerConflict

    what append raises             what was written     what to do
    Fenced                         nothing              stop
    LedgerConflict                 nothing              read the ledger, start over from there
    LedgerUnavailable,             nothing              wait, append the same record again
    StorageUnavailable
    CommitUnknown                  all or nothing       ask `resolve`; `append_resolved` does it

Promises
    One chain    Two engines cannot both extend it: the fence row is locked, the head moves by
                 compare-and-set, and the database holds every predecessor to be unique.
    Whole        A record is there with all its facts and manifests, or not at all.
    Verified     Every record, fact and manifest is read against its checksum, and every link of
                 the chain is followed. What does not fit is `DamagedState`.

Calls are synchronous, short, and safe from several threads.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import MappingProxyType
from typing import Self

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from headwater.errors import (
    BrokenInvariant,
    CommitUnknown,
    HeadwaterError,
    LedgerConflict,
    LedgerUnavailable,
    StorageUnavailable,
)
from headwater.ledger import chain, fence, pins
from headwater.ledger.backoff import Backoff
from headwater.ledger.codec import damaged, encode
from headwater.ledger.database import Database
from headwater.ledger.facts import LedgerFacts, fold_facts, read_facts, read_floor
from headwater.ledger.fence import Owner, read_fence
from headwater.ledger.manifests import StoredManifest, read_manifest, write_manifests
from headwater.ledger.migrate import migrate
from headwater.ledger.translation import translate
from headwater.model.epoch import Epoch, WallClock, system_clock
from headwater.model.ids import TableId, Term
from headwater.model.record import EpochRecord

_PAGE = 256
_NO_MANIFESTS: Mapping[TableId, bytes] = MappingProxyType({})

Also = Callable[[Connection], None]
"""More to write in the same transaction; it may run again when a commit is retried."""


class _CallbackFailed(Exception):
    """Carries what `also` raised past the translation of the ledger's own errors."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Ledger:
    """One workspace's chain of committed epochs."""

    def __init__(self, database: Database, *, clock: WallClock = system_clock) -> None:
        self.database = database
        self._clock = clock

    @classmethod
    def open(
        cls,
        url: str,
        *,
        clock: WallClock = system_clock,
        wait_s: float = 15.0,
        force: bool = False,
    ) -> Self:
        """Reach the database and bring its schema up to date.

        Raises `WorkspaceTooNew` when a newer version wrote it, `LedgerUnavailable` when it cannot
        be reached, and `WorkspaceInUse` when the schema must change while an engine that is
        alive (see `take_over`) runs on it; `force` changes it nevertheless.
        Replay: repeatable; an interrupted upgrade goes on where it stopped.
        """
        database = Database.connect(url)
        try:
            migrate(database, clock, wait_s=wait_s, force=force)
        except BaseException:
            database.close()
            raise
        return cls(database, clock=clock)

    def close(self) -> None:
        """Close all connections; the fence stays as it is."""
        self.database.close()

    def transaction(self) -> AbstractContextManager[Connection]:
        """Write beside the chain, as the catalog and the event log do."""
        return self.database.transaction()

    @contextmanager
    def owned(self, term: Term) -> Iterator[Connection]:
        """Write beside the chain under the fence: `Fenced`, and nothing, for an older term."""
        with self.transaction() as connection:
            read_fence(connection, self._clock, lock=True).require(term)
            yield connection

    def reading(self) -> AbstractContextManager[Connection]:
        """Read as of one moment."""
        return self.database.reading()

    def take_over(self, owner: Owner, *, force: bool = False, wait_s: float = 15.0) -> Term:
        """Become the only engine that may commit; the term is named in every record.

        Raises `WorkspaceInUse` if the present owner counts as alive (see `fence.py`), unless
        `force` is given. Does not wait: ask again for an owner that may just have died.
        Replay: repeatable; each call raises the term.
        """
        with self.transaction() as connection:
            return fence.take_over(connection, owner, self._clock, force=force, wait_s=wait_s)

    def heartbeat(self, term: Term) -> None:
        """Say that the owner is alive, or learn by `Fenced` that another has taken over.

        Replay: repeatable; the latest wins.
        """
        with self.transaction() as connection:
            seen = read_fence(connection, self._clock, lock=True)
            seen.require(term)
            fence.beat(connection, seen)

    def release(self, term: Term) -> None:
        """Give the workspace up, so that the next engine need not wait; nothing if fenced.

        Replay: repeatable.
        """
        with self.transaction() as connection:
            fence.release(connection, term)

    def append(
        self,
        record: EpochRecord,
        *,
        manifests: Mapping[TableId, bytes] = _NO_MANIFESTS,
        also: Also | None = None,
    ) -> None:
        """Commit one epoch. It is also a heartbeat.

        What `also` raises rolls everything back and comes out unchanged, except that a lost
        database is `LedgerUnavailable` there too.
        Replay: the same record a second time is a `LedgerConflict` and writes nothing.
        """
        if record.epoch <= record.after:
            raise BrokenInvariant(f"epoch {record.epoch} cannot come after epoch {record.after}")
        row = encode(record)
        try:
            with self.transaction() as connection:
                seen = read_fence(connection, self._clock, lock=True)
                seen.require(record.term)
                if seen.head != record.after:
                    raise LedgerConflict(
                        f"epoch {record.epoch} was to follow epoch {record.after}, "
                        f"but the last epoch is {seen.head}"
                    )
                pins.refuse_lost_pins(connection, record)
                chain.add_link(connection, row)
                fold_facts(connection, record)
                write_manifests(connection, record.epoch, manifests)
                if also is not None:
                    self._call(also, connection)
                # Last, because a server that aborted the transaction behind the callback's back
                # would answer COMMIT without an error; this statement fails then.
                fence.advance(connection, seen, record.epoch)
        except _CallbackFailed as failed:
            raise failed.error from failed.error.__cause__

    def resolve(self, record: EpochRecord) -> bool:
        """Answer a `CommitUnknown`: whether this very record is in the ledger, for good.

        Takes the lock that a commit holds, so a commit that the server is still working on is
        waited for and "no" cannot turn into "yes" later.
        """
        row = encode(record)
        with self.transaction() as connection:
            read_fence(connection, self._clock, lock=True)
            return chain.has_record(connection, row)

    def append_resolved(
        self,
        record: EpochRecord,
        *,
        manifests: Mapping[TableId, bytes] = _NO_MANIFESTS,
        also: Also | None = None,
        backoff: Backoff = Backoff(),  # noqa: B008  frozen
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Commit one epoch and come back only when it is known to be in the ledger.

        Raises what `append` raises when nothing was written. When the database stays away for
        longer than `backoff`, raises `CommitUnknown` if a commit is still unanswered, else
        `LedgerUnavailable` or `StorageUnavailable`.
        Replay: a record that got in, though no answer came, is found and not written again.
        """
        unanswered: CommitUnknown | None = None
        waits = backoff.waits()
        while True:
            try:
                if unanswered is not None and self._answered(record):
                    return
                unanswered = None
                self.append(record, manifests=manifests, also=also)
                return
            except CommitUnknown as error:
                trouble: HeadwaterError = error
                unanswered = error
            except (LedgerUnavailable, StorageUnavailable) as error:
                trouble = unanswered or error
            wait = next(waits, None)
            if wait is None:
                raise trouble
            sleep(wait)

    def last_epoch(self) -> Epoch:
        """The last committed epoch; `NO_EPOCH` when there is none."""
        with self.reading() as connection:
            return read_fence(connection, self._clock, lock=False).head

    def owner(self) -> str:
        """Who holds the workspace, in words."""
        with self.reading() as connection:
            seen = read_fence(connection, self._clock, lock=False)
        if seen.owner is None:
            return f"none; the last one was term {seen.term}"
        return f"pid {seen.owner.pid} on {seen.owner.host}, term {seen.term}"

    def floor(self) -> Epoch:
        """The newest epoch whose record was pruned; records after it are all there."""
        with self.reading() as connection:
            return read_floor(connection)

    def record(self, epoch: Epoch) -> EpochRecord:
        """The record of one epoch; `HistoryGone` if there is none (any more)."""
        with self.reading() as connection:
            head = read_fence(connection, self._clock, lock=False).head
            return chain.read_one(connection, epoch, head)

    def records(self, after: Epoch, upto: Epoch | None = None) -> Iterator[EpochRecord]:
        """The records after `after` in order, up to `upto` or the last one now.

        `after` is `NO_EPOCH` or a committed epoch. Raises `HistoryGone` if it was pruned, and
        `DamagedState` naming the epoch where the chain is broken.
        """
        end = self.last_epoch()
        bound = end if upto is None else min(upto, end)
        full = True
        while after < bound and full:
            with self.reading() as connection:
                page = chain.read_links(connection, after, bound, limit=_PAGE)
            yield from page
            after = page[-1].epoch if page else after
            full = len(page) == _PAGE
        if after < bound:
            # Nothing more up to `bound`: then the next link must pass over it.
            with self.reading() as connection:
                if not chain.read_links(connection, after, end, limit=1):
                    raise damaged(end, "it is missing, and it is the last one")

    def facts(self) -> LedgerFacts:
        """The latest value of everything that records speak about."""
        with self.reading() as connection:
            return read_facts(connection)

    def manifest(self, table: TableId, at: Epoch | None = None) -> StoredManifest | None:
        """The newest stored manifest of a table, not after `at` if that is given."""
        with self.reading() as connection:
            return read_manifest(connection, table, at)

    def prune(self, before: Epoch) -> int:
        """Drop records older than `before`, and manifests that a newer one replaces.

        The caller chooses `before`: not after what is published, and for each table not after
        the newest manifest at or below its horizon. The last record always stays. Answers how
        many records were dropped.
        Replay: repeatable; the second time there is nothing to drop.
        """
        with self.transaction() as connection:
            head = read_fence(connection, self._clock, lock=True).head
            return chain.prune(connection, before, head)

    def pin(self, name: str, epoch: Epoch) -> None:
        """Keep an epoch readable under a name; `HistoryGone` if it is no longer kept.

        Replay: repeatable; a pin of the same name moves.
        """
        with self.transaction() as connection:
            head = read_fence(connection, self._clock, lock=True).head
            pins.set_pin(connection, name, epoch, head)

    def unpin(self, name: str) -> None:
        """Let go of a pin.

        Replay: repeatable; a pin that is not there is not missed.
        """
        with self.transaction() as connection:
            pins.drop_pin(connection, name)

    def pins(self) -> dict[str, Epoch]:
        """All pins by name."""
        with self.reading() as connection:
            return pins.read_pins(connection)

    def _answered(self, record: EpochRecord) -> bool:
        """`resolve`, for which an unanswered commit of its own is only one more trouble."""
        try:
            return self.resolve(record)
        except CommitUnknown as error:
            raise LedgerUnavailable(error.message, detail=error.detail) from error

    def _call(self, also: Also, connection: Connection) -> None:
        try:
            also(connection)
        except SQLAlchemyError as error:
            if isinstance(translate(error, self.database.engine.url), BrokenInvariant):
                raise _CallbackFailed(error) from error
            raise
        except Exception as error:
            raise _CallbackFailed(error) from error

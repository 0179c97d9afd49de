"""The tables of one external database, and the connection to it that its job uses.

Tables come and go while the job runs. Each has its own backfill; they share the reader of the
log, so that a transaction over several of them lands in one epoch.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from headwater.backfill.cdc.pace import Pace
from headwater.backfill.cdc.split_reader import KeyedTable
from headwater.cdc.external_table import ChangeLog, ExternalDatabase, SplitOptions
from headwater.cdc.included import Included
from headwater.cdc.offset import CdcOffset, parse_offset
from headwater.cdc.schema_change import SchemaChange, SchemaPolicy
from headwater.cdc.survey import LogSurvey
from headwater.errors import HeadwaterError, SourceUnavailable, UserError
from headwater.model.ids import SourceName, TableId
from headwater.model.spelling import sql_quoted
from headwater.runtime.blocking import Blocking
from headwater.runtime.cdc_budget import WalBudget
from headwater.runtime.cdc_freshness import Freshness
from headwater.state.table import StateTable

_POLL_S = 0.02
_READERS = 8

PROGRESS = "cdc-table/"
"""What the ledger files a table's backfill under, before its id."""
STOPPED = "cdc-stopped/"
"""What it files the reason under for which a table is not kept current any more."""
IDENTITY = "cdc-server/"
"""What it files the server under that a source follows, before the source's id."""
SEEN = "cdc-schema/"
"""What it files under what a table looked like upstream, at the place where the log is."""

_EMPTIED = (
    "it was emptied to be filled anew, and the engine ended before that began. "
    "ALTER TABLE {0} REFRESH SCHEMA fills it"
)


class CdcUpstream:
    """An external database as the committer knows it: a position that becomes safe."""

    def __init__(
        self, name: SourceName, database: ExternalDatabase, budget: WalBudget | None = None
    ) -> None:
        self._name = name
        self.database = database
        self.budget = budget or WalBudget()
        self.freshness = Freshness()
        self.survey: LogSurvey | None = None
        """How the log stood when it was last looked at; None while it cannot be."""
        self.lost: HeadwaterError | None = None
        """Why this source is over; nothing is read any more."""
        self.known = True
        """Whether the ledger has the source. Before it has, nothing is made upstream: a crash
        would leave a slot there that nobody knows of, and that keeps log for ever."""
        self.away = ""
        """Why it does not answer just now; it is asked again by itself."""
        self.identity = ""
        """The server that is followed; empty before the first contact."""
        self.making = asyncio.Lock()
        """Held by whoever makes or removes something upstream: what is dropped stays dropped."""
        self.renewed = asyncio.Event()
        """Set when the database is reached in another way from now on."""
        self.watching = Blocking(1)
        """A thread for whoever watches, which a slow reader does not hold up."""
        self.log: ChangeLog | None = None
        """Used by the job alone, under `using`: it has one caller at a time."""
        self.using = asyncio.Lock()
        self.readers = Blocking(_READERS)
        """Threads for this database, so that a slow one holds nobody else back."""
        self._safe: CdcOffset | None = None
        self.prepared = asyncio.Event()
        """Set once what we need upstream is there."""
        self.trouble: HeadwaterError | None = None
        """Why it cannot be read, where only a person can help."""

    @property
    def name(self) -> SourceName:
        """The source's."""
        return self._name

    async def acknowledge(self, position: str) -> None:
        """The job will tell the server what it may forget. Replay: the last one counts."""
        self._safe = parse_offset(position)
        self.freshness.applied(self._safe)

    async def prepare(self, tables: Sequence[str], *, begun: bool) -> CdcOffset:
        """Make what is needed upstream, unless this source is over."""
        async with self.making:
            if self.lost is not None:
                raise self.lost
            return await self.readers(self.database.prepare, tables, begun=begun)

    async def drop(self) -> None:
        """Remove what is ours upstream, after which nothing is made there any more."""
        async with self.making:
            before, self.lost = self.lost, UserError(f'source "{self._name}" is being dropped')
            try:
                await self.readers(self.database.drop)
            except HeadwaterError:
                self.lost = before
                raise

    async def wait_prepared(self, timeout_s: float) -> None:
        """Until the job has made what it needs upstream; raises why it cannot."""
        waited = 0.0
        while not self.prepared.is_set():
            if self.trouble is not None:
                raise self.trouble
            if waited > timeout_s:
                raise SourceUnavailable(
                    f'source "{self._name}" is not ready after {timeout_s:.0f} seconds',
                    hint="SELECT * FROM hw_catalog.events shows what it waits for.",
                )
            await asyncio.sleep(_POLL_S)
            waited += _POLL_S

    def take_safe(self) -> CdcOffset | None:
        """What the server has not been told yet."""
        safe, self._safe = self._safe, None
        return safe

    async def close(self) -> None:
        """Let go of connections."""
        log, self.log = self.log, None
        if log is not None:
            await self.readers(log.close)
        self.readers.close()
        self.watching.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class CdcTable:
    """One table that is kept in step with an external one."""

    id: TableId
    name: str
    """The user's name of it."""
    upstream: str
    store: StateTable
    open: Callable[[], KeyedTable]
    """Connects to the external table; blocks."""
    open_some: Callable[[Sequence[str]], KeyedTable]
    """The same, of some of its columns."""
    policy: SchemaPolicy = SchemaPolicy.EVOLVE
    named: bool = False
    """Whether it follows only the columns that its definition names."""
    included: Included = field(default_factory=Included)
    """Columns that say when and where a row was written."""
    pace: Pace = field(default_factory=Pace)
    splits: SplitOptions = field(default_factory=SplitOptions)
    snapshot: bool = True


class StepKind(StrEnum):
    """What a definition does to a table that follows another."""

    EVOLVE = "evolve"
    CLEAR = "clear"
    REPLACE = "replace"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaStep:
    """What a source's actor stages at the barrier that carries a definition."""

    kind: StepKind
    table: TableId
    change: SchemaChange
    name: str = ""
    """The user's name of the table, for people."""
    seen: str = ""
    """What is filed of the external table from then on."""
    upto: CdcOffset | None = None
    """The end of the batch that tells of the change."""

    @property
    def facts(self) -> dict[str, str]:
        """What is filed with it."""
        match self.kind:
            case StepKind.EVOLVE:
                return {f"{SEEN}{self.table}": self.seen}
            case StepKind.CLEAR:
                # Should nothing follow, it has no rows: it must not go on as if it had them all.
                return {f"{STOPPED}{self.table}": _EMPTIED.format(sql_quoted(self.name))}
            case StepKind.REPLACE:
                return {f"{name}{self.table}": "" for name in (SEEN, PROGRESS, STOPPED)}


class CdcTables:
    """The tables of one source, by id."""

    def __init__(self, tables: Iterable[CdcTable] = ()) -> None:
        self._tables = {table.id: table for table in tables}
        self.changed = asyncio.Event()
        """Set when a table came or went; its job takes notice and clears it."""
        self._gone: set[str] = set()
        self.steps: dict[int, SchemaStep] = {}
        """Changes of schemas, by the key of the definition that brings them."""
        self._again: set[TableId] = set()

    def __iter__(self) -> Iterator[CdcTable]:
        return iter(list(self._tables.values()))

    def __contains__(self, table: TableId) -> bool:
        return table in self._tables

    def add(self, table: CdcTable) -> None:
        """Keep a table current from now on; the ledger has it."""
        if table.id in self._tables:
            self._again.add(table.id)
        self._tables[table.id] = table
        self.changed.set()

    def repace(self, table: TableId, change: Callable[[Pace], Pace]) -> None:
        """Read a table at another pace: one that does not run yet, or runs anew, begins so."""
        if table in self._tables:
            known = self._tables[table]
            self._tables[table] = replace(known, pace=change(known.pace))

    def pace(self, table: CdcTable) -> Pace:
        """At which pace a table is read, as far as is known by now."""
        return self._tables.get(table.id, table).pace

    def take_redefined(self) -> set[TableId]:
        """Tables that were added again, with another definition."""
        again, self._again = self._again, set()
        return again

    def __getitem__(self, table: TableId) -> CdcTable:
        return self._tables[table]

    def remove(self, tables: Iterable[TableId]) -> None:
        """Let tables go."""
        for table in tables:
            self._tables.pop(table, None)
        self.changed.set()

    def forget(self, upstream: str) -> None:
        """A table that followed this external one is dropped, and the ledger knows."""
        self._gone.add(upstream)
        self.changed.set()

    def take_gone(self) -> list[str]:
        """External tables that some table followed which is dropped; each once."""
        gone, self._gone = sorted(self._gone), set()
        return gone

    @property
    def upstreams(self) -> list[str]:
        """The external tables that are followed now."""
        return [table.upstream for table in self._tables.values()]

    @property
    def ids(self) -> tuple[TableId, ...]:
        """The tables now."""
        return tuple(self._tables)

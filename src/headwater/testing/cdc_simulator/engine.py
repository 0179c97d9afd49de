"""One life of an engine: a log reader, the backfills of its tables, and reads under way.

Everything here is lost in a crash. The simulation calls one small step after the other, in any
order, and may stop between any two of them. Columns are followed as the source's actor does it:
a batch that changes some is not delivered; the change has an epoch of its own, and the table
carries on from what that epoch stored.
"""

from dataclasses import dataclass
from random import Random

import pyarrow as pa

from headwater.backfill.cdc.followed_columns import AskedChange, FollowedColumns
from headwater.backfill.cdc.machine import DivideSplit, Instruction, ReadChunk, ReadKeys
from headwater.backfill.cdc.pace import Pace
from headwater.backfill.cdc.places import later
from headwater.backfill.cdc.state import BackfillState, decode, not_begun
from headwater.backfill.cdc.table_backfill import EpochOutput, Lookup, TableBackfill, TableLog
from headwater.cdc.external_table import Seen, SnapshotChunk, Split
from headwater.cdc.offset import CdcOffset, PostgresOffset
from headwater.cdc.schema_change import NotPossible, decode_seen, encode_seen
from headwater.model.rate_limit import RateLimit
from headwater.testing.cdc_simulator.change_log import ModelLog
from headwater.testing.cdc_simulator.columns import KEY
from headwater.testing.cdc_simulator.database import Database, Key, PlaceSeen, SnapshotSeen, Table
from headwater.testing.cdc_simulator.store import Ledger, Record, StoredTable


@dataclass(slots=True, eq=False)
class Read:
    """A read on its way: asked for, then marked, then taken, then it arrives."""

    table: str
    instruction: Instruction
    keys: pa.Table | None = None
    low: CdcOffset | None = None
    chunk: SnapshotChunk | None = None
    columns: tuple[str, ...] = ()
    """The columns that are wanted, by the names that they had when it was asked for."""


class Engine:
    """What runs between two crashes."""

    def __init__(self, database: Database, ledger: Ledger, random: Random, at: float) -> None:
        self.at = at
        self.stored: dict[str, StoredTable] = dict(ledger.last.tables)
        self.offset = ledger.last.offset
        self.tables: dict[str, TableBackfill] = {}
        self.columns: dict[str, FollowedColumns] = {}
        self.reads: list[Read] = []
        self.outputs: dict[str, EpochOutput] = {}
        self.asked: tuple[str, AskedChange] | None = None
        """A change of columns that the catalog has not followed; nothing is read meanwhile."""
        self._evolved: tuple[str, AskedChange] | None = None
        """The same, while its epoch is under way."""
        self._unfillable: set[str] = set()
        self._database = database
        self._log = ModelLog(database)
        self._ledger = ledger
        self._random = random
        self._pace = draw_pace(random)
        for name, state in ledger.last.states.items():
            # A table that one reader began may be carried on by several, at any time.
            version = 1 if state[0] == "1" and random.random() < 0.5 else 2
            self._join(name, decode(state), ledger.last.seen[name], version)

    def add_table(self, name: str) -> None:
        """A table joins: its snapshot begins after a place from which on the log counts."""
        table = self._database.tables[name]
        schema = self._database.external(table.columns)
        since = self._database.offset
        table.published = True
        version = 1 if self._random.random() < 0.2 else 2
        splits = [Split(number=1, columns=("id",))]
        if version == 2:
            splits = table.cut(splits[0], self._random.randint(1, 4), self._random)
        postgres = self._database.style == "postgres"
        state = BackfillState(
            splits=not_begun(tuple(splits)),
            # Writes made before the table was published are in no log: chunks must see them.
            to_see=self._database.numbers_running() if postgres else (),
            floor=since,
        )
        self.stored[name] = StoredTable(schema.schema)
        self._join(name, state, encode_seen(name, schema, since), version)

    def _join(self, name: str, state: BackfillState, seen: str, version: int = 2) -> None:
        """Begin or carry on with a table; values of new columns are read when it is time."""
        table = self._database.tables[name]
        self._unfillable.discard(name)
        if state.fill_is_due(self.offset):
            if set(state.fill) <= {each.name for each in table.columns}:
                whole = Split(number=1, columns=("id",))
                splits = table.cut(whole, self._random.randint(1, 3), self._random)
                state = state.with_fill_begun(tuple(splits), self.offset)
            else:
                self._unfillable.add(name)
        self.columns[name] = FollowedColumns(decode_seen(seen))
        self.tables[name] = TableBackfill(
            self.stored[name].schema,
            state,
            self._pace,
            offset=self.offset,
            lookup=self._lookup(name),
            at=self.at,
            version=version if len(state.splits) < 2 and not state.fill else 2,
        )

    # Steps

    def read_log(self, *, again: bool, looks: bool = False) -> None:
        """Deliver some more of the log to every table, perhaps with what they had already."""
        if self.asked is not None:
            return
        database = self._database
        assert isinstance(self.offset, PostgresOffset)
        since = self.offset.lsn
        if again:
            # A log is opened with the columns of its place: it is not read from before these.
            since = max(since - self._random.randint(1, 8), database.acknowledged)
            since = max(since, min(self.offset.lsn, database.last_altered))
        if since < database.acknowledged:
            raise AssertionError(f"the log is read after {since}, which is forgotten")
        count = self._random.choice((1, 2, 3, 10))
        known = {name: columns.schema for name, columns in self.columns.items()}
        batch = self._log.batch(since, count, known, looks=looks)
        for name, columns in self.columns.items():
            table = self.stored[name]
            found = columns.change_in(batch, table.schema, table.retired, self.tables[name].state)
            if isinstance(found, NotPossible):
                raise AssertionError(f"{name} cannot follow: {found.why}")
            if found is not None:
                self.asked = name, found
                return
        for name, columns in self.columns.items():
            self._deliver(name, columns.taken(batch, self.stored[name].schema))
        self.offset = later(self.offset, batch.offset)

    def begin_reads(self) -> None:
        """Ask every table what to read."""
        for name, backfill in self.tables.items():
            for each in backfill.next(self.at):
                keys = backfill.keys_of(each) if isinstance(each, ReadKeys) else None
                self.reads.append(Read(name, each, keys, columns=backfill.wanted))

    def move_read(self, *, fails: bool) -> None:
        """One read comes a step further."""
        read = self._random.choice(self.reads)
        table = self._database.tables[read.table]
        if fails:
            self.reads.remove(read)
            self._answer(read, None)
        elif isinstance(read.instruction, DivideSplit):
            self.reads.remove(read)
            self._answer(read, table.cut(read.instruction.rest, 3, self._random))
        elif read.low is None:
            read.low = self._database.offset
        elif read.chunk is None:
            names = {each.name for each in table.columns}
            if set(read.columns) <= names:
                read.chunk = self._take(read, table)
            else:
                # It is read again, until the log has come to the columns of today.
                self.reads.remove(read)
                self._answer(read, None)
        else:
            self.reads.remove(read)
            self._answer(read, read.chunk)

    def seal(self) -> None:
        """The epoch ends: stage what every table gives."""
        self.outputs = {}
        for name in self.tables:
            self.outputs[name] = output = self._seal(name)
            self.stored[name] = self.stored[name].after(output)

    def evolve(self) -> None:
        """The epoch that ends now brings the change that was asked for."""
        assert self.asked is not None
        (name, asked), self.asked = self.asked, None
        self._evolved = name, asked
        self.tables[name].version = 2
        self.tables[name].evolve(asked.change, asked.upto)

    def commit(self) -> None:
        """The ledger gets the epoch. Replay: the simulation calls it once."""
        states = {name: output.state for name, output in self.outputs.items()}
        seen = {name: self.columns[name].seen for name in self.outputs}
        if self._evolved is not None:
            name, asked = self._evolved
            seen[name] = asked.seen
        tables = {name: self.stored[name] for name in self.outputs}
        self._ledger.append(Record(self.offset, tables, states, seen))

    def carry_on(self) -> None:
        """Tables that have other columns, or columns to fill, join again from what was staged."""
        if self._evolved is not None:
            (name, asked), self._evolved = self._evolved, None
            self._rejoin(name, asked.seen)
        for name, backfill in list(self.tables.items()):
            due = self.asked is None and backfill.state.fill_is_due(self.offset)
            if due and name not in self._unfillable:
                self._rejoin(name, self.columns[name].seen)

    def _rejoin(self, name: str, seen: str) -> None:
        self.reads = [each for each in self.reads if each.table != name]
        self._join(name, decode(self.outputs[name].state), seen)

    def acknowledge(self) -> None:
        """The database may forget what the ledger has."""
        offset = self._ledger.last.offset
        assert isinstance(offset, PostgresOffset)
        self._database.acknowledged = offset.lsn

    def disturb(self) -> None:
        """A user turns a knob of some table."""
        if not self.tables:
            return
        backfill = self._random.choice(list(self.tables.values()))
        machine = backfill.machine
        match self._random.randrange(4):
            case 0:
                machine.paused = not machine.paused
            case 1:
                limit = self._random.choice((None, 0, 1, 5, 100))
                machine.throttled(RateLimit(rows_per_s=limit), self.at)
            case 2:
                machine.scaled(self._random.randint(1, 4))
            case _:
                machine.throttled(RateLimit(), self.at)
                machine.paused = False

    def release(self) -> None:
        """Nothing is limited any more."""
        for backfill in self.tables.values():
            backfill.machine.paused = False
            backfill.machine.throttled(RateLimit(), self.at)

    # How the tables are driven

    def _deliver(self, name: str, log: TableLog) -> None:
        self.tables[name].deliver(log)

    def _seal(self, name: str) -> EpochOutput:
        return self.tables[name].seal()

    def _answer(self, read: Read, answer: SnapshotChunk | list[Split] | None) -> None:
        backfill, number = self.tables[read.table], read.instruction.read
        if answer is None:
            backfill.failed(number, self.at)
        elif isinstance(answer, SnapshotChunk):
            backfill.arrived(number, answer, self.at)
        else:
            backfill.divided(number, answer)

    def close(self) -> None:
        """The engine has died, or is no longer needed."""

    # Inside

    def _lookup(self, name: str) -> Lookup:
        def lookup(keys: pa.Table) -> pa.Table:
            return self.stored[name].lookup(keys)

        return lookup

    def _take(self, read: Read, table: Table) -> SnapshotChunk:
        """The snapshot itself: rows as they are visible now, and what that means."""
        database = self._database
        assert read.low is not None
        seen: Seen
        low = read.low
        if database.style == "postgres":
            seen = SnapshotSeen(database.next_xid(), frozenset(database.numbers_running()))
            hidden = [each.lsn for each in database.unseen]
            low = PostgresOffset(min(hidden) - 1) if hidden else database.offset
        elif database.style == "mariadb":
            seen, low = PlaceSeen(database.lsn), database.offset
        else:
            assert isinstance(low, PostgresOffset)
            seen = PlaceSeen(low.lsn)
        keys, cursor = self._keys(read, table)
        return SnapshotChunk(
            rows=_arrow(keys, table, read.columns),
            seen=seen,
            low=low,
            high=database.offset,
            cursor=cursor,
        )

    def _keys(self, read: Read, table: Table) -> tuple[list[Key], tuple[str, ...] | None]:
        instruction = read.instruction
        if isinstance(instruction, ReadChunk):
            inside = table.within(instruction.split, instruction.after)
            keys = sorted((key for key in table.rows if inside(key)), key=table.order)
            chosen = keys[: instruction.max_rows]
            cursor = (str(chosen[-1]),) if len(chosen) < len(keys) else None
        else:
            assert read.keys is not None
            chosen = [key for key in read.keys.column("id").to_pylist() if key in table.rows]
            cursor = None
        return chosen, cursor


def draw_pace(random: Random) -> Pace:
    """The limits of one life."""
    return Pace(
        parallelism=random.randint(1, 3),
        chunk_rows=random.choice((1, 2, 3, 100)),
        held_bytes=random.choice((1, 200, 1 << 20)),
        remembered_bytes=random.choice((40, 400, 1 << 20, 1 << 20)),
        divide_after_rows=random.choice((1, 2, 4, 1000)),
        probe_after=random.choice((0, 2, 1000)),
        keys_at_once=random.choice((1, 3)),
        limit=RateLimit(rows_per_s=random.choice((None, None, 3, 50))),
    )


def _arrow(keys: list[Key], table: Table, names: tuple[str, ...]) -> pa.Table:
    """Rows with the columns and types that the table has today under some names."""
    columns = {each.name: each for each in table.columns}
    found = {
        name: pa.array(
            [key if column.id == KEY else column.value(table.rows[key]) for key in keys],
            column.type.arrow,
        )
        for name, column in ((name, columns[name]) for name in names)
    }
    return pa.table(found)

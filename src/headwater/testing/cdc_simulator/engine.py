"""One life of an engine: a log reader, the backfills of its tables, and reads under way.

Everything here is lost in a crash. The simulation calls one small step after the other, in any
order, and may stop between any two of them.
"""

from dataclasses import dataclass
from random import Random

import pyarrow as pa

from headwater.backfill.cdc.machine import DivideSplit, Instruction, ReadChunk, ReadKeys
from headwater.backfill.cdc.pace import Pace
from headwater.backfill.cdc.places import later
from headwater.backfill.cdc.rate_limit import RateLimit
from headwater.backfill.cdc.state import BackfillState, decode, not_begun
from headwater.backfill.cdc.table_backfill import EpochOutput, Lookup, TableBackfill, TableLog
from headwater.cdc.external_table import Seen, SnapshotChunk, Split
from headwater.cdc.offset import CdcOffset, PostgresOffset
from headwater.model.schema import Schema
from headwater.testing.cdc_simulator.database import (
    Database,
    PlaceSeen,
    Rows,
    SnapshotSeen,
    Table,
)
from headwater.testing.cdc_simulator.store import Ledger, Record, Store


@dataclass(slots=True, eq=False)
class Read:
    """A read on its way: asked for, then marked, then taken, then it arrives."""

    table: str
    instruction: Instruction
    keys: pa.Table | None = None
    low: CdcOffset | None = None
    chunk: SnapshotChunk | None = None
    schema: Schema | None = None
    """What the table was known to look like when it was asked for."""


class Engine:
    """What runs between two crashes."""

    def __init__(self, database: Database, ledger: Ledger, random: Random, at: float) -> None:
        self.at = at
        self.store = Store.of(ledger.last)
        self.offset = ledger.last.offset
        self.tables: dict[str, TableBackfill] = {}
        self.reads: list[Read] = []
        self.outputs: dict[str, EpochOutput] = {}
        self._database = database
        self._ledger = ledger
        self._random = random
        self._pace = draw_pace(random)
        for name, state in ledger.last.states.items():
            # A table that one reader began may be carried on by several, at any time.
            version = 1 if state[0] == "1" and random.random() < 0.5 else 2
            self.tables[name] = TableBackfill(
                ledger.last.schemas[name],
                decode(state),
                self._pace,
                offset=self.offset,
                lookup=self._lookup(name),
                at=at,
                version=version,
            )

    def add_table(self, name: str) -> None:
        """A table joins: its log begins where the engine is, its snapshot after that."""
        table = self._database.tables[name]
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
            floor=None if postgres else self.offset,
        )
        self.tables[name] = TableBackfill(
            table.schema,
            state,
            self._pace,
            offset=self.offset,
            lookup=self._lookup(name),
            at=self.at,
            version=version,
        )

    # Steps

    def read_log(self, *, again: bool) -> None:
        """Deliver some more of the log to every table, perhaps with what they had already."""
        database = self._database
        assert isinstance(self.offset, PostgresOffset)
        since = self.offset.lsn
        if again:
            since = max(since - self._random.randint(1, 8), database.acknowledged)
        if since < database.acknowledged:
            raise AssertionError(f"the log is read after {since}, which is forgotten")
        count = self._random.choice((1, 2, 3, 10))
        transactions = database.transactions(since, count)
        end = transactions[-1].lsn if transactions else database.lsn
        offset = PostgresOffset(end)
        for name in self.tables:
            changes = database.changes(transactions, database.tables[name])
            events = database.events(transactions, database.tables[name])
            self._deliver(name, TableLog(offset=offset, changes=changes, events=events))
        self.offset = later(self.offset, offset)

    def begin_reads(self) -> None:
        """Ask every table what to read."""
        for name, backfill in self.tables.items():
            for each in backfill.next(self.at):
                keys = backfill.keys_of(each) if isinstance(each, ReadKeys) else None
                self.reads.append(Read(name, each, keys, schema=backfill.schema))

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
            read.chunk = self._take(read, table)
        else:
            self.reads.remove(read)
            self._answer(read, read.chunk)

    def seal(self) -> None:
        """The epoch ends: stage what every table gives."""
        self.outputs = {}
        for name in self.tables:
            self.outputs[name] = output = self._seal(name)
            self.store.stage(self._database.tables[name], output)

    def commit(self) -> None:
        """The ledger gets the epoch. Replay: the simulation calls it once."""
        rows = {name: dict(rows) for name, rows in self.store.rows.items()}
        states = {name: output.state for name, output in self.outputs.items()}
        schemas = {name: backfill.schema for name, backfill in self.tables.items()}
        self._ledger.append(Record(self.offset, rows, states, schemas))

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
        table = self._database.tables[name]
        return lambda keys: self.store.lookup(table, keys)

    def _take(self, read: Read, table: Table) -> SnapshotChunk:
        """The snapshot itself: rows as they are visible now, and what that means."""
        database = self._database
        assert read.low is not None
        assert read.schema is not None
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
        rows, cursor = self._rows(read, table)
        return SnapshotChunk(
            rows=_arrow(rows, table).select(list(read.schema.names)),
            seen=seen,
            low=low,
            high=database.offset,
            cursor=cursor,
        )

    def _rows(self, read: Read, table: Table) -> tuple[Rows, tuple[str, ...] | None]:
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
        return {key: table.rows[key] for key in chosen}, cursor


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


def _arrow(rows: Rows, table: Table) -> pa.Table:
    columns = ([row[place] for row in rows.values()] for place in range(3))
    return pa.table([list(rows), *columns], schema=table.wide.arrow)

"""One seed: a database, engines that crash, and the checks at every commit.

At every committed epoch
    equal       a table that is filled has exactly the rows of the database at the recorded place,
                in all columns that both have; where the log has come past every change of
                columns, these are the same
    not older   a row of any other table is the one at the recorded place, or a later one
    forwards    no cursor, count or place goes back; no split that has emitted rows is reset

In the end the database is quiet, nothing fails any more, and every table must be backfilled and
equal. What the ledger has is acknowledged and forgotten by the database, so that a place that
runs ahead of its rows cannot be repaired by reading the log again.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from zlib import crc32

from headwater.backfill.cdc import state as stored
from headwater.backfill.cdc.places import reaches
from headwater.backfill.cdc.state import BackfillState, follows
from headwater.cdc import schema_change
from headwater.cdc.offset import PostgresOffset
from headwater.testing.cdc_simulator.columns import KEY, NUMBER, Columns, ModelColumn, identity
from headwater.testing.cdc_simulator.database import STYLES, Database, Key, Rows
from headwater.testing.cdc_simulator.engine import Engine
from headwater.testing.cdc_simulator.executor_engine import ExecutorEngine
from headwater.testing.cdc_simulator.store import Ledger, Record, StoredTable
from headwater.testing.many_seeds import SeedFailed

_LONGEST_END = 400
EXECUTOR_SHARE = 5
"""One seed in so many runs the asynchronous executors; the others only what is inside them."""

decode = functools.lru_cache(maxsize=64)(stored.decode)
decode_seen = functools.lru_cache(maxsize=64)(schema_change.decode_seen)
"""Most epochs store what the one before has stored."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a seed came to."""

    seed: int
    epochs: int
    lives: int
    digest: int


class _Crashed(Exception):
    pass


@dataclass(slots=True)
class Faults:
    """Probabilities, drawn per seed: some seeds are calm in some respects."""

    crash: float
    failing: float
    again: float
    disturb: float
    slow: float
    """How often nothing comes of a step of the snapshot, while the database goes on."""
    late: float
    """The same for the log."""

    @staticmethod
    def draw(random: Random) -> "Faults":
        """The mix of one seed."""

        def some(most: float) -> float:
            return most * random.random() if random.random() < 0.6 else 0.0

        return Faults(some(0.08), some(0.4), some(0.4), some(0.15), some(0.95), some(0.95))

    @staticmethod
    def none() -> "Faults":
        """Everything works at once."""
        return Faults(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


class Scenario:
    """One seed on its way."""

    def __init__(self, seed: int, alters: float | None = None) -> None:
        self.executors = seed % EXECUTOR_SHARE == 0
        self.random = random = Random(seed)
        self.database = Database(
            random.choices(STYLES, (3, 1, 1))[0], random.choice((1, 1, 2, 3)), random, alters
        )
        self.faults = Faults.draw(random)
        if random.random() < 0.7:
            self.database.load()
        for _ in range(random.randint(0, 30)):
            self.database.step()
        self.ledger = Ledger(self.database.offset)
        self.lives = 1
        self.at = 0.0
        self.trace: list[str] = []
        self.engine = self._engine()
        if random.random() < 0.8:
            self._add_table()

    def _engine(self) -> Engine:
        kind = ExecutorEngine if self.executors else Engine
        return kind(self.database, self.ledger, self.random, self.at)

    def run(self) -> None:
        """Live through it, then let it come to rest and compare."""
        for _ in range(self.random.randint(30, 100)):
            self._guarded(self._step)
        self.faults = Faults.none()
        self.database.settle()
        self._come_to_rest()

    def _guarded(self, step: Callable[[], None]) -> None:
        try:
            step()
        except _Crashed:
            self._restart()

    def _step(self) -> None:
        random = self.random
        self.at += random.random() * 0.3
        self.engine.at = self.at
        self._crash_maybe()
        dice = random.random()
        if self.engine.asked is not None and random.random() < 0.5:
            self._follow_change()
        elif dice < 0.33 or self._waits(dice):
            for _ in range(random.randint(1, 5)):
                self.database.step()
        elif dice < 0.53:
            again = random.random() < self.faults.again
            self.engine.read_log(again=again, looks=random.random() < 0.3)
        elif dice < 0.83:
            self._read()
        elif dice < 0.94:
            self._end_epoch()
        elif random.random() < self.faults.disturb:
            self.engine.disturb()
        else:
            self._add_table()

    def _waits(self, dice: float) -> bool:
        """Whether what would be read, log or snapshot, is not there yet."""
        patience = self.faults.late if dice < 0.53 else self.faults.slow
        return dice < 0.83 and self.random.random() < patience

    def _read(self) -> None:
        self.engine.begin_reads()
        for _ in range(self.random.choice((1, 2, 3, 6))):
            if self.engine.reads:
                self.engine.move_read(fails=self.random.random() < self.faults.failing)

    def _add_table(self) -> None:
        missing = [name for name in self.database.tables if name not in self.engine.tables]
        if missing:
            self.engine.add_table(self.random.choice(missing))

    def _follow_change(self) -> None:
        """Rows with old columns go into an epoch of their own first, as the catalog has it."""
        self._end_epoch()
        self._crash_maybe()
        if self.random.random() < 0.3:
            self._read()
        self.engine.evolve()
        self._end_epoch()

    def _end_epoch(self) -> None:
        self.engine.seal()
        self._crash_maybe()
        before = self.ledger.last
        self.engine.commit()
        self._check(before, self.ledger.last)
        self._crash_maybe()
        self.engine.carry_on()
        self._crash_maybe()
        self.engine.acknowledge()

    def _crash_maybe(self) -> None:
        if self.random.random() < self.faults.crash:
            raise _Crashed

    def _restart(self) -> None:
        self.lives += 1
        self.engine.close()
        self.engine = self._engine()

    def _come_to_rest(self) -> None:
        for name in self.database.tables:
            if name not in self.engine.tables:
                self.engine.add_table(name)
        self.engine.release()
        for _ in range(_LONGEST_END):
            self.at += 1.0
            self.engine.at = self.at
            self._read_all()
            self.engine.begin_reads()
            for _ in range(3 * len(self.engine.reads)):
                if self.engine.reads:
                    self.engine.move_read(fails=False)
            self._end_epoch()
            states = [decode(state) for state in self.ledger.last.states.values()]
            caught_up = self.ledger.last.offset == self.database.offset
            if caught_up and all(state.complete for state in states):
                self._check_columns()
                return
        raise AssertionError(
            f"not backfilled after {_LONGEST_END} quiet epochs: {self.ledger.last.states}"
        )

    def _read_all(self) -> None:
        """To the end of the log, and what nobody wrote of there."""
        while True:
            end = self.engine.offset == self.database.offset
            self.engine.read_log(again=False, looks=True)
            if self.engine.asked is not None:
                self._follow_change()
            elif end:
                return

    # Checks

    def _check_columns(self) -> None:
        for name, table in self.ledger.last.tables.items():
            there = {each.name: each.type for each in self.database.tables[name].columns}
            here = {each.name: each.type for each in table.schema.columns}
            if here != there:
                raise AssertionError(f"{name} has the columns {here}, and upstream {there}")

    def _check(self, before: Record, after: Record) -> None:
        assert isinstance(after.offset, PostgresOffset)
        if not reaches(after.offset, before.offset):
            raise AssertionError(f"the place went back from {before.offset} to {after.offset}")
        truth = self.database.rows_at(after.offset.lsn)
        for name, text in after.states.items():
            state = decode(text)
            if name in before.states:
                self._check_forwards(name, decode(before.states[name]), state)
            table = after.tables[name]
            self.trace.append(f"{after.offset} {name} {len(table.rows)} {text}")
            columns = self.database.columns_at(name, after.offset.lsn)
            seen = {
                identity(each): each.column.name
                for each in decode_seen(after.seen[name]).schema.columns
            }
            if state.backfill_finished or state.filling:
                _check_equal(name, after.offset, table, truth[name], _both(columns, seen, state))
                continue
            for key in table.rows:
                number, there = table.rows[key].get(seen[NUMBER]), truth[name].get(key)
                if there is None or number != there[0]:
                    later = self.database.later_numbers(name, key, after.offset.lsn)
                    if number not in later:
                        raise AssertionError(
                            f"{name} has {key}: {number} at {after.offset}, "
                            f"which is older than {there}"
                        )

    def _check_forwards(self, name: str, before: BackfillState, after: BackfillState) -> None:
        if after.filling and not before.filling:
            # Another kind of reading has begun, over splits of its own.
            return
        follows(before, after)
        table = self.database.tables[name]
        cursors = {each.split.number: each.cursor for each in after.splits}
        for each in before.splits:
            cursor = cursors.get(each.split.number)
            if each.cursor is not None and cursor is not None:
                old, new = (table.order(table.parse(c[0])) for c in (each.cursor, cursor))
                if new < old:
                    raise AssertionError(f"{name}: the cursor went back from {old} to {new}")


def _both(
    columns: Columns, seen: Mapping[int, str], state: BackfillState
) -> dict[str, ModelColumn]:
    """The columns that a table has, by their names here, of those that it has upstream.

    Columns of the next change may be here already, and those that are being filled may be old.
    """
    return {
        seen[each.id]: each
        for each in columns
        if each.id != KEY and each.id in seen and seen[each.id] not in state.fill
    }


def _check_equal(
    name: str,
    offset: PostgresOffset,
    table: StoredTable,
    truth: Rows,
    columns: Mapping[str, ModelColumn],
) -> None:
    rows: dict[Key, object] = {}
    for key in table.rows:
        row = table.row(key)
        rows[key] = {each: row[each] for each in columns if each in row}
    there = {
        key: {
            each: column.value(row)
            for each, column in columns.items()
            if each in table.schema.names
        }
        for key, row in truth.items()
    }
    if rows == there:
        return
    missing = {key: row for key, row in there.items() if key not in rows}
    extra = {key: row for key, row in rows.items() if key not in there}
    wrong = {k: (rows[k], there[k]) for k in rows.keys() & there.keys() if rows[k] != there[k]}
    raise AssertionError(f"{name} at {offset}: missing {missing}, extra {extra}, wrong {wrong}")


def replay_command(seed: int) -> str:
    """How to run one seed again."""
    return f"python -m headwater.testing.cdc_simulator --seeds 1 --seed0 {seed} --jobs 1"


def run_seed(seed: int, *, alters: float | None = None) -> Report:
    """Run one seed to its end, or raise `SeedFailed`; `alters` says how often tables change."""
    scenario = Scenario(seed, alters)
    try:
        scenario.run()
    except Exception as error:
        text = f"{type(error).__name__}: {error}\nseed {seed}; again: {replay_command(seed)}"
        raise SeedFailed(text) from error
    finally:
        scenario.engine.close()
    digest = crc32("\n".join(scenario.trace).encode())
    return Report(seed, scenario.ledger.commits, scenario.lives, digest)

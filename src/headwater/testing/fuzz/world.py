"""One seed: a random world that is built, written to, crashed and checked at every epoch.

    tables         two or three, of all types, with and without keys
    views          three to six, on tables and on each other, under all refresh policies
    epochs         three to six, each of a few statements
    in between     crashes at crash points, restarts, folding, new views, dropped views

The same seed makes the same decisions, whatever the machine's speed; only the numbers of epochs
differ. A view that the engine refuses (SQLSTATE 0A000) is counted, and another one is tried.
"""

import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from headwater.model.epoch import Epoch
from headwater.testing.fuzz.queries import MOST_ROWS, Queries
from headwater.testing.fuzz.schema import Column, Relation, Table, random_table
from headwater.testing.fuzz.script import (
    CRASH,
    FLUSH,
    MAINTAIN,
    RESTART,
    STOP,
    Script,
    ScriptFailed,
)
from headwater.testing.fuzz.values import family_of
from headwater.testing.fuzz.writes import filling, statements

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POINTS = (
    "stage.before_files", "stage.after_files", "epoch.before_ledger", "epoch.after_ledger",
    "publish.between_tables", "publish.after", "source.after_acknowledge",
)  # fmt: skip
_POLICIES = ("auto",) * 3 + ("incremental",) * 5 + ("incremental_strict", "full")
_RISK_SHARE = 0.15
_RISK = 0.25
_TRIES = 4


@dataclass(slots=True)
class Report:
    """What a seed did."""

    seed: int
    seconds: float
    told: Counter[str]
    invalid: list[str] = field(default_factory=list)


class SeedFailed(AssertionError):
    """A seed found something; says how to run it again."""

    def __init__(self, seed: int, cause: ScriptFailed) -> None:
        super().__init__(f"seed {seed}: {cause}\nreplay: {replay_command(seed)}")
        self.seed = seed
        self.steps = cause.steps


def replay_command(seed: int) -> str:
    """How to run one seed alone."""
    return f"python -m headwater.testing.fuzz --seeds 1 --seed0 {seed}"


def run_seed(spark: "SparkSession", seed: int, folder: Path) -> Report:
    """Run one seed in an empty folder; raises `SeedFailed`."""
    began = time.monotonic()
    try:
        with Script(spark, folder) as script:
            World(script, seed).run()
            return Report(seed, time.monotonic() - began, script.told, script.invalid)
    except ScriptFailed as failed:
        raise SeedFailed(seed, failed) from failed


class World:
    """Makes the decisions of one seed."""

    def __init__(self, script: Script, seed: int) -> None:
        self._script = script
        self._random = Random(f"fuzz {seed}")
        self._risky = self._random.random() < _RISK_SHARE
        self._tables: list[Table] = []
        self._relations: dict[str, Relation] = {}
        self._levels: dict[str, int] = {}
        self._names = 0

    def run(self) -> None:
        """Live through the seed."""
        random, script = self._random, self._script
        for number in range(random.choice((2, 2, 3))):
            self._create_table(number)
        script.do(FLUSH)
        for _ in range(random.randrange(3, 7)):
            self._create_view()
        for _ in range(random.randrange(3, 6)):
            self._epoch()
        if random.random() < 0.3 and len(script.epochs) > 2:
            # Older epochs stay what they were; a view that has failed since cannot be asked.
            older = random.choice(script.epochs[1:])
            if not script.told["failed views"] and not script.told["views dropped"]:
                self._recheck(older)
        script.do(random.choice((STOP, RESTART, FLUSH)))

    def _create_table(self, number: int) -> None:
        table = random_table(self._random, number)
        self._script.do(table.create_sql)
        self._tables.append(table)
        rows = self._random.choice((0, 5, 20, 40))
        if rows:
            self._script.do(filling(self._random, table, rows))
        self._relations[table.name] = table.relation(rows)

    def _create_view(self) -> None:
        for _ in range(_TRIES):
            if self._try_view():
                return

    def _try_view(self) -> bool:
        random = self._random
        self._names += 1
        name = f"v{self._names}"
        chosen = self._readable()
        risk = _RISK if self._risky else 0.0
        made = Queries(random, chosen, risk).query(random.choice((0, 1, 1, 2)))
        policy = random.choice(_POLICIES)
        option = f" WITH (refresh_policy = '{policy}')" if policy != "auto" else ""
        text = f"CREATE MATERIALIZED VIEW {name}{option} AS {made.sql}"
        if self._script.do(text) is not None:
            return False
        self._levels[name] = 1 + max(
            (level for each, level in self._levels.items() if each in made.sql), default=0
        )
        rows = self._rows(name)
        if rows > MOST_ROWS:
            self._drop(name)
            return False
        self._relations[name] = self._relation(name, made.columns, rows)
        return True

    def _readable(self) -> list[Relation]:
        """Tables, and views that are not too deep already; views are preferred."""
        views = [self._relations[name] for name, level in self._levels.items() if level < 3]
        tables = [self._relations[table.name] for table in self._tables]
        return tables + views if self._random.random() < 0.7 else views or tables

    def _relation(self, name: str, columns: tuple[Column, ...], rows: int) -> Relation:
        """A view as it came out, which need not be what was asked for."""
        stored = self._script.life.hw.engine.catalog.snapshot().table(name).columns
        found = [
            replace(asked, family=family_of(column.type), name=asked.name)
            for asked, column in zip(columns, stored, strict=True)
        ]
        return Relation(name, tuple(found), rows)

    def _rows(self, name: str) -> int:
        hw = self._script.life.hw
        return int(hw.stored(name).view(hw.visible).rows)

    def _drop(self, name: str) -> None:
        if self._script.do(f"DROP MATERIALIZED VIEW {name}") is None:
            self._script.told["views dropped"] += 1
            self._relations.pop(name, None)
            self._levels.pop(name, None)

    def _epoch(self) -> None:
        random, script = self._random, self._script
        written = [random.choice(self._tables) for _ in range(random.choice((0, 1, 2, 3, 4)))]
        if random.random() < 0.5:
            # What changes together upstream comes in one epoch.
            written += self._tables
        for table in written:
            for statement in statements(random, table):
                script.do(statement)
        if random.random() < 0.12:
            self._create_view()
        if random.random() < 0.04 and self._levels:
            self._drop(random.choice(sorted(self._levels)))
        if random.random() < 0.1:
            script.do(MAINTAIN)
        end = random.random()
        if end < 0.12:
            script.do(f"{CRASH} {random.choice(_POINTS)} {random.choice((1, 1, 2, 3))}")
        elif end < 0.17:
            script.do(RESTART)
        script.do(FLUSH)

    def _recheck(self, epoch: Epoch) -> None:
        try:
            self._script.check(epoch)
        except AssertionError as error:
            told = f"at the older epoch {epoch}: {error}"
            raise ScriptFailed(told, self._script.steps) from error

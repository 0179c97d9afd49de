"""The simulated world: a bucket, a ledger's database, upstreams, and what goes wrong with them.

The world outlives every process in it. Each process has doors of its own into the world, so that
the world knows who knocks: a dead process finds them shut, and at every one of them a living
process may be killed, may wait, or may be told that something is unavailable.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from sqlalchemy import Connection, create_engine
from sqlalchemy.pool import StaticPool

from headwater import crash_points
from headwater.errors import (
    CommitUnknown,
    LedgerUnavailable,
    SourceUnavailable,
    StorageUnavailable,
)
from headwater.ledger.database import Database
from headwater.ledger.migrate import migrate
from headwater.testing.memory_storage import MemoryFiles, MemoryStorage
from headwater.testing.simulator.faults import Faults
from headwater.testing.simulator.file_reader import FileReader, LightReader, ParquetReader
from headwater.testing.simulator.observer import Observer
from headwater.testing.simulator.process import PROCESS, ProcessDied, SimLoop, SimProcess
from headwater.testing.simulator.upstream import SimSource, Upstream


class LedgerDatabase:
    """SQLite in memory: one connection, put back to an empty ledger for every seed."""

    def __init__(self, loop: SimLoop) -> None:
        self.connection = _memory()
        self.engine = create_engine(
            "sqlite://", creator=lambda: self.connection, poolclass=StaticPool
        )
        self._empty = _memory()
        migrate(Database(self.engine), loop.wall_clock, wait_s=0)
        self.connection.backup(self._empty)
        self.kept = self.engine.connect()
        """For every transaction: they come one at a time, as there is one connection."""

    def reset(self) -> None:
        """Back to an empty ledger. Replay: repeatable."""
        self.kept.rollback()
        self._empty.backup(self.connection)


def _memory() -> sqlite3.Connection:
    return sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)


_shared: list[LedgerDatabase] = []


def _weight(where: str) -> float:
    """Reads are frequent and change nothing; between two writes is where a crash hurts."""
    if where in crash_points.POINTS:
        return 8.0
    return 0.3 if "read" in where or "begin" in where or "get" in where else 3.0


class _Undone(Exception):
    """Rolls a transaction back whose answer is lost."""


class World:
    """Everything that a seed has outside its processes."""

    def __init__(self, seed: int, loop: SimLoop, *, parquet: bool) -> None:
        self.loop = loop
        self.parquet = parquet
        self.random = Random(f"{seed}/world")
        self.faults = Faults.draw(self.random)
        self.trace: list[str] = []
        self.files = MemoryFiles(immutable=True)
        self.upstreams: list[Upstream] = []
        self.owner: SimProcess | None = None
        """The process that started last; only it may read the upstreams."""
        self.calm = False
        """Whether every command must work and every source is read to its end."""
        self.crashes_left = self.random.choice((0, 1, 2, 4, 8))
        if not _shared:
            _shared.append(LedgerDatabase(loop))
        self.database = _shared[0]
        self.database.reset()
        reader: FileReader = ParquetReader(self.files) if parquet else LightReader(self.files)
        self.observer = Observer(
            ledger=self.database.connection,
            files=self.files,
            reader=reader,
            upstreams=self.upstreams,
            tell=self.tell,
            stop=loop.die,
        )

    def tell(self, what: str) -> None:
        """Write a line of the trace."""
        process = PROCESS.get()
        who = process.name if process else "world"
        self.trace.append(f"{self.loop.time():10.4f} {who:>5} {what}")

    def quiet(self) -> None:
        """Nothing goes wrong from now on."""
        self.faults = Faults()

    def happens(self, probability: float) -> bool:
        """Whether a fault strikes now."""
        return probability > 0 and self.random.random() < probability

    def step(self, process: SimProcess, where: str) -> None:
        """One step outside a process: it may take time, and it may be the process's last."""
        if process.dead:
            raise ProcessDied(process.name)
        if self.crashes_left and self.happens(self.faults.crash * _weight(where)):
            self.kill(process, where)
            raise ProcessDied(process.name)
        if self.loop.in_strand and (wait := self.loop.latency()) > 0:
            self.loop.linger(wait)

    def kill(self, process: SimProcess, where: str) -> None:
        """Kill a process."""
        self.crashes_left -= 1
        self.tell(f"{process.name} is killed at {where}")
        self.loop.kill(process)

    def pass_crash_point(self, point: str) -> None:
        """The hook of `headwater.crash_points`."""
        process = PROCESS.get()
        if process is not None:
            self.step(process, point)

    # Doors

    def storage(self, process: SimProcess) -> MemoryStorage:
        """A process's door to the bucket."""
        return MemoryStorage(self.files, gate=_StorageDoor(self, process))

    def ledger(self, process: SimProcess) -> "LedgerDoor":
        """A process's door to the ledger's database."""
        return LedgerDoor(self, process)

    def source(self, process: SimProcess, options: dict[str, Any]) -> SimSource:
        """A process's connection to an upstream."""
        upstream = self.upstreams[int(options["number"])]
        return SimSource(
            upstream,
            is_owner=lambda: self.owner is process,
            trouble=lambda call: self._source_trouble(process, upstream, call),
            latency=self.loop.latency,
            acknowledged=self.observer.acknowledged,
            lost=self.observer.fail,
            random=self.random,
        )

    def _source_trouble(
        self, process: SimProcess, upstream: Upstream, call: str
    ) -> Exception | None:
        self.step(process, f"{call} at the source")
        if self.happens(self.faults.source):
            return SourceUnavailable("the cable is out")
        # A job is at its most delicate while it is being created.
        created = upstream.number in self.observer.created
        likely = self.faults.actor if created else 15 * self.faults.actor
        failed = call == "read" and self.happens(likely)
        return RuntimeError("a bug in a job") if failed else None


class _StorageDoor:
    """Satisfies `headwater.testing.memory_storage.Gate`."""

    def __init__(self, world: World, process: SimProcess) -> None:
        self._world = world
        self._process = process

    def before(self, call: str, path: str) -> None:
        world = self._world
        world.step(self._process, f"{call} in storage")
        if world.happens(world.faults.storage):
            raise StorageUnavailable("storage is away")

    def after(self, call: str, path: str) -> None:
        world = self._world
        if call == "delete":
            world.observer.file_deleted(path)
        else:
            world.observer.file_written(path)
        world.step(self._process, f"{call} in storage, done")
        if world.happens(world.faults.storage_unknown):
            raise StorageUnavailable("storage did not answer")


class LedgerDoor(Database):
    """One process's way to the ledger's database."""

    def __init__(self, world: World, process: SimProcess) -> None:
        super().__init__(world.database.engine)
        self._world = world
        self._process = process

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Write, as the real one does, if nothing goes wrong. Replay: as the real one."""
        world, faults = self._world, self._world.faults
        world.step(self._process, "begin in the ledger")
        if world.happens(faults.ledger):
            raise LedgerUnavailable("the ledger is away")
        try:
            with super().transaction() as connection:
                yield connection
                if world.happens(faults.commit_lost):
                    raise _Undone
        except _Undone:
            world.step(self._process, "commit in the ledger, lost")
            raise CommitUnknown("the ledger did not answer a commit") from None
        world.observer.transaction_done()
        world.step(self._process, "commit in the ledger, done")
        if world.happens(faults.commit_unknown):
            raise CommitUnknown("the ledger did not answer a commit")

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Read, as the real one does, if nothing goes wrong."""
        self._world.step(self._process, "read in the ledger")
        if self._world.happens(self._world.faults.ledger):
            raise LedgerUnavailable("the ledger is away")
        with super().reading() as connection:
            yield connection

    def close(self) -> None:
        """The connection is the world's."""

    @contextmanager
    def _connection(self, *, writes: bool) -> Iterator[Connection]:
        yield self._world.database.kept

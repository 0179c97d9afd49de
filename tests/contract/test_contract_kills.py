"""kill -9 again and again, at random moments, while clients write and define.

    client      says                                      after recovery there is
    careful     INSERT of five rows, implicit flush       every statement that was answered, and
                                                          the last one whole or not at all
    hasty       INSERT, and INSERT, now and then FLUSH    a prefix of what it wrote, at least up
                                                          to the last FLUSH that was answered
    defining    CREATE TABLE, views on it, DROP CASCADE   what was answered; the last statement
                                                          done or not done, never half

Views equal their queries both ways after every recovery that is looked at. The seed is printed
with a failure; the moments of the kills depend on the machine all the same.
"""

import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest

from headwater.testing.processes import free_port
from serve_kit import READY_S, Served, assert_view, attempt, eventually, relations, rows, run

KILLS = int(os.environ.get("CONTRACT_KILLS", "3"))
LOOK_EVERY = 4
EXISTS, MISSING = {"42P07", "42710"}, {"42P01", "42704"}
VIEWS = {
    "by_batch": "SELECT batch, count(*) AS n, sum(v) AS s FROM careful GROUP BY batch",
    "both": "SELECT c.batch, h.life, h.n FROM careful c JOIN hasty h ON c.v = h.n",
    "on_view": "SELECT n, count(*) AS batches FROM by_batch GROUP BY n",
}


@dataclass
class World:
    """What the clients know to be true."""

    port: int
    answered: int = 0
    """Careful batches 1 to this are in the table."""
    asked: int = 0
    """The last careful batch that was sent."""
    life: int = 0
    flushed: dict[int, int] = field(default_factory=dict)
    sent: dict[int, int] = field(default_factory=dict)
    """Hasty rows of each life: at least 1 to `flushed`, at most 1 to `sent`."""
    defined: set[str] = field(default_factory=set)
    step: int = 0
    """The definition that was sent last, or comes next."""
    redone: int = 0
    """Definitions that were found done when they were sent again."""
    answers: int = 0
    """Statements that were answered, FLUSH and definitions included."""
    stop: threading.Event = field(default_factory=threading.Event)


def definition(step: int) -> tuple[str, set[str], set[str]]:
    """The statement of a step, what it adds and what it removes; steps go in rounds of four."""
    table = f"d{step // 4}"
    match step % 4:
        case 0:
            return f"CREATE TABLE {table} (k int PRIMARY KEY, v int)", {table}, set()
        case 1:
            query = f"SELECT v, count(*) AS n FROM {table} GROUP BY v"
            return f"CREATE MATERIALIZED VIEW {table}_m AS {query}", {f"{table}_m"}, set()
        case 2:
            query = f"SELECT sum(n) AS n FROM {table}_m"
            return f"CREATE MATERIALIZED VIEW {table}_mm AS {query}", {f"{table}_mm"}, set()
        case _:
            return f"DROP TABLE {table} CASCADE", set(), {table, f"{table}_m", f"{table}_mm"}


def careful(world: World, client: psycopg.Connection) -> None:
    run(client, "SET rw_implicit_flush = true")
    while not world.stop.is_set():
        world.asked = world.answered + 1
        batch = world.asked
        values = ", ".join(f"({batch * 5 + i}, {batch}, {batch + i})" for i in range(5))
        run(client, f"INSERT INTO careful VALUES {values}")
        world.answered = batch
        world.answers += 1


def hasty(world: World, client: psycopg.Connection) -> None:
    life = world.life
    while not world.stop.is_set():
        for _ in range(20):
            number = world.sent[life] = world.sent[life] + 1
            run(client, f"INSERT INTO hasty VALUES ({life * 1_000_000 + number}, {life}, {number})")
        run(client, "FLUSH")
        world.flushed[life] = number
        world.answers += 1


def defining(world: World, client: psycopg.Connection) -> None:
    first = True
    while not world.stop.is_set():
        statement, adds, removes = definition(world.step)
        error = attempt(client, statement)
        if error is not None:
            # The first one may have been done by the life before.
            if not first or error.sqlstate not in (EXISTS if adds else MISSING):
                raise error
            world.redone += 1
        first = False
        world.defined = (world.defined | adds) - removes
        world.step += 1
        world.answers += 1


CLIENTS: tuple[Callable[[World, psycopg.Connection], None], ...] = (careful, hasty, defining)


class Clients:
    """The three of them on one server, until the server is killed; any other error is kept."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.errors: list[BaseException] = []
        world.stop.clear()
        world.life += 1
        world.flushed[world.life] = world.sent[world.life] = 0
        self._threads = [threading.Thread(target=self._run, args=[each]) for each in CLIENTS]
        for thread in self._threads:
            thread.start()

    def _run(self, client: Callable[[World, psycopg.Connection], None]) -> None:
        line = None
        try:
            line = psycopg.connect(
                host="127.0.0.1", port=self.world.port, user="root", dbname="dev", autocommit=True
            )
            client(self.world, line)
        except psycopg.OperationalError as error:
            # 57P01 and no code at all are the end of the server; 40001 and the like are not.
            if error.sqlstate not in (None, "57P01", "57P03"):
                self.errors.append(error)
        except BaseException as error:
            self.errors.append(error)
        finally:
            if line is not None:
                line.close()

    def end(self) -> None:
        self.world.stop.set()
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive(), "a client of a killed server still waits"
        assert self.errors == []


def look(world: World, client: psycopg.Connection) -> None:
    """Compare everything with what the clients know, and take over what was left open."""
    found = rows(client, "SELECT batch, count(*), sum(v) FROM careful GROUP BY batch ORDER BY 1")
    reached = max((batch for batch, _, _ in found), default=0)
    assert reached in (world.answered, world.asked)
    assert found == [(b, 5, 5 * b + 10) for b in range(1, reached + 1)]
    world.answered = reached

    counted = "SELECT life, count(*), min(n), max(n) FROM hasty GROUP BY life"
    kept = {life: rest for life, *rest in rows(client, counted)}
    for life, sent in world.sent.items():
        count, least, most = kept.get(life, (0, 1, 0))
        assert (count, least) == (most, 1), f"rows in between are missing in life {life}"
        assert world.flushed[life] <= count <= sent
        # From now on exactly these are there.
        world.flushed[life] = world.sent[life] = count

    for view, query in VIEWS.items():
        assert_view(client, view, query)
    look_at_definitions(world, client)


def look_at_definitions(world: World, client: psycopg.Connection) -> None:
    _, adds, removes = definition(world.step)
    fixed = {"careful", "hasty", *VIEWS}
    done, undone = (world.defined | adds) - removes, world.defined
    assert relations(client) - fixed in (done, undone)


def set_up(client: psycopg.Connection) -> None:
    run(
        client,
        "CREATE TABLE careful (id int PRIMARY KEY, batch int, v bigint)",
        "CREATE TABLE hasty (id int PRIMARY KEY, life int, n bigint)",
        *(f"CREATE MATERIALIZED VIEW {name} AS {query}" for name, query in VIEWS.items()),
    )


def wait_for_answers(world: World, wanted: int, dice: random.Random) -> None:
    """Let some statements be answered, or none, and a moment more; not all of a slow day."""
    began = time.monotonic()
    while world.answers < wanted and time.monotonic() - began < 60:
        time.sleep(0.01)
    time.sleep(dice.uniform(0.0, 0.8))


def wait_for_all(world: World) -> None:
    """Let each client be answered in this life, however slow the machine is."""
    batches, steps = world.answered, world.step

    def done() -> bool:
        flushed = world.flushed[world.life] > 0
        return flushed and world.answered > batches + 1 and world.step > steps + 1

    eventually(done, 300, "an answer to each client")


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("seed", [20])
def test_killed_again_and_again_while_statements_run(seed, tmp_path):
    dice, world, workspace = random.Random(seed), World(port=free_port()), tmp_path / "w"
    slowest = 0.0
    with Served(workspace, port=world.port) as server:
        server.ready()
        with server.connect() as client:
            set_up(client)
        server.kill()
    for number in range(1, KILLS + 1):
        with Served(workspace, port=world.port) as server:
            if dice.random() < 0.15 and number < KILLS:
                time.sleep(dice.uniform(0.3, 2.0))
                server.kill()
                continue
            slowest = max(slowest, server.ready(timeout=READY_S))
            if number % LOOK_EVERY == 0:
                with server.connect() as client:
                    look(world, client)
            clients = Clients(world)
            if number == KILLS:
                wait_for_all(world)
            else:
                wait_for_answers(world, world.answers + dice.choice((0, 0, 1, 2, 4, 8)), dice)
            server.kill()
            clients.end()
    with Served(workspace, port=world.port) as server:
        server.ready()
        with server.connect() as client:
            look(world, client)
            run(client, *(f"DROP TABLE IF EXISTS {name} CASCADE" for name in tables_left(world)))
            assert relations(client) == {"careful", "hasty", *VIEWS}
            eventually(lambda: stray_folders(workspace) == set(), 90, "the end of dropped files")
            for view, query in VIEWS.items():
                assert_view(client, view, query)
        server.terminate()
        assert server.wait(timeout=60) == 0
    assert world.answered > 0
    assert world.step > 0
    assert sum(world.flushed.values()) > 0
    assert slowest < 60


def tables_left(world: World) -> list[str]:
    return [f"d{round_}" for round_ in range(world.step // 4 + 1)]


def stray_folders(workspace: Path) -> set[str]:
    """Folders with files of relations that were dropped, or of some that never came to be."""
    known = ("careful", "hasty", *VIEWS)
    files = (path for path in (workspace / "tables").rglob("*") if path.is_file())
    folders = {path.relative_to(workspace / "tables").parts[0] for path in files}
    return {name for name in folders if not name.startswith(known)}

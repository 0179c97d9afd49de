"""What the tests of PostgreSQL sources share: servers by version, options, writers, comparison."""

import contextlib
import os
import pwd
import random
import shutil
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import make_url

from headwater.cdc.postgres.options import PostgresOptions, parse_options
from servers import free_port, postgres_server

SETTINGS = (
    "wal_level=logical",
    "fsync=off",
    "max_wal_senders=4",
    "max_replication_slots=4",
    "max_prepared_transactions=4",
    # What the server does by itself is a transaction that runs, too.
    "autovacuum=off",
)
DEBIAN = sorted(Path("/usr/lib/postgresql").glob("*/bin"))


@contextlib.contextmanager
def server(version: str, *settings: str) -> Iterator[str]:
    """A server: `wheel` for the newest, or a major version whose binaries are installed."""
    if version == "wheel":
        with postgres_server(*SETTINGS, *settings) as url:
            yield make_url(url).set(drivername="postgresql").render_as_string()
        return
    with _installed_server(Path(f"/usr/lib/postgresql/{version}/bin"), settings) as url:
        yield url


def open_to_others(folder: Path) -> None:
    """Let the server's own user read below a folder; what is open already stays as it is."""
    for each in (folder, *folder.parents):
        mode = stat.S_IMODE(each.stat().st_mode)
        if mode & 0o055 != 0o055:
            each.chmod(mode | 0o055)


VERSIONS = ("wheel", *(folder.parent.name for folder in DEBIAN))


@contextlib.contextmanager
def _installed_server(binaries: Path, settings: Sequence[str]) -> Iterator[str]:
    user = "nobody" if os.geteuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="headwater-postgres-"))
    if user:
        os.chown(folder, pwd.getpwnam(user).pw_uid, -1)
    data, port = folder / "data", free_port()
    options = [f"port={port}", "listen_addresses=127.0.0.1", "unix_socket_directories="]
    arguments = [part for each in (*options, *SETTINGS, *settings) for part in ("-c", each)]
    subprocess.run(
        [binaries / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-N", "-E", "UTF8"],
        user=user, cwd=folder, capture_output=True, check=True,
    )  # fmt: skip
    with (folder / "log").open("wb") as output:
        process = subprocess.Popen(
            [binaries / "postgres", "-D", data, *arguments],
            user=user, cwd=folder, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
        deadline = time.monotonic() + 120
        while True:
            try:
                psycopg.connect(url).close()
                break
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        yield url
    finally:
        process.send_signal(2)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def options_of(url: str, **changes: str) -> PostgresOptions:
    """Options for a test server; `slot_name` stands for `slot.name`."""
    parts = make_url(url)
    given = {
        "hostname": parts.host,
        "port": str(parts.port),
        "username": parts.username,
        "database.name": parts.database,
        **{name.replace("_", "."): value for name, value in changes.items()},
    }
    return parse_options(given, source="test")


def run(url: str, *statements: str) -> list[Any]:
    """Run statements one by one; the rows of the last."""
    with psycopg.connect(url, autocommit=True) as connection:
        rows: list[Any] = []
        for statement in statements:
            cursor = connection.execute(statement)
            rows = cursor.fetchall() if cursor.description else []
    return rows


def drop_slots(url: str) -> None:
    """No slot is left; a reader that was just ended may still hold one for a while."""
    deadline = time.monotonic() + 60
    while run(url, "SELECT slot_name FROM pg_replication_slots"):
        assert time.monotonic() < deadline, "a slot stays in use"
        run(url, "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active")
        with contextlib.suppress(psycopg.errors.ObjectInUse, psycopg.errors.UndefinedObject):
            run(url, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
        time.sleep(0.02)


class Writer(threading.Thread):
    """Inserts, updates, deletes and changes keys in `bank(id, v, note)` until it is stopped."""

    def __init__(self, url: str, seed: int, keys: int) -> None:
        super().__init__(daemon=True)
        self._url, self._random, self._keys = url, random.Random(seed), keys
        self._ending = threading.Event()
        self.commits = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with psycopg.connect(self._url) as connection:
                while not self._ending.is_set():
                    try:
                        self._transaction(connection)
                    except (psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected):
                        # Another writer was faster.
                        connection.rollback()
        except BaseException as error:
            self.error = error

    def _transaction(self, connection: Any) -> None:
        dice = self._random
        for _ in range(dice.randint(1, 4)):
            key, other = dice.randrange(self._keys), dice.randrange(self._keys)
            match dice.randrange(5):
                case 0 | 1:
                    connection.execute(
                        "INSERT INTO bank VALUES (%s, %s, 'new') "
                        "ON CONFLICT (id) DO UPDATE SET v = excluded.v, note = 'again'",
                        [key, dice.randrange(1000)],
                    )
                case 2:
                    connection.execute("UPDATE bank SET v = v + 1 WHERE id = %s", [key])
                case 3:
                    connection.execute("DELETE FROM bank WHERE id = %s", [key])
                case _:
                    connection.execute(
                        "UPDATE bank SET id = %s WHERE id = %s AND NOT EXISTS "
                        "(SELECT FROM bank WHERE id = %s)",
                        [other, key, other],
                    )
        if dice.random() < 0.1:
            connection.rollback()
            return
        if dice.random() < 0.2:
            time.sleep(dice.random() * 0.02)
        connection.commit()
        self.commits += 1

    def stop(self) -> None:
        """End it, and hear of its errors."""
        self._ending.set()
        self.join(120)
        if self.error is not None:
            raise self.error


BANK = "CREATE TABLE bank (id bigint PRIMARY KEY, v bigint, note text)"

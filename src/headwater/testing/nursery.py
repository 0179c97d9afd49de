"""Processes that start with everything imported: forked from one that has nothing else to do.

An engine's imports take two seconds of a core, and a test that kills a process in one life after
the other pays them every time. A nursery has imported them once. It forks a child per request:

    what a child has of its own     session, output and error pipes, environment, folder, arguments
    what it has from the nursery    imported modules, none of which was asked to do anything

A child is a process like any other: it runs its program as `__main__`, is killed by `kill -9`, and
its own children are started as ever. What it is not is a start of the interpreter, so a test of
how a program starts does without.

Promises
    One thread     The nursery itself never starts one, so that nothing is forked half done.
    No orphans     It ends when whoever started it has ended, or closes it.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO

from headwater import crash_points

IMPORTED = (
    "headwater.cli.main",
    "headwater.cli.serve",
    "headwater.testing.source_kinds",
    "pyspark.sql",
    "pyarrow.dataset",
    "pyarrow.parquet",
)
_REQUEST_BYTES = 1 << 20
_PIPES = 3
_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Birth:
    """What a child is to run, and where."""

    arguments: Sequence[str]
    environment: Mapping[str, str]
    folder: str


class Forked:
    """A child of a nursery, with what is needed of a `subprocess.Popen`."""

    def __init__(self, pid: int, output: int, errors: int, ending: int) -> None:
        self.pid = pid
        self.stdout: IO[str] = os.fdopen(output, encoding="utf-8", errors="replace")
        self.stderr: IO[str] = os.fdopen(errors, encoding="utf-8", errors="replace")
        self._ending = ending
        self._code: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """The exit code as Popen tells it, None while it runs."""
        return self._code if self._ended(0) else None

    def wait(self, timeout: float) -> int:
        """Wait for its end; raises `subprocess.TimeoutExpired`."""
        deadline = time.monotonic() + timeout
        while not self._ended(_POLL_SECONDS):
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
        assert self._code is not None
        return self._code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def _ended(self, timeout: float) -> bool:
        with self._lock:
            if self._code is None and select.select([self._ending], [], [], timeout)[0]:
                self._code = int(os.read(self._ending, 16))
                os.close(self._ending)
            return self._code is not None


class Nursery:
    """The process that forks, as its owner sees it."""

    def __init__(self) -> None:
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        self._line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _REQUEST_BYTES)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "headwater.testing.nursery", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def bear(self, birth: Birth) -> Forked:
        """Start a child."""
        pipes = [os.pipe() for _ in range(_PIPES)]
        said = {
            "arguments": list(birth.arguments),
            "environment": dict(birth.environment),
            "folder": birth.folder,
        }
        try:
            with self._lock:
                socket.send_fds(self._line, [json.dumps(said).encode()], [end for _, end in pipes])
                answer = self._line.recv(16)
        finally:
            for _, end in pipes:
                os.close(end)
        assert answer, "the nursery has ended"
        output, errors, ending = (end for end, _ in pipes)
        return Forked(int(answer), output, errors, ending)

    def close(self) -> None:
        """End it; its children live on."""
        self._line.close()
        self._process.wait(10)


@cache
def nursery() -> Nursery:
    """The one of this process."""
    return Nursery()


def _serve(line: socket.socket) -> Birth | None:
    """Fork what is asked for. Returns in each child, and once the owner is gone."""
    ends: dict[int, int] = {}
    wakes, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    while True:
        asked, woken = line.fileno(), wakes
        ready, _, _ = select.select([asked, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _tell_of_the_dead(ends)
        if asked not in ready:
            continue
        said, pipes, _, _ = socket.recv_fds(line, _REQUEST_BYTES, _PIPES)
        if not said:
            return None
        output, errors, ending = pipes
        if (pid := os.fork()) == 0:
            signal.set_wakeup_fd(-1)
            for place in (line.detach(), wakes, wake, ending, *ends.values()):
                os.close(place)
            _take(output, 1)
            _take(errors, 2)
            return Birth(**json.loads(said))
        os.close(output)
        os.close(errors)
        ends[pid] = ending
        line.send(str(pid).encode())


def _tell_of_the_dead(ends: dict[int, int]) -> None:
    while ends:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        ending = ends.pop(pid)
        os.write(ending, str(os.waitstatus_to_exitcode(status)).encode())
        os.close(ending)


def _take(pipe: int, place: int) -> None:
    os.dup2(pipe, place)
    os.close(pipe)


def _live(birth: Birth) -> None:
    """Be what was asked for, from the first line of a program to its last."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(birth.environment)
    time.tzset()
    os.chdir(birth.folder)
    if plan := os.environ.get("HEADWATER_CRASH"):
        crash_points.install_hook(crash_points.kill_hook(plan))
    first, *more = birth.arguments
    if first == "-m":
        sys.argv = more
        sys.path[0] = birth.folder
        runpy.run_module(more[0], run_name="__main__", alter_sys=True)
        return
    sys.argv = [first, *more]
    sys.path[0] = str(Path(first).resolve().parent)
    runpy.run_path(first, run_name="__main__")


def _main() -> None:
    for name in IMPORTED:
        importlib.import_module(name)
    # Pages that the collector writes to are pages that each child has to copy.
    gc.freeze()
    birth = _serve(socket.socket(fileno=int(sys.argv[1])))
    if birth is not None:
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=True, write_through=True)  # type: ignore[union-attr]
        _end(_exit_code(birth))


def _exit_code(birth: Birth) -> int:
    try:
        _live(birth)
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _end(code: int) -> None:
    """End as an interpreter does, without what libraries do at last.

    They would wait for threads of the nursery, which a fork leaves behind.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _main()

"""Run a real process under test: start it, watch it, freeze it, kill it, look for its orphans.

    with ChildProcess("-m", "headwater", "serve", ..., crash="epoch.after_ledger") as child:
        child.wait_for_line("ready", timeout=60)
        child.kill()                         # SIGKILL, as kill -9
    child.wait_until_gone(timeout=45)        # nothing of it runs any more

Every process carries a mark in its environment, which its own children inherit. So its family
is found also when a parent is dead and the children belong to somebody else by then. Leaving
the `with` block kills the whole family, whatever happened.
"""

import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import psutil

from headwater.testing.nursery import Birth, Forked, nursery

_MARK = "UNDER_TEST_FAMILY"
_POLL_SECONDS = 0.05
_LAST_WORDS_SECONDS = 0.5
_TAIL_LINES = 40
_FROZEN_WITHIN_SECONDS = 10.0
_STOPPED = frozenset("TtZX")
"""States of threads that do nothing: stopped, traced, ended."""
_HANDED_OUT = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LEAST_PORT = 10_000


class ChildFailed(AssertionError):
    """A process under test did not do what the test waited for; shows the end of its output."""


class ChildProcess:
    """A Python process under test, started at once.

    `arguments` follow the interpreter. `crash` is put into `HEADWATER_CRASH`. `environment` is
    added to the test's own, from which a `HEADWATER_CRASH` is dropped. With `forked` it has its
    imports from a nursery, and `arguments` begin with a file or `-m`.
    """

    def __init__(
        self,
        *arguments: str | Path,
        crash: str | None = None,
        environment: Mapping[str, str] | None = None,
        folder: str | Path | None = None,
        forked: bool = False,
    ) -> None:
        self._family_mark = uuid.uuid4().hex
        inherited = {k: v for k, v in os.environ.items() if k != "HEADWATER_CRASH"}
        variables = {**inherited, "PYTHONUNBUFFERED": "1", **(environment or {})}
        variables[_MARK] = self._family_mark
        if crash is not None:
            variables["HEADWATER_CRASH"] = crash
        started = _fork if forked else _start
        self._process: subprocess.Popen[str] | Forked = started(
            [str(each) for each in arguments], variables, str(folder or Path.cwd())
        )
        self._changed = threading.Condition()
        self._lines: list[str] = []
        self._error_lines: list[str] = []
        self._seen = 0
        self._open = 2
        self._readers = [
            self._reader(self._process.stdout, self._lines),
            self._reader(self._process.stderr, self._error_lines),
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.kill_family()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def output(self) -> str:
        """What it has written to standard output so far."""
        with self._changed:
            return "".join(self._lines)

    @property
    def errors(self) -> str:
        """What it has written to standard error so far."""
        with self._changed:
            return "".join(self._error_lines)

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    def wait_for_line(self, pattern: str, *, timeout: float) -> re.Match[str]:
        """Wait for a line of standard output in which `pattern` is found.

        Every line is looked at once: the next call begins after the line that this one found.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                while self._seen < len(self._lines):
                    line = self._lines[self._seen]
                    self._seen += 1
                    if found := re.search(pattern, line):
                        return found
                ended = not self.running
                left = deadline - time.monotonic()
                if left <= 0:
                    raise ChildFailed(
                        self._told(f"no line matched {pattern!r} within {timeout} seconds")
                    )
                more = self._changed.wait(min(left, _LAST_WORDS_SECONDS))
                if ended and (self._open == 0 or not more) and self._seen == len(self._lines):
                    raise ChildFailed(self._told(f"it ended before a line matched {pattern!r}"))

    def wait(self, *, timeout: float) -> int:
        """Wait for its end; the exit code, negative for the signal that ended it."""
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise ChildFailed(self._told(f"it did not end within {timeout} seconds")) from None
        # Grandchildren may hold the pipes open for long; their lines are read when they come.
        for reader in self._readers:
            reader.join(min(timeout, 1.0))
        return code

    def kill(self) -> int:
        """End it as `kill -9` does, leaving its children to themselves; the exit code."""
        self._process.kill()
        return self.wait(timeout=60)

    def terminate(self) -> None:
        """Ask it to end (SIGTERM)."""
        self._process.terminate()

    def interrupt(self) -> None:
        """Press Ctrl-C (SIGINT)."""
        self._process.send_signal(signal.SIGINT)

    def freeze(self) -> None:
        """Stop it where it stands (SIGSTOP), as a machine does that is suspended."""
        freeze(self.pid)

    def thaw(self) -> None:
        """Let it go on (SIGCONT)."""
        self._process.send_signal(signal.SIGCONT)

    def family(self) -> list[psutil.Process]:
        """It and all its descendants that still live, also those whose parent is dead."""
        running = self.running
        members = []
        for process in psutil.process_iter():
            try:
                if process.status() == psutil.STATUS_ZOMBIE:
                    continue
                # The environment that others see is that of a program's start; who was forked
                # has begun in no program of its own.
                itself = running and process.pid == self.pid
                if itself or process.environ().get(_MARK) == self._family_mark:
                    members.append(process)
            except (psutil.Error, OSError):
                continue
        return members

    def wait_until_gone(self, *, timeout: float) -> None:
        """Wait until no process of the family is left; raise with their names otherwise."""
        deadline = time.monotonic() + timeout
        while members := self.family():
            if time.monotonic() > deadline:
                names = ", ".join(f"{member.pid} {_command(member)}" for member in members)
                raise ChildFailed(self._told(f"still running after {timeout} seconds: {names}"))
            time.sleep(_POLL_SECONDS)

    def kill_family(self) -> None:
        """End it and all its descendants."""
        deadline = time.monotonic() + 60
        while (members := self.family()) and time.monotonic() < deadline:
            for member in members:
                try:
                    member.kill()
                except psutil.NoSuchProcess:
                    continue
            time.sleep(_POLL_SECONDS)
        self._process.wait(60)
        for reader in self._readers:
            reader.join(5)

    def _reader(self, stream: IO[str] | None, lines: list[str]) -> threading.Thread:
        def follow() -> None:
            assert stream is not None
            with stream:
                for line in stream:
                    with self._changed:
                        lines.append(line)
                        self._changed.notify_all()
            with self._changed:
                self._open -= 1
                self._changed.notify_all()

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        return thread

    def _told(self, what: str) -> str:
        code = self._process.poll()
        state = "it runs" if code is None else f"exit code {code}"
        with self._changed:
            output = "".join(self._lines[-_TAIL_LINES:])
            errors = "".join(self._error_lines[-_TAIL_LINES:])
        return f"{what} ({state})\n--- standard output\n{output}--- standard error\n{errors}"


def _start(arguments: list[str], variables: dict[str, str], folder: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, *arguments],
        env=variables,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )


def _fork(arguments: list[str], variables: dict[str, str], folder: str) -> Forked:
    birth = Birth(arguments=arguments, environment=variables, folder=folder)
    return nursery().bear(birth)


def freeze(pid: int) -> None:
    """Stop a process (SIGSTOP), and wait until none of its threads runs any more.

    The signal alone is no promise: a thread on another core goes on for a while, and may still
    answer a request that was sent after it.
    """
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + _FROZEN_WITHIN_SECONDS
    while moving := [name for name, state in _threads(pid) if state not in _STOPPED]:
        if time.monotonic() > deadline:
            raise ChildFailed(f"threads of {pid} go on after SIGSTOP: {', '.join(moving)}")
        time.sleep(0.001)


def _threads(pid: int) -> Iterator[tuple[str, str]]:
    """The name and the state letter of each thread; who ends meanwhile is left out."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            head, _, rest = (task / "stat").read_text().rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            continue
        yield head.partition("(")[2], rest.split()[0]


def free_port() -> int:
    """A port of the loopback interface that nobody uses just now.

    It is none of those that the system hands out by itself: nobody gets it by chance before
    whoever asked for it has bound it.
    """
    while True:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", _port_at_random()))
            port: int = probe.getsockname()[1]
            return port


def _port_at_random() -> int:
    """Below the ports that the system hands out; 0, its own choice, where they are not known."""
    try:
        first = int(_HANDED_OUT.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0
    return secrets.choice(range(_LEAST_PORT, first)) if first > 2 * _LEAST_PORT else 0


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:120]
    except psutil.Error:
        return "?"

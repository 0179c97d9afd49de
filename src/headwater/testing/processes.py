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
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import psutil

_MARK = "UNDER_TEST_FAMILY"
_POLL_SECONDS = 0.05
_LAST_WORDS_SECONDS = 0.5
_TAIL_LINES = 40


class ChildFailed(AssertionError):
    """A process under test did not do what the test waited for; shows the end of its output."""


class ChildProcess:
    """A Python process under test, started at once.

    `arguments` follow the interpreter. `crash` is put into `HEADWATER_CRASH`. `environment` is
    added to the test's own, from which a `HEADWATER_CRASH` is dropped.
    """

    def __init__(
        self,
        *arguments: str | Path,
        crash: str | None = None,
        environment: Mapping[str, str] | None = None,
        folder: str | Path | None = None,
    ) -> None:
        self._family_mark = uuid.uuid4().hex
        inherited = {k: v for k, v in os.environ.items() if k != "HEADWATER_CRASH"}
        variables = {**inherited, "PYTHONUNBUFFERED": "1", **(environment or {})}
        variables[_MARK] = self._family_mark
        if crash is not None:
            variables["HEADWATER_CRASH"] = crash
        self._process = subprocess.Popen(
            [sys.executable, *map(str, arguments)],
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
        return self.wait(timeout=10)

    def terminate(self) -> None:
        """Ask it to end (SIGTERM)."""
        self._process.terminate()

    def interrupt(self) -> None:
        """Press Ctrl-C (SIGINT)."""
        self._process.send_signal(signal.SIGINT)

    def freeze(self) -> None:
        """Stop it where it stands (SIGSTOP), as a machine does that is suspended."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on (SIGCONT)."""
        self._process.send_signal(signal.SIGCONT)

    def family(self) -> list[psutil.Process]:
        """It and all its descendants that still live, also those whose parent is dead."""
        self._process.poll()
        members = []
        for process in psutil.process_iter():
            try:
                if process.status() == psutil.STATUS_ZOMBIE:
                    continue
                if process.environ().get(_MARK) == self._family_mark:
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
        deadline = time.monotonic() + 10
        while (members := self.family()) and time.monotonic() < deadline:
            for member in members:
                try:
                    member.kill()
                except psutil.NoSuchProcess:
                    continue
            time.sleep(_POLL_SECONDS)
        self._process.wait(10)
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


def free_port() -> int:
    """A port of the loopback interface that nobody uses just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:120]
    except psutil.Error:
        return "?"

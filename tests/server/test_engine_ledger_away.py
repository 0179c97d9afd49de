"""The ledger's PostgreSQL goes away under a running engine and comes back: exact, by itself."""

import asyncio
import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import psycopg
import pytest
from sqlalchemy import make_url

from engine_kit import CALM, bank_tap, check_change_log, check_rows, reaches
from headwater.errors import LedgerUnavailable
from headwater.runtime.engine import Engine
from servers import postgres_server

QUICK = {**CALM, "barrier_interval_ms": 50, "restart_backoff_ms": 10, "takeover_wait_s": 0}
QUICK |= {"restart_backoff_max_ms": 200}


class Server:
    """The server behind a URL, as something that can be stopped and started."""

    def __init__(self, url: str) -> None:
        self._url = url.replace("+psycopg", "")
        port = f"port={make_url(url).port}"
        [self._process] = [
            process for process in psutil.Process().children() if port in _command(process)
        ]
        self._arguments = self._process.cmdline()
        self._folder = self._process.cwd()
        self._user = self._process.username() if os.geteuid() == 0 else None
        self._own: subprocess.Popen[bytes] | None = None

    def stop(self, *, kill: bool = False) -> None:
        """End it at once (as a crash), or as an administrator does."""
        family = [self._process, *self._process.children()]
        if kill:
            for process in family:
                # Without the first one the others end by themselves.
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        else:
            self._process.send_signal(2)
        _, alive = psutil.wait_procs(family, timeout=120)
        assert not alive, alive

    def start(self) -> None:
        """Start it again, and wait until it answers."""
        deadline = time.monotonic() + 120
        while True:
            if self._own is None or self._own.poll() is not None:
                # It refuses while a session of the life before has not ended yet.
                self._own = subprocess.Popen(
                    self._arguments,
                    user=self._user,
                    cwd=self._folder,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            try:
                psycopg.connect(self._url).close()
                self._process = psutil.Process(self._own.pid)
                return
            except psycopg.OperationalError:
                assert time.monotonic() < deadline, "PostgreSQL did not start again"
                time.sleep(0.1)

    def end(self) -> None:
        if self._own is not None:
            self._own.send_signal(2)
            self._own.wait(120)


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@contextmanager
def server() -> Iterator[tuple[str, Server]]:
    with postgres_server() as url:
        behind = Server(url)
        try:
            yield url, behind
        finally:
            behind.end()


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
async def test_the_ledger_goes_away_and_comes_back(kill, tmp_path):
    with server() as (url, postgres):
        settings = {**QUICK, "ledger_url": url}
        bank = bank_tap(200)
        async with Engine(tmp_path, settings=settings, connectors={"bank": bank}) as engine:
            await bank.create(engine)
            await reaches(engine, "bank", 200)
            seen = engine.visible
            postgres.stop(kill=kill)
            bank.open(900)
            await asyncio.sleep(2)
            assert engine.failure is None
            assert engine.position("bank") == "200"
            assert engine.visible >= seen
            await asyncio.to_thread(postgres.start)
            await reaches(engine, "bank", 900, timeout=120)
            check_rows(engine, {"bank": bank.truth})
            for table in engine.store:
                check_change_log(table)
        async with Engine(tmp_path, settings=settings, connectors={"bank": bank}) as engine:
            check_rows(engine, {"bank": bank.truth})


async def test_the_ledger_is_away_at_the_start(tmp_path):
    with server() as (url, postgres):
        settings = {**QUICK, "ledger_url": url}
        postgres.stop()
        began = time.monotonic()
        with pytest.raises(LedgerUnavailable) as away:
            await Engine(tmp_path, settings=settings).start()
        assert time.monotonic() - began < 20
        assert "ledger_url" in away.value.hint
        postgres.start()
        bank = bank_tap(100)
        deadline = time.monotonic() + 90
        while True:
            engine = Engine(tmp_path, settings=settings, connectors={"bank": bank})
            try:
                await engine.start()
                break
            except LedgerUnavailable:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.1)
        await bank.create(engine)
        await reaches(engine, "bank", 100)
        await engine.stop()

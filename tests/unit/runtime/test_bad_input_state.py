"""Damage and absence below the engine: named exactly, nothing lost, and over when it is over."""

import asyncio
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest

from engine_kit import (
    CALM,
    Tap,
    bank_tap,
    check_change_log,
    check_rows,
    heard,
    lost_files,
    reaches,
    stray_files,
)
from headwater.crash_points import install_hook
from headwater.errors import DamagedState, SchemaError, StorageUnavailable
from headwater.model.epoch import epoch_time
from headwater.observe.events import EventKind
from headwater.runtime.engine import Engine
from headwater.testing.clock import ManualClock
from headwater.testing.processes import free_port

QUICK = {
    "barrier_interval_ms": 30,
    "maintenance_interval_s": 3600.0,
    "restart_backoff_ms": 10,
    "restart_backoff_max_ms": 100,
}


async def check(engine: Engine, tap: Tap) -> None:
    check_rows(engine, {tap.name: tap.truth})
    for table in engine.store:
        check_change_log(table)
    assert not (lost := lost_files(engine)), lost


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of its own, where this machine lets us make one."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def remount(folder: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(folder)], check=True)


def fill(file: Path) -> None:
    """Leave no room on the file system of `file`."""
    with suppress(OSError), file.open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(4096))


async def test_the_disk_is_full_in_the_middle_of_a_stage(tmp_path):
    with small_disk(tmp_path / "disk", "1m") as disk:
        settings = {**QUICK, "storage_url": str(disk / "tables"), "retention_s": 0}
        bank = bank_tap(500)
        async with Engine(tmp_path / "w", settings=settings, connectors={"bank": bank}) as engine:
            await bank.create(engine)
            await reaches(engine, "bank", 500)
            filler = disk / "filler"
            fill(filler)
            bank.open(4000)
            told = await heard(engine, EventKind.ACTOR_FAILED, "No space left on device")
            assert "StorageUnavailable" in told.text
            assert "DETAIL: File " in told.text
            assert "HINT: Free some space" in told.text
            before = engine.position("bank")
            await engine.flush()
            assert engine.position("bank") == before == "500"
            check_rows(engine, {"bank": bank.truth})
            filler.unlink()
            await reaches(engine, "bank", 4000)
            await check(engine, bank)
            for _ in range(2):
                await engine.maintain()
                await engine.flush()
            await engine.maintain()
            assert not (stray := stray_files(engine)), stray


async def test_storage_becomes_read_only_and_writable_again(tmp_path):
    with small_disk(tmp_path / "disk", "8m") as disk:
        settings = {**QUICK, "storage_url": str(disk / "tables")}
        bank = bank_tap(300)
        async with Engine(tmp_path / "w", settings=settings, connectors={"bank": bank}) as engine:
            await bank.create(engine)
            await reaches(engine, "bank", 300)
            remount(disk, "ro")
            bank.open(900)
            told = await heard(engine, EventKind.ACTOR_FAILED, "Read-only file system")
            assert "StorageUnavailable" in told.text
            assert "HINT: " in told.text
            remount(disk, "rw")
            await reaches(engine, "bank", 900)
            await check(engine, bank)


class Lock:
    """Makes a file system read-only when the engine passes a crash point, once."""

    def __init__(self, disk: Path, point: str) -> None:
        self._disk, self._point = disk, point

    def __call__(self, passed: str) -> None:
        if passed == self._point:
            self._point = ""
            remount(self._disk, "ro")


async def test_an_epoch_in_the_ledger_is_published_when_storage_is_back(tmp_path):
    with small_disk(tmp_path / "disk", "8m") as disk:
        settings = {**QUICK, "storage_url": str(disk / "tables")}
        bank = bank_tap(300)
        async with Engine(tmp_path / "w", settings=settings, connectors={"bank": bank}) as engine:
            await bank.create(engine)
            await reaches(engine, "bank", 300)
            bank.open(600)
            install_hook(Lock(disk, "publish.between_tables"))
            told = await heard(engine, EventKind.STORAGE_UNAVAILABLE, "Read-only file system")
            assert told.subject == "commit"
            waiting = asyncio.create_task(engine.flush())
            await asyncio.sleep(0.3)
            assert not waiting.done()
            remount(disk, "rw")
            await waiting
            await reaches(engine, "bank", 600)
            await check(engine, bank)


async def test_stopping_does_not_wait_for_storage_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr("headwater.runtime.engine._STOP_GRACE", timedelta(seconds=0.5))
    with small_disk(tmp_path / "disk", "8m") as disk:
        settings = {**QUICK, "storage_url": str(disk / "tables")}
        bank = bank_tap(300)
        async with Engine(tmp_path / "w", settings=settings, connectors={"bank": bank}) as engine:
            await bank.create(engine)
            await reaches(engine, "bank", 300)
            bank.open(600)
            install_hook(Lock(disk, "publish.between_tables"))
            await heard(engine, EventKind.STORAGE_UNAVAILABLE, "Read-only file system")
            began = time.monotonic()
        assert time.monotonic() - began < 60
        remount(disk, "rw")
        async with Engine(tmp_path / "w", settings=settings, connectors={"bank": bank}) as engine:
            await reaches(engine, "bank", 600)
            await check(engine, bank)


async def test_storage_is_read_only_at_the_start(tmp_path):
    with small_disk(tmp_path / "disk", "8m") as disk:
        settings = {**QUICK, "storage_url": str(disk / "tables")}
        bank = bank_tap(300)
        remount(disk, "ro")
        with pytest.raises(StorageUnavailable, match="Read-only file system"):
            async with Engine(tmp_path / "w", settings=settings):
                pass
        remount(disk, "rw")
        async with Engine(tmp_path / "w", settings=settings, connectors={"bank": bank}) as engine:
            await bank.create(engine)
            await reaches(engine, "bank", 300)
            await check(engine, bank)


async def test_an_object_store_that_refuses(tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    began = time.monotonic()
    with pytest.raises(StorageUnavailable) as refused:
        async with Engine(tmp_path, settings={**CALM, "storage_url": "s3://bucket/prefix"}):
            pass
    assert time.monotonic() - began < 120
    assert "AWS_*" in refused.value.hint
    assert "very-secret" not in str(refused.value)
    async with Engine(tmp_path, settings=CALM) as engine:
        await engine.flush()


def flip(ledger: Path, epoch: int | None = None) -> tuple[int, bytes]:
    """Damage the record of an epoch, the last one if none is named; what it was before."""
    with sqlite3.connect(ledger) as file:
        if epoch is None:
            [epoch] = file.execute("SELECT max(epoch) FROM hw_epoch").fetchone()
        [body] = file.execute("SELECT body FROM hw_epoch WHERE epoch = ?", (epoch,)).fetchone()
        damaged = bytearray(body)
        damaged[len(damaged) // 2] ^= 0x10
        file.execute("UPDATE hw_epoch SET body = ? WHERE epoch = ?", (bytes(damaged), epoch))
    file.close()
    return epoch, body


def restore(ledger: Path, epoch: int, body: bytes) -> None:
    with sqlite3.connect(ledger) as file:
        file.execute("UPDATE hw_epoch SET body = ? WHERE epoch = ?", (body, epoch))
    file.close()


@pytest.mark.parametrize("which", ["last", "first"])
async def test_a_record_of_the_ledger_is_damaged(which, tmp_path):
    bank = bank_tap(200)
    async with Engine(tmp_path, settings=QUICK, connectors={"bank": bank}) as engine:
        first = await bank.create(engine)
        await reaches(engine, "bank", 200)
    ledger = tmp_path / "ledger.db"
    epoch, body = flip(ledger, None if which == "last" else first)
    for _ in range(2):
        with pytest.raises(DamagedState, match=str(epoch)) as damaged:
            await Engine(tmp_path, settings=QUICK, connectors={"bank": bank}).start()
        assert damaged.value.hint
    restore(ledger, epoch, body)
    bank.open(400)
    async with Engine(tmp_path, settings=QUICK, connectors={"bank": bank}) as engine:
        await reaches(engine, "bank", 400)
        await check(engine, bank)


async def test_the_ledger_is_no_database(tmp_path):
    bank = bank_tap(200)
    async with Engine(tmp_path, settings=QUICK, connectors={"bank": bank}) as engine:
        await bank.create(engine)
        await reaches(engine, "bank", 200)
    ledger = tmp_path / "ledger.db"
    whole = ledger.read_bytes()
    ledger.write_bytes(b"this is a letter and not a database" * 100)
    with pytest.raises(DamagedState, match="ledger's file is damaged") as damaged:
        await Engine(tmp_path, settings=QUICK).start()
    assert "backup" in damaged.value.hint
    ledger.write_bytes(whole)
    async with Engine(tmp_path, settings=QUICK, connectors={"bank": bank}) as engine:
        await check(engine, bank)


async def test_the_ledger_is_locked_for_a_while(tmp_path, monkeypatch):
    monkeypatch.setattr("headwater.ledger.database._BUSY_TIMEOUT_S", 0.2)
    bank = bank_tap(200)
    async with Engine(tmp_path, settings=QUICK, connectors={"bank": bank}) as engine:
        await bank.create(engine)
        await reaches(engine, "bank", 200)
        other = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        bank.open(600)
        for _ in range(15):
            assert engine.failure is None
            assert engine.position("bank") == "200"
            await asyncio.sleep(0.1)
        other.execute("ROLLBACK")
        other.close()
        await reaches(engine, "bank", 600)
        await check(engine, bank)


def file_of(engine: Engine, table: str, what: str) -> Path:
    """One data file, vector or change file that the table's manifest names."""
    root = engine.table(table).storage.local_root
    assert root is not None
    files = [live for live in engine.table(table).view().files if live.live_rows]
    if what == "data":
        return root / files[0].file.path
    [vector, *_] = [live.dead for live in files if live.dead is not None]
    return root / vector.path


@pytest.mark.parametrize("what", ["data", "vector"])
@pytest.mark.parametrize("how", ["missing", "corrupt"])
async def test_a_file_of_a_committed_epoch(what, how, tmp_path):
    bank = bank_tap(50)
    async with Engine(tmp_path, settings=QUICK, connectors={"bank": bank}) as engine:
        await bank.create(engine)
        for upto in range(100, 400, 50):
            await reaches(engine, "bank", upto - 50)
            bank.open(upto)
        await reaches(engine, "bank", 350)
        victim = file_of(engine, "accounts", what)
    content = victim.read_bytes()
    if how == "missing":
        victim.unlink()
    else:
        damaged = bytearray(content)
        for place in Random(1).sample(range(len(damaged)), len(damaged) // 3):
            damaged[place] ^= 0xFF
        victim.write_bytes(bytes(damaged))
    bank.open(700)
    async with Engine(tmp_path, settings=QUICK, connectors={"bank": bank}) as engine:
        told = await heard(engine, EventKind.ACTOR_FAILED, "DamagedState", victim.name)
        assert how in told.text
        with pytest.raises(DamagedState, match=how):
            engine.table("accounts").rows()
        assert engine.position("bank") == "350"
        assert engine.table("transfers").rows().num_rows == 7
        victim.write_bytes(content)
        await reaches(engine, "bank", 700)
        await check(engine, bank)


async def test_the_clock_jumps_back_by_an_hour(tmp_path):
    clock = ManualClock()
    bank = bank_tap(200)
    connectors = {"bank": bank}
    async with Engine(tmp_path, settings=QUICK, connectors=connectors, clock=clock) as engine:
        await bank.create(engine)
        await reaches(engine, "bank", 200)
        clock.advance(seconds=10)
        before = await engine.flush()
        clock.advance(hours=-1)
        bank.open(400)
        after = await engine.flush()
        assert after > before
        await reaches(engine, "bank", 400)
        told = await heard(engine, EventKind.CLOCK_WENT_BACK, "the clock went back by 1:00:00")
        assert told.subject == "clock"
        assert await engine.flush() > after
        assert epoch_time(engine.visible) > clock()
    async with Engine(tmp_path, settings=QUICK, connectors=connectors, clock=clock) as engine:
        bank.open(500)
        assert await engine.flush() > after
        await reaches(engine, "bank", 500)
        await check(engine, bank)


class Wrong(Tap):
    """A source whose changes have a wrong type until it is mended."""

    mended = False

    async def read(self, after, *, max_bytes):
        batch = await super().read(after, max_bytes=max_bytes)
        if self.mended or "accounts" not in batch.changes:
            return batch
        table = batch.changes["accounts"]
        words = table.column("owner")
        place = table.column_names.index("balance")
        return type(batch)(
            position=batch.position,
            changes={**batch.changes, "accounts": table.set_column(place, "balance", words)},
            more=batch.more,
        )


async def test_changes_with_a_wrong_type_stop_only_their_own_source(tmp_path):
    wrong = Wrong("bank", "bank", {"seed": 7, "accounts": 50}, 300)
    shop_tables = {"things": {"columns": "id I  name T", "key": ["id"]}}
    good = Tap("generated", "shop", {"seed": 1, "tables": shop_tables, "keys": 50}, 300)
    connectors = {"bank": wrong, "shop": good}
    async with Engine(tmp_path, settings=QUICK, connectors=connectors) as engine:
        await good.create(engine)
        await wrong.create(engine)
        told = await heard(engine, EventKind.ACTOR_FAILED, SchemaError.__name__, "balance")
        assert "bigint" in told.text
        await reaches(engine, "shop", 300)
        good.open(600)
        await reaches(engine, "shop", 600)
        assert engine.position("bank") is None
        failures = len(engine.events.recent(1000, EventKind.ACTOR_FAILED))
        assert failures < 200, "it is retried without a pause"
        wrong.mended = True
        await reaches(engine, "bank", 300)
        await check(engine, wrong)
        check_rows(engine, {"shop": good.truth})

"""Create, drop, read again after a restart: relations through the life of an engine."""

import asyncio
import time
from pathlib import Path

import pytest

from engine_kit import CALM, bank_tap, check_catalog, check_rows, reaches, stray_files
from headwater.crash_points import install_hook
from headwater.errors import ActorFailed, RelationError, SchemaError
from headwater.runtime.engine import Engine

QUICK = {**CALM, "barrier_interval_ms": 30, "restart_backoff_ms": 10}


async def test_a_source_and_its_tables_exist_from_the_epoch_returned_on(tmp_path):
    bank = bank_tap(100)
    async with Engine(tmp_path, settings=CALM, connectors={"bank": bank}) as engine:
        nothing = await engine.flush()
        created = await bank.create(engine)
        assert created > nothing
        assert engine.visible >= created
        snapshot = engine.catalog.snapshot()
        assert [table.created for table in snapshot.tables] == [created, created]
        assert engine.table("accounts").rows(created).num_rows == 0
        assert engine.position("bank") is None
        filled = await engine.flush()
        assert engine.position("bank") == "100"
        assert engine.table("accounts").rows(filled).num_rows == 50
        check_rows(engine, {"bank": bank.truth})


async def test_reopened_engines_go_on_where_the_last_one_stopped(tmp_path):
    bank = bank_tap(0)
    last = 0
    for life in range(1, 4):
        async with Engine(tmp_path, settings=QUICK, connectors={"bank": bank}) as engine:
            assert engine.term == life
            assert engine.visible >= last
            if life == 1:
                await bank.create(engine)
            else:
                assert engine.position("bank") == str(100 * (life - 1))
                check_rows(engine, {"bank": bank.truth})
            bank.open(100 * life)
            await reaches(engine, "bank", 100 * life)
            last = engine.visible
    async with Engine(tmp_path, settings=QUICK, connectors={"bank": bank}) as engine:
        check_catalog(engine, {"bank": bank.truth})
        check_rows(engine, {"bank": bank.truth})


async def test_stopping_makes_a_last_checkpoint(tmp_path):
    bank = bank_tap(0)
    async with Engine(tmp_path, settings=CALM, connectors={"bank": bank}) as engine:
        await bank.create(engine)
        bank.open(300)
        await asyncio.sleep(0.3)
        assert engine.position("bank") is None
    async with Engine(tmp_path, settings=CALM, connectors={"bank": bank}) as engine:
        assert engine.position("bank") == "300"
        check_rows(engine, {"bank": bank.truth})


async def test_a_dropped_source_leaves_nothing(tmp_path):
    bank = bank_tap(200)
    async with Engine(tmp_path, settings=QUICK, connectors={"bank": bank}) as engine:
        for _ in range(2):
            await bank.create(engine)
            await reaches(engine, "bank", 200)
            folders = [engine.table(name).storage.local_root for name in bank.schemas]
            epoch = await engine.drop_source("bank")
            assert engine.visible >= epoch
            check_catalog(engine, {})
            assert engine.position("bank") is None
            assert list(engine.store) == []
            left = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
            assert left == []
            with pytest.raises(RelationError):
                engine.table("accounts")
            bank = bank_tap(200)
            engine._connectors["bank"] = bank
        assert stray_files(engine) == []
    async with Engine(tmp_path, settings=QUICK) as engine:
        check_catalog(engine, {})


async def test_dropping_beside_maintenance_leaves_nothing(tmp_path):
    settings = {**QUICK, "maintenance_interval_s": 0.05, "fold_files": 2, "retention_s": 0}
    async with Engine(tmp_path, settings=settings, connectors={}) as engine:
        for _ in range(6):
            bank = bank_tap(2000)
            engine._connectors["bank"] = bank
            await bank.create(engine)
            await reaches(engine, "bank", 2000)
            await engine.drop_source("bank")
            await engine.maintain()
            assert stray_files(engine) == []
        assert engine.failure is None


async def test_a_source_that_cannot_be_read_is_created_whole_or_not_at_all(tmp_path):
    bank = bank_tap(100)

    async def refuse(after, *, max_bytes):
        raise SchemaError("no such publication", hint="Create it first.")

    bank.read = refuse
    async with Engine(tmp_path, settings=CALM, connectors={"bank": bank}) as engine:
        created = asyncio.create_task(bank.create(engine))
        done, _ = await asyncio.wait([created], timeout=60)
        assert done, "the command neither succeeded nor failed"
        if created.exception() is not None:
            assert isinstance(created.exception(), ActorFailed)
            check_catalog(engine, {})
            assert list(engine.store) == []
        else:
            # It failed after its first barrier: it is there, and is tried again and again.
            assert {table.name for table in engine.store} == set(bank.schemas)


async def test_creations_that_overlap(tmp_path):
    taps = {f"bank{n}": bank_tap(50, f"bank{n}") for n in range(4)}
    async with Engine(tmp_path, settings=QUICK, connectors=taps) as engine:

        async def create(name):
            tables = {f"{name}_{table}": s for table, s in taps[name].schemas.items()}
            return await engine.create_source(name, name, {}, tables=tables)

        epochs = await asyncio.gather(*(create(name) for name in taps))
        assert len(set(epochs)) == 4
        again = await asyncio.gather(*(create(name) for name in taps), return_exceptions=True)
        assert [type(error) for error in again] == [RelationError] * 4
        assert len(engine.catalog.snapshot().tables) == 8


async def test_nothing_is_staged_on_top_of_a_creation_that_is_not_committed(tmp_path):
    """Barriers follow each other closely while the commits before the creation are slow."""
    settings = {**CALM, "barrier_interval_ms": 10}
    first, second = bank_tap(3000, "first"), bank_tap(3000)
    early: list[Path] = []

    def slow(point: str) -> None:
        known = {table.folder for table in engine.catalog.snapshot().tables}
        if point == "epoch.before_ledger" and len(known) == 1:
            time.sleep(0.4)
            staged = (tmp_path / "tables").glob("*/*.parquet")
            early.extend(path for path in staged if path.parent.name not in known)

    connectors = {"first": first, "bank": second}
    async with Engine(tmp_path, settings=settings, connectors=connectors) as engine:
        tables = {"others": first.schemas["accounts"]}
        await engine.create_source("first", "first", {}, tables=tables)
        install_hook(slow)
        created = await second.create(engine)
        for name in second.schemas:
            assert engine.table(name).manifest().version >= 0
            assert engine.table(name).rows(created).num_rows == 0
        await reaches(engine, "bank", 3000)
        check_rows(engine, {"bank": second.truth})
    assert early == []

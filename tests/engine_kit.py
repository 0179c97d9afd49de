"""What tests of a whole engine share: a workload, its truth, and a look at every file.

The workload is a bank (money is never made or lost) and a shop of random transactions over
three tables. Both are sources that can be repeated, so what the tables must hold follows from
the positions in the ledger and from nothing else. `check_workspace` compares everything that
can be seen of a workspace with that truth, in both directions:

    rows              as the engine reads them, and as delta-rs reads the published version
    change log        from the oldest epoch that is kept: each change fits the rows before it
    files             every file that a manifest names is there, and no other
    catalog           the workload's relations, and nothing half dropped
"""

import asyncio
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from headwater.model.epoch import Epoch
from headwater.model.reserved import APP_ID, VNODE
from headwater.observe.events import Event, EventKind
from headwater.runtime.engine import Engine
from headwater.state.table import StateTable
from headwater.testing.oracle import apply_exact, assert_same_rows, key_of, rows_of
from headwater.testing.source_kinds import source_from_options

FREQUENT: dict[str, Any] = {
    "barrier_interval_ms": 20,
    "maintenance_interval_s": 0.05,
    "fold_files": 2,
    "retention_s": 0,
    "manifest_every": 3,
    "delta_checkpoint_every": 2,
    "restart_backoff_ms": 10,
    "restart_backoff_max_ms": 200,
}
"""Settings under which everything that an engine does now and then happens all the time."""

CALM: dict[str, Any] = {"barrier_interval_ms": 60_000, "maintenance_interval_s": 3600.0}
"""Settings under which nothing happens that the test does not ask for."""

SHOP_TABLES = {
    "customers": {"columns": "id I  name T  joined TZ", "key": ["id"]},
    "orders": {"columns": "shop T  number I  amount D(12,2)  paid B", "key": ["shop", "number"]},
    "notes": {"columns": "id I  text T  score F", "key": ["id"]},
}


def workload(*, limit: int = 1000) -> dict[str, tuple[str, dict[str, Any]]]:
    """The sources by name: kind and options. `limit` counts transactions of each."""
    shop = {"seed": 23, "tables": SHOP_TABLES, "keys": 300, "limit": limit}
    return {
        "bank": ("bank", {"seed": 11, "accounts": 60, "limit": limit}),
        "shop": ("generated", shop),
    }


def built(sources: Mapping[str, tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """The sources themselves, as oracles; not those that an engine reads."""
    return {name: source_from_options(kind, name, dict(o)) for name, (kind, o) in sources.items()}


class Tap:
    """A source whose log grows when the test says so; the same object over several engines."""

    def __init__(self, kind: str, name: str, options: Mapping[str, Any], upto: int) -> None:
        self._inner = source_from_options(kind, name, {**options, "limit": upto})
        self.truth = source_from_options(kind, name, dict(options))
        self.name = self._inner.name
        self.schemas = self.truth.schemas
        self.kind, self.options = kind, dict(options)

    def __call__(self, name: str, options: Mapping[str, Any]) -> "Tap":
        """Be one's own connector; an engine that starts may read from an older position."""
        self._inner.restarted()
        return self

    def open(self, upto: int) -> None:
        """Let the log have that many transactions."""
        self._inner._limit = upto

    async def read(self, after: str | None, *, max_bytes: int) -> Any:
        return await self._inner.read(after, max_bytes=max_bytes)

    async def acknowledge(self, position: str) -> None:
        await self._inner.acknowledge(position)

    async def close(self) -> None:
        pass

    async def create(self, engine: Engine) -> Epoch:
        return await engine.create_source(self.name, self.name, {}, tables=self.schemas)


def bank_tap(upto: int, name: str = "bank") -> Tap:
    return Tap("bank", name, {"seed": 7, "accounts": 50}, upto)


async def reaches(engine: Engine, source: str, position: int, timeout: float = 90) -> None:
    """Wait until a source is that far in the ledger, and visible."""
    deadline = time.monotonic() + timeout
    while engine.position(source) != str(position):
        assert engine.failure is None, engine.failure
        assert time.monotonic() < deadline, f"at {engine.position(source)}: {_latest(engine)}"
        await asyncio.sleep(0.02)
    await engine.flush()


def _latest(engine: Engine) -> list[str]:
    return [f"{event.kind}: {event.text}" for event in engine.events.recent(10)]


async def heard(engine: Engine, kind: EventKind, *words: str, timeout: float = 90) -> Event:
    """Wait for an event that says these words."""
    deadline = time.monotonic() + timeout
    while True:
        events = await asyncio.to_thread(engine.events.recent, 100, kind)
        for event in events:
            if all(word in event.text for word in words):
                return event
        assert time.monotonic() < deadline, f"nothing says {words}: {_latest(engine)}"
        await asyncio.sleep(0.05)


async def create_missing(engine: Engine, sources: Mapping[str, tuple[str, dict[str, Any]]]) -> None:
    """Create the sources that an earlier life of the engine has not created."""
    there = {source.name for source in engine.catalog.snapshot().sources}
    for name, source in built(sources).items():
        if name not in there:
            kind, options = sources[name]
            await engine.create_source(name, kind, options, tables=source.schemas)


def plain(rows: pa.Table) -> pa.Table:
    """Rows without the column that is only ours."""
    return rows.drop_columns([name for name in (VNODE,) if name in rows.column_names])


def delta_rows(folder: Path | str, version: int | None = None) -> pa.Table:
    """A table as delta-rs reads it."""
    return pa.table(DeltaTable(str(folder), version=version).scan().read_all())


def check_rows(engine: Engine, sources: Mapping[str, Any]) -> None:
    """Every table, by the engine and by delta-rs, is its source at the position in the ledger."""
    for name, source in sources.items():
        position = engine.position(name)
        expected = source.oracle_at(position) if position else {t: {} for t in source.schemas}
        for table_name, schema in source.schemas.items():
            table = engine.table(table_name)
            truth = list(expected[table_name].values())
            assert_same_rows(plain(table.rows()), truth, key=schema.key)
            assert_same_rows(delta_rows(table.storage.url), truth, key=schema.key)


def check_change_log(table: StateTable) -> None:
    """From the oldest epoch kept, the changes of each epoch lead exactly to the next."""
    manifest = table.manifest()
    key = table.schema.key
    oldest = manifest.horizon
    rows = {}
    if oldest > manifest.created:
        rows = {key_of(row, key): row for row in rows_of(plain(table.rows(oldest)))}
    before = oldest
    for entry in manifest.changes(oldest, table.committed):
        apply_exact(rows, table.change_rows(before, entry.epoch), key)
        before = entry.epoch
    assert_same_rows(plain(table.rows()), list(rows.values()), key=key)


def stray_files(engine: Engine) -> list[str]:
    """Files in storage that nothing names."""
    root = engine.store.surroundings.storage
    named = set()
    logs = set()
    for table in engine.store:
        folder = Path(table.storage.url).name
        needed = {*table.manifest().paths(), *table.busy_paths()}
        named |= {f"{folder}/{path}" for path in needed}
        logs.add(f"{folder}/_delta_log/")
    return sorted(
        path
        for path in root.list()
        if path not in named
        and (path.endswith(".tmp") or not any(path.startswith(log) for log in logs))
    )


def lost_files(engine: Engine) -> list[str]:
    """Files that a manifest names and storage lacks."""
    return sorted(
        f"{table.name}: {path}"
        for table in engine.store
        for path in set(table.manifest().paths()) - set(table.storage.list())
    )


def check_versions(engine: Engine) -> None:
    """The newest Delta version of each table is the ledger's last commit of it."""
    for table in engine.store:
        delta = DeltaTable(table.storage.url)
        assert delta.version() == table.manifest().version, table.name
        assert delta.transaction_version(APP_ID) == table.committed, table.name


def check_catalog(engine: Engine, sources: Mapping[str, Any]) -> None:
    """The catalog has the workload's relations and nothing that is half dropped."""
    snapshot = engine.catalog.snapshot()
    assert {source.name for source in snapshot.sources} == set(sources)
    tables = {table for source in sources.values() for table in source.schemas}
    assert {table.name for table in snapshot.tables} == tables
    dropped = [*snapshot.dropped_sources, *snapshot.dropped_tables]
    assert not dropped, dropped


async def check_workspace(workspace: Path, sources: Mapping[str, Any], **settings: Any) -> None:
    """Open the workspace and compare all of it with the truth; see the head of this file."""
    async with Engine(workspace, settings={**CALM, **settings}) as engine:
        check_catalog(engine, sources)
        check_rows(engine, sources)
        check_versions(engine)
        for table in engine.store:
            check_change_log(table)
        assert not (lost := lost_files(engine)), lost
        for _ in range(3):
            # A fold is adopted by the next epoch, and what it replaces may go after that.
            await engine.maintain()
            await engine.flush()
        await engine.maintain()
        assert not (lost := lost_files(engine)), lost
        assert not (stray := stray_files(engine)), stray
        check_rows(engine, sources)


def published(folder: Path) -> Iterator[tuple[int, Epoch]]:
    """The versions of a Delta table whose commit files are there, with their epochs."""
    for file in sorted((folder / "_delta_log").glob("*.json")):
        for line in file.read_text().splitlines():
            if transaction := json.loads(line).get("txn"):
                yield int(file.stem), Epoch(transaction["version"])


def check_bank_total(workspace: Path, total: int) -> int:
    """At every epoch that was ever published the money is all there; how many there were."""
    folders = {path.name.rsplit("-", 1)[0]: path for path in (workspace / "tables").iterdir()}
    columns = {"accounts": "balance", "transfers": "amount"}
    versions = {name: dict(published(folders[name])) for name in columns}
    current = dict.fromkeys(columns, 0)
    checked = 0
    epochs = sorted({epoch for by in versions.values() for epoch in by.values()})
    for epoch in epochs:
        for name, column in columns.items():
            for version, at in versions[name].items():
                if at == epoch:
                    rows = delta_rows(folders[name], version)
                    current[name] = sum(rows.column(column).to_pylist())
        if sum(current.values()) or epoch > epochs[0]:
            assert sum(current.values()) == total, f"epoch {epoch}: {current}"
            checked += 1
    return checked

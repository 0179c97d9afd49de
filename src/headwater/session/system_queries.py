"""Queries over system tables: hand the engine's facts to the system room.

Such a query needs no Spark, only the catalog and what the engine knows of itself; anything that
costs time to find out is found out only if the query shows it.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from headwater.catalog.relation import TableDef
from headwater.catalog.snapshot import CatalogSnapshot
from headwater.model.epoch import epoch_time
from headwater.pgwire.server import SERVER_VERSION
from headwater.pgwire.session import Described, ResultColumn, Rows
from headwater.runtime.engine import Engine
from headwater.session.answers import of_table
from headwater.session.cdc_facts import backfill_facts, cdc_facts, cdc_jobs, cdc_limits
from headwater.session.context import Context
from headwater.session.sink_facts import sink_facts, sink_jobs
from headwater.system.facts import (
    EpochFact,
    EventFact,
    JobFact,
    RateLimitFact,
    SessionFacts,
    SettingFact,
    SizeFact,
    SystemFacts,
)
from headwater.system.recognise import reads_only_system
from headwater.system.system_catalog import SystemCatalog, SystemResultColumn

_R = TypeVar("_R")

_LATEST = 1_000


class SystemQueries:
    """Answers the queries of all sessions of an engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._catalog = SystemCatalog()

    def answers(self, query: Any) -> bool:
        """Whether a query is for the system tables; one that mixes them with others raises."""
        return reads_only_system(query)

    async def run(self, context: Context, query: Any, parameters: Sequence[str | None]) -> Rows:
        """The rows of a query."""
        facts = await self._facts(context)
        found = await context.blocking(self._catalog.answer, query, facts, parameters)
        for name, value in found.settings.items():
            context.variables.set(name, value)
        return of_table(_columns(found.columns), found.table)

    async def describe(self, context: Context, query: Any) -> Described:
        """What a query takes and gives."""
        facts = await self._facts(context)
        found = await context.blocking(self._catalog.describe, query, facts)
        return Described(
            parameters=found.parameters,
            parameter_oids=found.parameter_oids,
            columns=_columns(found.columns),
        )

    async def warm_up(self, context: Context) -> None:
        """Have the first query find everything in its place."""
        await context.blocking(self._catalog.warm_up, await self._facts(context))

    def close(self) -> None:
        """Let the embedded database go."""
        self._catalog.close()

    async def _facts(self, context: Context) -> SystemFacts:
        snapshot = await context.snapshot()
        loop, engine = asyncio.get_running_loop(), self._engine
        return SystemFacts(
            snapshot=snapshot,
            session=SessionFacts(
                user=context.user,
                database=context.database,
                search_path=context.path,
                backend_pid=context.process,
                server_version=SERVER_VERSION,
                settings={name: value for name, value, _ in context.variables.all()},
            ),
            parallelism=self._engine.parallelism,
            sizes=lambda: self._sizes(snapshot),
            jobs=lambda: [
                *self._job_facts(),
                *_on(loop, lambda: cdc_jobs(engine, snapshot)),
                *_on(loop, lambda: sink_jobs(engine, snapshot)),
            ],
            sinks=lambda: _on(loop, lambda: sink_facts(engine, snapshot)),
            backfills=lambda: _on(loop, lambda: backfill_facts(engine, snapshot)),
            cdc=lambda: _on(loop, lambda: cdc_facts(engine, snapshot)),
            events=self._events,
            epochs=self._epochs,
            settings=self._settings,
            rate_limits=lambda: [
                *_rate_limits(snapshot),
                *_on(loop, lambda: cdc_limits(engine, snapshot)),
            ],
        )

    def _sizes(self, snapshot: CatalogSnapshot) -> Mapping[int, SizeFact]:
        found = {}
        for table in snapshot.tables:
            if table.id in self._engine.store:
                view = self._engine.store[table.id].view()
                size = sum(live.file.bytes for live in view.files)
                found[int(table.id)] = SizeFact(rows=view.rows, bytes=size)
        return found

    def _job_facts(self) -> Sequence[JobFact]:
        return [
            JobFact(
                id=creating.intent.id,
                statement=creating.intent.definition,
                progress=creating.progress,
                create_type="BACKGROUND",
                initialized_at=creating.began,
            )
            for creating in list(self._engine.creating.running.values())
        ]

    def _events(self) -> Sequence[EventFact]:
        return [
            EventFact(
                id=event.id,
                at=event.at,
                epoch=event.epoch,
                kind=event.kind,
                subject=event.subject,
                text=event.text,
                details=json.dumps(dict(event.details)),
            )
            for event in self._engine.events.recent(_LATEST)
        ]

    def _epochs(self) -> Sequence[EpochFact]:
        ledger = self._engine.ledger
        records = list(ledger.records(ledger.floor()))[-_LATEST:]
        return [
            EpochFact(
                epoch=record.epoch,
                committed_at=epoch_time(record.epoch),
                changes=sum(
                    sum(file.rows for file in commit.changes or commit.inserted)
                    for commit in record.tables
                ),
            )
            for record in records
        ]

    def _settings(self) -> Sequence[SettingFact]:
        now = self._engine.settings.now
        return [
            SettingFact(
                name=each.name,
                value=str(getattr(now, each.name)),
                unit=each.metadata["unit"],
                description=each.metadata["doc"],
                live=each.metadata["live"],
            )
            for each in fields(now)
        ]


def _on(loop: asyncio.AbstractEventLoop, call: Callable[[], _R]) -> _R:
    """Have the event loop answer, which alone may look at what it changes all the time."""

    async def called() -> _R:
        return call()

    return asyncio.run_coroutine_threadsafe(called(), loop).result()


def _rate_limits(snapshot: CatalogSnapshot) -> Sequence[RateLimitFact]:
    return [
        RateLimitFact(table_id=table.id, node="DML", limit=limit)
        for table in snapshot.shown_tables
        if table.source is None and (limit := _limit(table)) is not None
    ]


def _limit(table: TableDef) -> int | None:
    return table.detail.rate_limit


def _columns(columns: Sequence[SystemResultColumn]) -> tuple[ResultColumn, ...]:
    return tuple(ResultColumn(name=c.name, type=c.type, oid=c.oid) for c in columns)

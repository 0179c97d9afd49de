"""Relations that are created in the background.

With `background_ddl` a CREATE returns as soon as the ledger knows what is to be made. The intent
is an object of the catalog, so an engine that starts finds it and goes on without being asked;
the relation takes its place in the epoch that fills it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from headwater.catalog.relation import ObjectDef, ObjectKind
from headwater.errors import HeadwaterError
from headwater.observe.events import EventKind
from headwater.runtime.engine import Engine

Make = Callable[[ObjectDef], Awaitable[object]]


@dataclass(slots=True)
class Job:
    """A relation on its way."""

    object: ObjectDef
    task: "asyncio.Task[None]"
    began: datetime = field(default_factory=lambda: datetime.now(UTC))
    cancelled: bool = False


class Jobs:
    """The relations being created in one engine."""

    def __init__(self, engine: Engine, make: Make) -> None:
        self._engine = engine
        self._make = make
        self.running: dict[int, Job] = {}

    async def resume(self) -> None:
        """Go on with what an earlier engine began."""
        snapshot = await self._engine.ddl.snapshot()
        for each in snapshot.objects:
            if each.kind is ObjectKind.CREATING:
                self.begin(each)

    def begin(self, intent: ObjectDef) -> None:
        """Create in the background what the catalog has an intent of."""
        task = asyncio.create_task(self._run(intent), name=f"create {intent.name}")
        self.running[intent.id] = Job(intent, task)

    async def wait(self, name: str | None = None) -> None:
        """Until all of them are done, or those of that name."""
        tasks = [j.task for j in self.running.values() if name in (None, j.object.name)]
        await asyncio.gather(*(asyncio.shield(task) for task in tasks), return_exceptions=True)

    async def cancel(self, id_: int) -> bool:
        """Stop creating something; nothing is left of it. False when there is no such job."""
        job = self.running.get(id_)
        if job is None:
            return False
        job.cancelled = True
        await asyncio.gather(asyncio.shield(job.task), return_exceptions=True)
        return True

    async def close(self) -> None:
        """Leave them to the next engine."""
        for job in self.running.values():
            job.task.cancel()
        await asyncio.gather(*(j.task for j in self.running.values()), return_exceptions=True)

    async def _run(self, intent: ObjectDef) -> None:
        try:
            await self._make(intent)
        except HeadwaterError as error:
            await self._engine.ddl.drop([intent])
            self._engine.tell(EventKind.JOB_FAILED, intent.name, str(error))
        else:
            if self.running[intent.id].cancelled:
                snapshot = await self._engine.ddl.snapshot()
                made = snapshot.relation(intent.name, intent.namespace)
                if made is not None:
                    await self._engine.ddl.drop([made])
        finally:
            self.running.pop(intent.id, None)

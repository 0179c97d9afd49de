"""The engine for code without an event loop: scripts, notebooks, the Python prompt.

    with Headwater("shop") as hw:
        hw.create_source("orders", "generated", {...}, tables={"orders": schema})
        hw.flush()
        hw.table("orders").frame().show()

The engine runs on a loop in a thread of its own; every method here waits for the same method
there. An engine that ended by itself says why at the next call.
"""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from headwater.config import Settings
from headwater.model.epoch import Epoch
from headwater.model.schema import Schema
from headwater.runtime.engine import Engine
from headwater.runtime.query import select
from headwater.state.table import StateTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_R = TypeVar("_R")


class Headwater:
    """An engine on one workspace; a context manager, running from the start."""

    def __init__(self, workspace: Path | str, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="headwater-engine", daemon=True
        )
        self._thread.start()
        self._stopped = False
        try:
            self.engine: Engine = self._wait(_made(lambda: Engine(workspace, **options)))
            self._wait(self.engine.start())
        except BaseException:
            self._end_loop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Make one last checkpoint and end. May be called twice."""
        if self._stopped:
            return
        try:
            self._wait(self.engine.stop())
        finally:
            self._end_loop()

    def create_source(
        self, name: str, kind: str, options: Mapping[str, Any], *, tables: Mapping[str, Schema]
    ) -> Epoch:
        """Create a source and its tables. Replay: done whole or not at all."""
        return self._ask(self.engine.create_source(name, kind, options, tables=tables))

    def drop_source(self, name: str) -> Epoch:
        """Drop a source with its tables. Replay: dropped whole or not at all."""
        return self._ask(self.engine.drop_source(name))

    def flush(self) -> Epoch:
        """Commit an epoch that begins now, and return it when it is visible."""
        return self._ask(self.engine.flush())

    def pause(self) -> None:
        """Stop reading sources; barriers go on."""
        self._ask(self.engine.pause())

    def resume(self) -> None:
        """Read on."""
        self._ask(self.engine.resume())

    def throttle(self, source: str, rows_per_s: int | None) -> None:
        """Limit how fast a source is read; 0 stops it, None lifts the limit."""
        self._ask(self.engine.throttle(source, rows_per_s))

    def change_settings(self, **values: Any) -> Settings:
        """Change live settings."""
        return self._ask(self.engine.change_settings(values))

    def maintain(self) -> None:
        """Make one round of folding and collection now."""
        self._ask(self.engine.maintain())

    def table(self, name: str) -> StateTable:
        """A table by name."""
        return self.engine.table(name)

    def frame(self, name: str, epoch: Epoch | None = None) -> "DataFrame":
        """A table's rows as a Spark DataFrame, at the last visible epoch or another."""
        at = self.engine.visible if epoch is None else epoch
        return self.engine.table(name).frame(at).drop("_vnode")

    def sql(self, query: str, epoch: Epoch | None = None) -> "DataFrame":
        """The rows of a SELECT in the PostgreSQL dialect, all tables at one epoch."""
        at = self.engine.visible if epoch is None else epoch
        engine = self.engine
        return select(query, engine.catalog.snapshot(), engine.store, engine.spark(), at)

    @property
    def visible(self) -> Epoch:
        """The last epoch that is committed and published."""
        return self.engine.visible

    def spark(self) -> "SparkSession":
        """The Spark session."""
        return self.engine.spark()

    def _ask(self, work: Coroutine[Any, Any, _R]) -> _R:
        failure = self.engine.failure
        if failure is not None:
            work.close()
            raise failure
        return self._wait(work)

    def _wait(self, work: Coroutine[Any, Any, _R]) -> _R:
        future: concurrent.futures.Future[_R] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result()

    def _end_loop(self) -> None:
        self._stopped = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _made(make: Callable[[], _R]) -> _R:
    """Call `make` on the loop."""
    return make()

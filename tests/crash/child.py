"""An engine in a process of its own, for tests that kill, freeze and stop it.

    python child.py WORKSPACE [--limit N] [--set name=value ...]

It runs the workload of `engine_kit.py`, a little with every read, creates and drops one more
source on the way, prints `ready`, then `epoch N` as epochs become visible, and `done N` when
everything is in. With `--endless` it goes on until it is told to stop. An engine that ends by
itself leaves one line on standard error and exit code 3; one that cannot start leaves 4.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from engine_kit import FREQUENT, create_missing, workload
from headwater.cdc.source import SourceBatch
from headwater.errors import HeadwaterError
from headwater.runtime.engine import Engine
from headwater.testing.source_kinds import source_from_options

READ_BYTES = 12_000
ENDED_BY_ITSELF = 3
NOT_STARTED = 4
PASSING = "passing"
PASSING_OPTIONS = {
    "tables": {"things": {"columns": "id I  name T", "key": ["id"]}},
    "keys": 50,
    "limit": 100,
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("workspace")
    parser.add_argument("--limit", type=int, default=1000)
    parser.add_argument("--set", action="append", default=[], metavar="name=value")
    parser.add_argument("--endless", action="store_true")
    parser.add_argument("--take-over", action="store_true")
    parser.add_argument("--spark", action="store_true", help="start Spark too")
    return parser.parse_args()


class LittleByLittle:
    """A test source that gives a few transactions an epoch, however busy the machine is.

    Epochs of a slow machine would otherwise be few and large, and a point that is to be passed
    for the eighth time would not be.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._given: str | None = None
        self._acknowledged: str | None = None
        self.name = inner.name

    async def read(self, after: str | None, *, max_bytes: int) -> SourceBatch:
        if after is not None and after == self._given != self._acknowledged:
            return SourceBatch(position=after)
        batch = await self._inner.read(after, max_bytes=min(max_bytes, READ_BYTES))
        self._given = batch.position
        return dataclasses.replace(batch, more=False)

    async def acknowledge(self, position: str) -> None:
        await self._inner.acknowledge(position)
        self._acknowledged = position

    async def close(self) -> None:
        await self._inner.close()


def connector(kind: str) -> Any:
    return lambda name, options: LittleByLittle(source_from_options(kind, name, dict(options)))


async def come_and_go(engine: Engine) -> None:
    """Create a source that an earlier life has not left behind, and drop it."""
    there = {source.name for source in engine.catalog.snapshot().sources}
    if PASSING not in there:
        source = source_from_options("generated", PASSING, PASSING_OPTIONS)
        await engine.create_source(PASSING, "generated", PASSING_OPTIONS, tables=source.schemas)
    while engine.position(PASSING) != str(PASSING_OPTIONS["limit"]):
        await asyncio.sleep(0.01)
    await engine.drop_source(PASSING)


async def until_complete(engine: Engine, limit: int) -> None:
    """Wait until both sources have been read to their end."""
    while any(engine.position(name) != str(limit) for name in ("bank", "shop")):
        await asyncio.sleep(0.02)


async def report(engine: Engine) -> None:
    seen = engine.visible
    while True:
        if engine.visible != seen:
            seen = engine.visible
            print(f"epoch {seen}", flush=True)
        await asyncio.sleep(0.01)


async def work(engine: Engine, given: argparse.Namespace) -> None:
    sources = workload(limit=given.limit)
    await create_missing(engine, sources)
    if given.spark:
        await asyncio.to_thread(lambda: engine.spark().range(10).count())
    print("ready", flush=True)
    await come_and_go(engine)
    await until_complete(engine, given.limit)
    # A few epochs more, so that what was folded last is adopted and cleaned up after.
    for _ in range(3):
        await engine.maintain()
        await engine.flush()
    print(f"done {await engine.flush()}", flush=True)
    if given.endless:
        await asyncio.Event().wait()


async def main(given: argparse.Namespace) -> int:
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    settings = FREQUENT | dict(pair.split("=", 1) for pair in given.set)
    connectors = {kind: connector(kind) for kind in ("bank", "generated")}
    engine = Engine(
        given.workspace, settings=settings, connectors=connectors, take_over=given.take_over
    )
    try:
        await engine.start()
    except HeadwaterError as error:
        print(f"not started: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return NOT_STARTED
    reporting = asyncio.create_task(report(engine))
    endings = [
        asyncio.create_task(work(engine, given)),
        asyncio.create_task(told.wait()),
        asyncio.create_task(engine.wait_failed()),
    ]
    try:
        await asyncio.wait(endings, return_when=asyncio.FIRST_COMPLETED)
        if engine.failure is None and endings[0].done():
            endings[0].result()
    finally:
        for task in (reporting, *endings):
            task.cancel()
        await asyncio.gather(reporting, *endings, return_exceptions=True)
        with contextlib.suppress(HeadwaterError):
            await engine.stop()
    if engine.failure is not None:
        kind = type(engine.failure).__name__
        print(f"ended: {kind}: {engine.failure}", file=sys.stderr, flush=True)
        return ENDED_BY_ITSELF
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(arguments())))

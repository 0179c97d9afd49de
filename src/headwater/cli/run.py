"""`headwater run`: an engine in the foreground."""

import asyncio
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headwater.model.epoch import epoch_time
from headwater.runtime.engine import Engine

_REPORT_S = 5.0


def run_engine(workspace: Path, *, take_over: bool, settings: Mapping[str, Any]) -> None:
    """Run until a signal comes, or until the engine ends by itself with an error."""
    asyncio.run(_run(Engine(workspace, settings=settings, take_over=take_over)))


async def _run(engine: Engine) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        async with engine:
            sources = engine.catalog.snapshot().sources
            print(f"ready: {engine.workspace.path}, {len(sources)} sources", flush=True)
            waiting = [
                asyncio.ensure_future(stop.wait()),
                asyncio.ensure_future(engine.wait_failed()),
                asyncio.ensure_future(_report(engine)),
            ]
            done, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in pending:
                task.cancel()
            for task in done:
                task.result()
            print("stopping", flush=True)
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
    print("stopped", flush=True)


async def _report(engine: Engine) -> None:
    """Say now and then how far it is, for people who watch a log."""
    said = None
    while True:
        await asyncio.sleep(_REPORT_S)
        if engine.visible != said:
            said = engine.visible
            at = f"{epoch_time(said):%H:%M:%S}"
            rows = {table.name: table.view().rows for table in engine.store}
            counts = ", ".join(f"{name} {count:,} rows" for name, count in sorted(rows.items()))
            print(f"epoch {said} of {at} UTC: {counts}", flush=True)
            sys.stdout.flush()

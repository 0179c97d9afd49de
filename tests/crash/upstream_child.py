"""An engine in a process of its own that follows two tables of another workspace.

    python upstream_child.py WORKSPACE UPSTREAM EPOCH

It creates what no earlier life has created, and prints `done` when both tables have come to an
epoch of the upstream.
"""

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from upstream_kit import engine_at, follow, position, say, until


async def main() -> None:
    workspace, upstream, epoch = sys.argv[1:]
    async with engine_at(workspace, storage_fsync="false") as engine:
        if not engine.catalog.snapshot().sources:
            await follow(engine, upstream)
        there = {table.name for table in engine.catalog.snapshot().tables}
        for name in sorted({"t", "names"} - there):
            await say(engine, f"create table {name} from other table '{name}'")
        await until(
            lambda: all((position(engine, n) or 0) >= int(epoch) for n in ("t", "names")), 200
        )
        print("done", flush=True)


if __name__ == "__main__":
    asyncio.run(main())

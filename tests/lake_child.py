"""Processes that deliver twice into a table or folder and kill themselves in the second commit.

python lake_child.py FOLDER    one process per scenario, each in a folder of its own name
"""

import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import deltalake.table
import pyiceberg.table

from headwater.sinks.sink import SinkKind, StagedSink
from headwater.state.storage import LocalStorage
from headwater.testing.sink_rows import new_spec
from lake_sinks import DeltaCase, FileCase, IcebergCase, deletes, deliver, delivery, sets

APPEND, UPSERT = SinkKind.APPEND_ONLY, SinkKind.UPSERT
SCENARIOS = {
    f"{target}-{kind}-{moment}": (target, kind, moment)
    for target, kind in (
        ("delta", APPEND), ("delta", UPSERT), ("iceberg", UPSERT), ("files", APPEND)
    )
    for moment in ("before", "after")
}  # fmt: skip
"""By name: the target, the kind, and whether the kill is right before or after what decides."""

FIRST = [{"id": number, "name": "first", "quantity": number} for number in range(1, 7)]
SECOND = [{"id": number, "name": "second", "quantity": None} for number in range(5, 9)]


def changes(kind: SinkKind) -> tuple[list[Any], list[Any]]:
    """The two parts of the second delivery."""
    if kind is SinkKind.APPEND_ONLY:
        return sets(SECOND[:2]), sets(SECOND[2:])
    return deletes(FIRST[:2]) + sets(SECOND[:1]), sets(SECOND[1:])


def case_of(target: str, kind: SinkKind, folder: Path) -> Any:
    """The case that the kit uses as well."""
    match target:
        case "delta":
            return DeltaCase(str(folder), kind)
        case "iceberg":
            return IcebergCase(folder, kind)
        case _:
            return FileCase(str(folder), "parquet")


def die_at_the_deciding_step(target: str, kind: SinkKind, moment: str) -> None:
    """Put a kill around the one call that makes a delivery visible."""
    owner, name = {
        "delta": (
            (deltalake.table.DeltaTable, "create_write_transaction")
            if kind is SinkKind.APPEND_ONLY
            else (deltalake.table.TableMerger, "execute")
        ),
        "iceberg": (pyiceberg.table.Table, "_do_commit"),
        "files": (LocalStorage, "put_if_absent"),
    }[target]
    decide: Any = getattr(owner, name)

    def decide_and_die(*arguments: Any, **named: Any) -> None:
        if moment == "after":
            decide(*arguments, **named)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, decide_and_die)


def deliver_and_die(scenario: str, folder: Path) -> None:
    """Two deliveries, of which the second is not finished."""
    target, kind, moment = SCENARIOS[scenario]
    spec = new_spec("killed_1", kind)
    sink: Any = case_of(target, kind, folder).make(spec)
    assert isinstance(sink, StagedSink)
    sink.check()
    sink.begin(1)
    deliver(sink, delivery(spec.ident, 5), sets(FIRST), schema=spec.arrow)
    die_at_the_deciding_step(target, kind, moment)
    deliver(sink, delivery(spec.ident, 6), *changes(kind), schema=spec.arrow)


def main() -> None:
    """Every scenario in a process that has all modules and no threads yet."""
    for scenario in SCENARIOS:
        folder = Path(sys.argv[1]) / scenario
        folder.mkdir()
        child = os.fork()
        if child == 0:
            try:
                deliver_and_die(scenario, folder)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
            raise SystemExit(f"{scenario} was not killed")


if __name__ == "__main__":
    main()

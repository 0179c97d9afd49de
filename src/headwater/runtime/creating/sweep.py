"""Read many slices of a new view in one Spark job, and hear of each when it is read.

A Spark job has a fixed cost, a slice should be small, since a crash costs the slices that are
being read, and what is read should not wait for the rest. So a task of a job has a few slices, and
leaves receipts (`state/receipts.py`), which a thread looks for while the job runs. Receipts
that an earlier engine's tasks have left count as well: their slices are not read again.

Only what Arrow computes exactly can be read so (`views/on_arrow/slices.py`); tables that the slices
meet are held in memory by each process that runs tasks, so they have to be small.
"""

import hashlib
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING

import pyarrow as pa

from headwater.errors import StorageUnavailable
from headwater.model.epoch import Epoch
from headwater.model.ids import TableId
from headwater.runtime.creating import merged_groups
from headwater.runtime.creating.slice_task import RESULT, SliceTask, TableFiles
from headwater.state.file_name import RECEIPT_FOLDER, origin_of
from headwater.state.file_parts import FilePart, only
from headwater.state.manifest import TableView
from headwater.state.receipts import Receipt, found_before, receipts
from headwater.state.snapshot_files import SnapshotPlan
from headwater.state.stage import part_from_rows
from headwater.state.store import StateStore
from headwater.state.table import StateTable
from headwater.views.on_arrow.slices import SliceQuery

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Arrived = Callable[[Sequence[tuple[int, Receipt]]], bool]
"""Hears of slices by their number; whether the others are of any use then."""
_LOOK_S, _LOOK_AFAR_S = 0.1, 1.0
"""How long a look for receipts is awaited, on a local disk and on an object store."""
_REST = 3
"""A look that takes long is followed by a wait of so many times as long."""
_SLICES_OF_A_TASK, _TASKS = 6, 4
"""A task costs as much as a small slice, and one of many slices keeps others waiting."""
_MOST_IN_MEMORY = 128 << 20
_FLAT, _OTHER = 16, 48
"""About how many bytes a value takes, of a type of a fixed size and of any other."""
_UNPACKED = 3
"""Files with texts take about so many times their size in memory."""


def held_in_memory(query: SliceQuery, snapshot: Mapping[TableId, TableView]) -> bool:
    """Whether the tables that slices meet are small enough for every process to hold them."""
    size = 0
    for table, columns in query.tables.items():
        if table != query.sliced:
            row = sum(_FLAT if _is_flat(field.type) else _OTHER for field in columns)
            guessed = row * snapshot[table].rows
            if not all(_is_flat(field.type) for field in columns):
                packed = sum(live.file.bytes for live in snapshot[table].files)
                guessed = max(guessed, _UNPACKED * packed)
            size += guessed
    return size <= _MOST_IN_MEMORY


def _is_flat(type_: pa.DataType) -> bool:
    return bool(pa.types.is_primitive(type_) or pa.types.is_decimal(type_))


class Sweeps:
    """Reads slices of one view; one life of its job.

    `tasks` says how many of them are read at a time, where somebody has set it.
    """

    def __init__(  # noqa: PLR0913  one argument per thing it is given
        self,
        query: SliceQuery,
        store: StateStore,
        snapshot: Mapping[TableId, TableView],
        target: StateTable,
        *,
        states: bool,
        tag: str,
        tasks: Callable[[], int | None],
    ) -> None:
        self._tag = tag
        self._tasks = tasks
        self._query = query
        self._snapshot = snapshot
        self._target = target
        self._states = states
        self._tables = {
            table: TableFiles(
                storage=store[table].storage,
                dead_rows=store[table].dead_rows,
                fetched=store[table].reader.fetched,
                files=view.files,
            )
            for table, view in snapshot.items()
        }
        self._life = _digest(query.sql, *(f"{t}@{v.epoch}" for t, v in sorted(snapshot.items())))
        self._adopted: dict[str, Receipt] | None = None
        """What was left before, by key; None when it is to be looked for."""

    def read(
        self,
        spark: "SparkSession",
        slices: Sequence[Sequence[FilePart]],
        epoch: Epoch,
        arrived: Arrived,
        over: Callable[[], bool],
    ) -> None:
        """Read slices; each is told of when it is read. What is `over` leaves some unread.

        Replay: tasks that run twice leave two receipts, of which the first counts.
        """
        before = self._adopted
        if before is None:
            before = found_before(self._target.storage)
        # Should it fail, what was read until then is looked for by the next.
        self._adopted = None
        keys = [_digest(self._life, *(str(part) for part in parts)) for parts in slices]
        numbers = [n for n, key in enumerate(keys) if key not in before]
        known = [(n, before.pop(key)) for n, key in enumerate(keys) if key in before]
        if (known and not arrived(known)) or not numbers or over():
            return
        view = self._snapshot[self._query.sliced]
        task = SliceTask(
            life=self._life,
            query=self._query,
            tables=self._tables,
            slices=[(keys[n], only(view, slices[n]).files) for n in numbers],
            plan=self._target.fresh_plan(epoch),
            states=self._states,
            most_groups=merged_groups.MOST_GROUPS,
        )
        places = {keys[n]: n for n in numbers}
        count = len(numbers)
        tasks = self._tasks() or max(_TASKS, math.ceil(count / _SLICES_OF_A_TASK))
        listed = spark.range(0, count, 1, min(count, tasks))

        def cancel() -> None:
            spark.sparkContext.cancelJobsWithTag(self._tag)

        with _Watch(task.plan, places, arrived, cancel, over):
            part_from_rows(listed.mapInArrow(task.run, RESULT).toArrow())
        if not over():
            self._adopted = before


class _Watch:
    """Looks for receipts while a job runs, and once more in the end.

    Those that tasks of an engine that is gone may still leave do not count: what they name may be
    collected already. Whoever hears of slices may have enough: then the job is cancelled, which is
    no error.
    """

    def __init__(
        self,
        plan: SnapshotPlan,
        places: Mapping[str, int],
        arrived: Arrived,
        cancel: Callable[[], None],
        over: Callable[[], bool],
    ) -> None:
        self._to_end = over
        self._storage = plan.storage
        self._origin = plan.origin
        self._left = dict(places)
        self._found: list[tuple[int, Receipt]] = []
        self._arrived = arrived
        self._cancel = cancel
        self._seen = set(plan.storage.list(RECEIPT_FOLDER))
        self._over = threading.Event()
        self._enough = False
        self._problem: Exception | None = None
        self._thread = threading.Thread(target=self._keep_looking, name="receipts", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self._over.set()
        self._thread.join()
        if self._problem is not None:
            raise self._problem from error
        if self._enough or self._to_end():
            return True
        if error is None:
            self._gather()
            self._tell()
        return False

    def _keep_looking(self) -> None:
        shortest = _LOOK_S if self._storage.local_root is not None else _LOOK_AFAR_S
        pause = shortest
        while not self._over.wait(pause):
            started = time.monotonic()
            if not self._useless:
                self._try_to_look()
            if self._useless:
                # Again and again: before the job begins there is nothing to cancel.
                with suppress(Exception):
                    self._cancel()
            # Adding up what has come may be a Spark job of its own, beside that of the slices.
            pause = max(shortest, _REST * (time.monotonic() - started))

    @property
    def _useless(self) -> bool:
        """Whether nobody needs what is still to be read."""
        return self._enough or self._problem is not None or self._to_end()

    def _try_to_look(self) -> None:
        try:
            self._gather()
        except StorageUnavailable:
            # The next look may do, and the last one in any case says what is wrong.
            return
        try:
            self._tell()
        except Exception as problem:
            # Nothing may be told after it: slices that are added up come in their order.
            self._problem = problem

    def _gather(self) -> None:
        for path, receipt in receipts(self._storage, self._seen):
            self._seen.add(path)
            if origin_of(path) != self._origin:
                continue
            if (place := self._left.pop(receipt.key, None)) is not None:
                self._found.append((place, receipt))

    def _tell(self) -> None:
        found, self._found = sorted(self._found, key=lambda each: each[0]), []
        if found and not self._arrived(found):
            self._enough = True


def _digest(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()

"""What the tests of the external data sources share: options, reading, and applying a stream."""

import datetime
import json
import pickle
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pyarrow as pa

SECRET = "s3cret-of-the-test"
POSTGRES, MYSQL = "headwater-postgres", "headwater-mysql"
CHANGE_COLUMNS = ("_change_type", "_commit_position", "_commit_timestamp", "_seq")


def postgres_options(url: str, **more: Any) -> dict[str, str]:
    """How a test server is reached, as a user writes it; `__` in a name is a dot."""
    address = urlparse(url)
    said = {
        "hostname": address.hostname,
        "port": address.port,
        "username": address.username,
        "password": SECRET,
        "database.name": address.path[1:],
        **{name.replace("__", "."): value for name, value in more.items()},
    }
    return {name: str(value) for name, value in said.items()}


def rows_of(spark: Any, format_: str, options: Mapping[str, str], table: str, **more: Any) -> Any:
    """A DataFrame of a table's rows."""
    reader = spark.read.format(format_).options(**options).option("table.name", table)
    return reader.options(**{name.replace("__", "."): value for name, value in more.items()}).load()


def stream_of(spark: Any, format_: str, options: Mapping[str, str], table: str, **more: Any) -> Any:
    """A DataFrame of a table's changes."""
    said = {"since": "snapshot", **{name.replace("__", "."): each for name, each in more.items()}}
    reader = spark.readStream.format(format_).options(**options).option("table.name", table)
    return reader.options(**said).load()


def tuples(rows: pa.Table) -> list[tuple[Any, ...]]:
    """Rows of an Arrow table as tuples that can be compared."""
    return [tuple(_frozen(each) for each in row.values()) for row in rows.to_pylist()]


def _frozen(value: Any) -> Any:
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return value.astimezone(datetime.UTC)
    return tuple(_frozen(each) for each in value) if isinstance(value, list) else value


def assert_both_ways(ours: Iterable[tuple[Any, ...]], theirs: Iterable[tuple[Any, ...]]) -> None:
    """No row is missing, and none is too many, counted."""
    here, there = (
        sorted(repr(tuple(_frozen(each) for each in row)) for row in rows)
        for rows in (ours, theirs)
    )
    missing = sorted(set(there) - set(here))[:3]
    extra = sorted(set(here) - set(there))[:3]
    assert not missing, f"missing: {missing}"
    assert not extra, f"extra: {extra}"
    assert here == there


class Applied:
    """The batches of a stream, applied in order by key, and checked on the way."""

    def __init__(self, checkpoint: Path, key: Sequence[str], *, exact: bool = True) -> None:
        self.checkpoint, self.key, self.exact = checkpoint, tuple(key), exact
        self.rows: dict[tuple[Any, ...], dict[str, Any]] = {}
        self.kinds: dict[str, int] = {}
        self.wrong: list[str] = []
        self.numbers: list[int] = []
        self.changes: list[dict[str, Any]] = []
        self._places: dict[tuple[Any, ...], tuple[str, int]] = {}
        self._shuffle = random.Random(7)

    def start(self, changes: Any, **trigger: Any) -> Any:
        """Start a query."""
        return (
            changes.writeStream.foreachBatch(self._take)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(**trigger)
            .start()
        )

    def run(self, changes: Any) -> None:
        """Run a query that ends at what is there now."""
        query = self.start(changes, availableNow=True)
        try:
            query.awaitTermination()
        finally:
            query.stop()

    def _take(self, batch: Any, number: int) -> None:
        self.numbers.append(number)
        self.apply(batch.toArrow().to_pylist())

    def apply(self, changes: list[dict[str, Any]]) -> None:
        """Apply a batch whose rows come in no order, by position and `_seq`."""
        self._shuffle.shuffle(changes)
        changes.sort(key=lambda row: (row["_commit_position"], row["_seq"]))
        self.changes += changes
        for change in changes:
            self._apply(change)

    def _apply(self, change: dict[str, Any]) -> None:
        kind, place = change["_change_type"], (change["_commit_position"], change["_seq"])
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        row = {name: each for name, each in change.items() if name not in CHANGE_COLUMNS}
        key = tuple(row[name] for name in self.key)
        if place < self._places.get(key, place):
            self.wrong.append(f"{key} went back from {self._places[key]} to {place}")
        self._places[key] = place
        there = key in self.rows
        if self.exact and there == (kind == "insert"):
            self.wrong.append(f"{kind} of {key} at {place}, which is {'' if there else 'not '}here")
        match kind:
            case "insert" | "update_postimage":
                self.rows[key] = row
            case "delete":
                self.rows.pop(key, None)

    @property
    def tuples(self) -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for row in self.rows.values()]


class Driven:
    """A stream without Spark: its batches as Spark would ask for them, crashes included."""

    def __init__(self, reader: Callable[[], Any], applied: Applied) -> None:
        self._make, self.applied = reader, applied
        self.reader = reader()
        self.start: dict[str, Any] | None = None
        self.replays = 0
        self.between: Callable[[], None] = lambda: None
        """What others do between the plan of a batch and its tasks, and between the tasks."""

    def step(self, *, crash: str = "") -> bool:
        """One batch; whether there was something. `crash`: kept, or lost before it was kept."""
        start = self.reader.initialOffset() if self.start is None else self.start
        start = json.loads(json.dumps(start))
        end = json.loads(json.dumps(self.reader.latestOffset(start, None)))
        if end == start:
            return False
        if self.start is not None:
            # Spark tells of a batch's commit only now, after it has asked for the next one's end.
            self.reader.commit(self.start)
        taken = self._read(start, end)
        if crash:
            # The end is in the checkpoint, the batch is not: it comes again, whatever became of it.
            self.replays += 1
            if crash == "kept":
                self.applied.apply(taken)
            self.again()
            start = self.reader.initialOffset() if self.start is None else self.start
            taken = self._read(start, end)
            if crash == "kept":
                # A sink that knows the number of the batch does not take it twice.
                taken = []
        self.applied.apply(taken)
        self.start = end
        return True

    def again(self) -> None:
        """A new process with the checkpoint alone."""
        self.reader.stop()
        self.reader = self._make()

    def to_the_end(self) -> None:
        """Everything up to now, as an availableNow query has it."""
        self.reader.prepareForTriggerAvailableNow()
        while self.step():
            pass

    def _read(self, start: Any, end: Any) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        self.between()
        for part in self.reader.partitions(start, end):
            self.between()
            reader = pickle.loads(pickle.dumps(self.reader))
            for batch in reader.read(pickle.loads(pickle.dumps(part))):
                rows += batch.to_pylist()
        return rows

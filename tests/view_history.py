"""Views through a history of statements, each compared with its query at every epoch.

A PostgreSQL that runs the same statements answers the queries, at every epoch; Spark answers those
that PostgreSQL does not know, and in the end all of them.
"""

import itertools
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa

from headwater.model.epoch import Epoch
from headwater.session.synchronous import Headwater
from headwater.testing.oracle import compare_rows
from sql_kit import differences

GOLDEN = Path(__file__).resolve().parent / "golden" / "explain"
WRITE_GOLDEN = os.environ.get("WRITE_GOLDEN", "") not in ("", "0")


@dataclass
class Moment:
    """One view at one epoch."""

    step: str
    rows: pa.Table
    wrong: str
    """How it differs from its query, nothing when it does not."""


@dataclass
class History:
    """Views that are watched while their tables change, here and on a PostgreSQL."""

    hw: Headwater
    queries: Mapping[str, str]
    postgres: "psycopg.Connection[Any]"
    only_here: Collection[str] = ()
    """Queries that PostgreSQL does not know."""
    moments: dict[str, list[Moment]] = field(default_factory=dict)

    def explain(self) -> dict[str, str]:
        """What EXPLAIN says to each view."""
        found = {}
        for name, query in self.queries.items():
            lines = self.hw.sql(f"explain create materialized view {name} as {query}").rows()
            found[name] = "".join(f"{line}\n" for (line,) in lines)
        return found

    def create(self, policy: str) -> None:
        """Create the views, and look at them."""
        started = time.monotonic()
        self.hw.sql(f"set refresh_policy = {policy}")
        for name, query in self.queries.items():
            self.hw.sql(f"create materialized view {name} as {query}")
        self._look("create", self.hw.flush(), started)

    def step(self, name: str, statements: Sequence[str]) -> None:
        """Run statements as one epoch, and look at the views."""
        script = ";\n".join(["begin", *statements, "commit"])
        started = time.monotonic()
        self.hw.sql(script)
        epoch = self.hw.flush()
        self.postgres.execute(script)
        self._look(name, epoch, started)

    def _look(self, step: str, epoch: Epoch, started: float) -> None:
        looked = time.monotonic()
        assert not self.hw.engine.keeper.failures
        for name in self.queries:
            rows = self.hw.stored(name).rows(epoch)
            if name in self.only_here:
                rows, said = self._beside_spark(name, rows, epoch)
            else:
                rows, said = self._beside_postgres(name, rows)
            self.moments.setdefault(name, []).append(Moment(step, rows, said))
        checked = time.monotonic()
        print(f"{step}: {looked - started:.1f} s, its check {checked - looked:.1f} s", flush=True)

    def _beside_postgres(self, name: str, stored: pa.Table) -> tuple[pa.Table, str]:
        """The user's columns, and how they differ from PostgreSQL's answer now."""
        cursor = self.postgres.execute(self.queries[name])
        rows = stored.select([each.name for each in cursor.description or ()])
        ours = list(zip(*rows.to_pydict().values(), strict=True))
        return rows, "\n".join(differences(ours, cursor.fetchall(), digits=13))

    def _beside_spark(self, name: str, stored: pa.Table, epoch: Epoch) -> tuple[pa.Table, str]:
        """The user's columns, and how they and their types differ from Spark's answer."""
        with interpreted(self.hw.spark()):
            expected = self.hw.sql(self.queries[name], epoch=epoch).arrow()
        rows = stored.select(expected.column_names)
        wrong = compare_rows(rows, expected)
        said = f"missing {wrong.missing}, extra {wrong.extra}" if wrong else ""
        if rows.schema.types != expected.schema.types:
            said += f" types {rows.schema.types}, expected {expected.schema.types}"
        return rows, said

    def differs_from_spark(self, name: str) -> str:
        """How a view is not what its query is on Spark, as the tables are now."""
        epoch = self.hw.visible
        return self._beside_spark(name, self.hw.stored(name).rows(epoch), epoch)[1]

    def wrong(self, name: str) -> list[str]:
        """What was ever wrong with a view."""
        return [f"after {m.step}: {m.wrong}" for m in self.moments[name] if m.wrong]

    def changes(self, name: str) -> int:
        """How many epochs changed a view."""
        pairs = itertools.pairwise(self.moments[name])
        return sum(bool(compare_rows(one.rows, two.rows)) for one, two in pairs)


@contextmanager
def interpreted(spark: Any) -> Iterator[None]:
    """Spark does not compile queries that run once: over few rows that takes most of the time."""
    plain = {
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    before = {name: spark.conf.get(name, None) for name in plain}
    try:
        for name, value in plain.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, old in before.items():
            spark.conf.unset(name) if old is None else spark.conf.set(name, old)


def check_golden(path: Path, shown: str) -> None:
    """Compare with a golden file, or write it when WRITE_GOLDEN is set."""
    if WRITE_GOLDEN:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(shown)
    assert path.exists(), f"WRITE_GOLDEN=1 makes {path.name}"
    assert shown == path.read_text()

"""Nexmark: the queries as materialized views, right at every epoch while events come in.

Events come in batches that fall into the same windows again and again; then the past changes: bids
are withdrawn, auctions go on for longer, people leave. After every epoch each view must equal
PostgreSQL's answer, or Spark's where PostgreSQL does not know what the query uses, and in the end
Spark's in any case.

`WRITE_GOLDEN=1` writes `tests/golden/explain/nexmark` anew, for a reviewer to read.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from headwater.session.synchronous import Headwater
from headwater.testing.nexmark.generator import SCHEMA, Nexmark, insert
from headwater.testing.nexmark.queries import QUERIES
from servers import postgres_server
from view_history import GOLDEN, History, check_golden

pytestmark = pytest.mark.timeout(1800)

EVENTS = Nexmark(seed=7, step=timedelta(milliseconds=25))
ONLY_HERE = {"q5", "q7", "q8", "q12"}
"""PostgreSQL has no tumble and no hop."""

FIRST = [
    insert("side_input", [(number, f"value {number}") for number in range(0, 60, 2)]),
    *EVENTS.inserts(0, 1000),
]
PAST_CHANGES = [
    "update bid set price = price * 3 where bidder % 4 = 2",
    "update auction set category = 10, expires = expires + interval '1' minute where id % 4 = 1",
    "update person set state = 'OR' where id % 3 = 1",
    "update side_input set value = 'another' where key < 10",
]
LEAVING = [
    "delete from person where id % 5 = 2",
    "delete from auction where category = 12",
    "delete from bid where date_time >= timestamp '2015-07-15 00:00:10'"
    " and date_time < timestamp '2015-07-15 00:00:20'",
    "delete from side_input where key > 40",
    *EVENTS.inserts(1610, 200),
]
STEPS = {
    "more events": EVENTS.inserts(1000, 500),
    "one event": EVENTS.inserts(1504, 1),
    "late events": EVENTS.inserts(1500, 4) + EVENTS.inserts(1505, 105),
    "bids are withdrawn": ["delete from bid where auction % 10 = 3"],
    "the past changes": PAST_CHANGES,
    "people leave": LEAVING,
}


@pytest.fixture(scope="module")
def opened(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    """The first events, here and in PostgreSQL."""
    folder = tmp_path_factory.mktemp("nexmark")
    settings = {"barrier_interval_ms": 60_000}
    with postgres_server() as url, Headwater(folder, spark=spark, settings=settings) as hw:
        with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as postgres:
            for each in (SCHEMA, ";\n".join(FIRST)):
                postgres.execute(each)
                hw.sql(each)
            hw.flush()
            yield History(hw, QUERIES, postgres, ONLY_HERE)


@pytest.fixture(scope="module")
def shown(opened: History) -> dict[str, str]:
    return opened.explain()


@pytest.fixture(scope="module")
def history(opened: History, shown: dict[str, str]) -> History:
    """All of it has happened."""
    opened.create("incremental")
    for name, statements in STEPS.items():
        opened.step(name, statements)
    return opened


@pytest.mark.parametrize("name", QUERIES)
def test_explain(shown: dict[str, str], name: str) -> None:
    check_golden(GOLDEN / "nexmark" / f"q{int(name[1:]):02}.txt", shown[name])


@pytest.mark.parametrize("name", QUERIES)
def test_the_view_is_its_query_at_every_epoch(history: History, name: str) -> None:
    assert not (wrong := history.wrong(name)), "\n".join(wrong)
    assert len(history.moments[name]) == 1 + len(STEPS)


@pytest.mark.parametrize("name", QUERIES)
def test_the_view_is_its_query_on_spark_in_the_end(history: History, name: str) -> None:
    assert not history.differs_from_spark(name)


@pytest.mark.parametrize("name", QUERIES)
def test_the_history_moves_every_view(history: History, name: str) -> None:
    """Otherwise this file would prove nothing of it."""
    assert history.changes(name) >= 2
    assert any(moment.rows.num_rows for moment in history.moments[name])


def test_events_are_the_same_in_any_pieces() -> None:
    whole = EVENTS.events(0, 300)
    parts = [EVENTS.events(first, 60) for first in range(0, 300, 60)]
    assert whole == {name: [row for part in parts for row in part[name]] for name in whole}
    assert whole != Nexmark(seed=8, step=EVENTS.step).events(0, 300)
    assert {name: len(rows) for name, rows in whole.items()} == {
        "person": 6, "auction": 18, "bid": 276,
    }  # fmt: skip

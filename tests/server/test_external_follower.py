"""The rule by which rows and changes of a stream are put together, driven without Spark."""

import random

import pytest

from cdc_kit import (  # noqa: F401  fixtures
    FILL,
    ORDERS,
    eventually,
    server,
    upstream,
    write_orders,
    writers,
)
from external_source_kit import Applied, Driven, assert_both_ways, postgres_options
from headwater.spark_source.external.source import PostgresSource

ROWS = 6000
KINDS = ("insert", "delete", "update_postimage")


def driven(url, table, key, *, exact=True, **more):
    options = {**postgres_options(url, slot__name="plain"), "table.name": table}
    options |= {"since": "snapshot", **{name: str(value) for name, value in more.items()}}

    def reader():
        source = PostgresSource(dict(options))
        return source.streamReader(source.schema())

    return Driven(reader, Applied(None, key, exact=exact))


def _writes(connection, dice):
    class Few(random.Random):
        def randrange(self, start, stop=None):
            return dice.randrange(1, ROWS + 500)

    few = Few(dice.random())
    write_orders(connection, few)


def _wait_for_writes(count, least=15):
    def wait():
        until = count[0] + least
        eventually(lambda: count[0] >= until)

    return wait


def test_every_row_once_and_every_change_once(upstream):  # noqa: F811
    upstream.db.execute(ORDERS)
    upstream.db.execute(FILL.format(ROWS))
    stream = driven(upstream.url, "orders", ["id"], rows_per_split=250, splits_per_batch=2)
    dice = random.Random(3)
    with writers(upstream, _writes) as count:
        stream.between = _wait_for_writes(count)
        while stream.start is None or stream.start["read"] or stream.start["left"]:
            stream.step()
            if dice.random() < 0.2:
                stream.again()
        inserts = stream.applied.kinds["insert"]
        for _ in range(20):
            stream.step()
    stream.between = lambda: None
    stream.to_the_end()
    assert_both_ways(stream.applied.tuples, upstream.rows("SELECT * FROM orders"))
    assert not stream.applied.wrong, stream.applied.wrong[:3]
    assert min(stream.applied.kinds[kind] for kind in KINDS) > 20
    assert 0 < stream.applied.kinds["insert"] - inserts


@pytest.mark.parametrize("crash", ["kept", "lost"])
def test_a_batch_again_converges(upstream, crash):  # noqa: F811
    """A crash after the end was written: a sink has the batch already, or takes it the second time."""
    upstream.db.execute(ORDERS)
    upstream.db.execute(FILL.format(ROWS))
    stream = driven(
        upstream.url, "orders", ["id"], exact=False, rows_per_split=250, splits_per_batch=2
    )
    dice = random.Random(5)
    with writers(upstream, _writes) as count:
        stream.between = _wait_for_writes(count, 5)
        while stream.start is None or stream.start["read"] or stream.start["left"]:
            stream.step(crash=crash if dice.random() < 0.4 else "")
        for _ in range(10):
            stream.step(crash=crash if dice.random() < 0.4 else "")
    stream.between = lambda: None
    stream.to_the_end()
    assert stream.replays > 8
    assert_both_ways(stream.applied.tuples, upstream.rows("SELECT * FROM orders"))
    assert not stream.applied.wrong, stream.applied.wrong[:3]

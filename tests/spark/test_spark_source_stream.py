"""Changes of a table as a Spark stream: exact, once each, over restarts and crashes."""

import time

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headwater.model.change import ChangeType
from headwater.model.epoch import epoch_time
from headwater.model.reserved import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION, VNODE
from headwater.spark_source.register import register
from headwater.testing.oracle import assert_same_rows, key_of
from spark_source_kit import TABLES, Collected, fed_engine, load, replayed, stream


@pytest.fixture(scope="module")
def session(spark):
    register(spark)
    return spark


@pytest.fixture
def fed(tmp_path):
    with fed_engine(tmp_path / "w", fold_files=2) as fed:
        fed.feed(40)
        yield fed


@pytest.fixture
def collected(tmp_path):
    return Collected(tmp_path / "checkpoint")


def _log(fed, table, after, upto):
    """The engine's own change log."""
    return fed.hw.engine.table(table).change_rows(after, upto).drop_columns([VNODE])


def _rows(fed, table, epoch=None):
    return fed.truth[epoch or fed.epochs[-1]][table]


@pytest.mark.parametrize("table", ["orders", "things"])
def test_a_snapshot_and_then_every_change_once(session, fed, collected, table):
    begun = fed.epochs[-1]
    for upto in (None, 70, 71, 140):
        if upto is not None:
            fed.feed(upto)
            fed.hw.maintain()
        collected.run(stream(session, fed.folder, table, since="snapshot"))
        rows = replayed(collected.rows, fed.key(table))
        assert_same_rows(list(rows.values()), _rows(fed, table))
    first = collected.batches.pop(0)
    assert set(first.column(CHANGE_TYPE).to_pylist()) == {ChangeType.INSERT.value}
    assert set(first.column(COMMIT_VERSION).to_pylist()) == {begun}
    assert set(first.column(COMMIT_TIMESTAMP).to_pylist()) == {epoch_time(begun)}
    assert_same_rows(collected.rows, _log(fed, table, begun, fed.epochs[-1]))
    kinds = set(collected.rows.column(CHANGE_TYPE).to_pylist())
    assert kinds == {kind.value for kind in ChangeType}


def test_a_run_with_nothing_new_makes_no_batch(session, fed, collected):
    collected.run(stream(session, fed.folder, "orders", since="snapshot"))
    fed.hw.flush()
    collected.run(stream(session, fed.folder, "orders", since="snapshot"))
    assert list(collected.batches) == [0]


def test_from_the_beginning_and_from_an_epoch(session, fed, tmp_path):
    middle = fed.epochs[-1]
    fed.feed(90)
    whole, late = Collected(tmp_path / "whole"), Collected(tmp_path / "late")
    whole.run(stream(session, fed.folder, "orders", since="beginning"))
    late.run(stream(session, fed.folder, "orders", since=middle))
    assert_same_rows(whole.rows, _log(fed, "orders", 0, fed.epochs[-1]))
    assert_same_rows(late.rows, _log(fed, "orders", middle, fed.epochs[-1]))
    assert 0 < late.rows.num_rows < whole.rows.num_rows


def test_latest_gives_only_what_comes_after_its_first_run(session, fed, collected):
    collected.run(stream(session, fed.folder, "orders", since="latest"))
    begun = fed.epochs[-1]
    assert sum(batch.num_rows for batch in collected.batches.values()) == 0
    fed.feed(90)
    collected.run(stream(session, fed.folder, "orders", since="latest"))
    assert_same_rows(collected.rows, _log(fed, "orders", begun, fed.epochs[-1]))


@pytest.mark.parametrize("since", ["snapshot", "latest"])
def test_a_first_batch_that_failed_is_repeated_as_it_was(session, fed, collected, since):
    """Its end is in the checkpoint, its start is not: "now" must not be asked for again."""
    begun = fed.epochs[-1]
    collected.fail_in = 0
    with pytest.raises(Exception, match="the sink is out of order"):
        collected.run(stream(session, fed.folder, "orders", since=since))
    collected.fail_in = None
    fed.feed(90)
    fed.hw.maintain()
    collected.run(stream(session, fed.folder, "orders", since=since))
    first = collected.batches.pop(0)
    if since == "snapshot":
        assert_same_rows(
            first.drop_columns([CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP]),
            _rows(fed, "orders", begun),
        )
    else:
        assert first.num_rows == 0
    assert_same_rows(collected.rows, _log(fed, "orders", begun, fed.epochs[-1]))


def test_a_batch_that_failed_later_is_repeated_as_it_was(session, fed, collected):
    collected.run(stream(session, fed.folder, "orders", since="beginning"))
    middle = fed.feed(70)
    collected.fail_in = 1
    with pytest.raises(Exception, match="the sink is out of order"):
        collected.run(stream(session, fed.folder, "orders", since="beginning"))
    collected.fail_in = None
    fed.feed(110)
    collected.run(stream(session, fed.folder, "orders", since="beginning"))
    assert max(collected.batches[1].column(COMMIT_VERSION).to_pylist()) <= middle
    assert_same_rows(collected.rows, _log(fed, "orders", 0, fed.epochs[-1]))


def test_batches_are_bounded_and_epochs_stay_whole(session, fed, collected):
    for upto in (50, 60, 70, 80, 90):
        fed.feed(upto)
    changes = stream(session, fed.folder, "orders", since="beginning", maxRowsPerBatch=15)
    collected.run(changes)
    assert len(collected.batches) > 2
    epochs = [set(b.column(COMMIT_VERSION).to_pylist()) for b in collected.batches.values()]
    assert sum(len(each) for each in epochs) == len(set().union(*epochs)), "an epoch was cut"
    for batch, inside in zip(collected.batches.values(), epochs, strict=True):
        assert batch.num_rows <= 15 or len(inside) == 1
    assert_same_rows(collected.rows, _log(fed, "orders", 0, fed.epochs[-1]))


def test_a_query_follows_a_running_engine(session, tmp_path, collected):
    """Not AvailableNow: the query stays, and the engine commits while batches run."""
    with fed_engine(tmp_path / "w", barrier_interval_ms=50, fold_files=2) as fed:
        fed.feed(20)
        changes = stream(session, fed.folder, "orders", since="snapshot")
        query = collected.run(changes, processingTime="0 seconds")
        try:
            for upto in (50, 90, 130, 170, 210):
                fed.feed(upto - 30)
                fed.feed(upto)
                fed.hw.maintain()
                wanted = _log(fed, "orders", 0, fed.epochs[-1])
                _wait(query, collected, max(wanted.column(COMMIT_VERSION).to_pylist()))
        finally:
            query.stop()
        assert len(collected.batches) > 4
        rows = replayed(collected.rows, fed.key("orders"))
        assert_same_rows(list(rows.values()), _rows(fed, "orders"))


def _wait(query, collected: Collected, epoch: int) -> None:
    deadline = time.monotonic() + 180
    while not any(_reaches(batch, epoch) for batch in list(collected.batches.values())):
        assert query.exception() is None, query.exception()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _reaches(batch: pa.Table, epoch: int) -> bool:
    return batch.num_rows > 0 and pc.max(batch.column(COMMIT_VERSION)).as_py() >= epoch


def test_changes_that_are_gone_are_an_error_and_no_gap(session, tmp_path, collected):
    with fed_engine(tmp_path / "w", retention_s=0, fold_files=2) as fed:
        first = fed.feed(30)
        collected.run(stream(session, fed.folder, "orders", since="snapshot"))
        for upto in (60, 90, 120):
            fed.feed(upto)
            fed.hw.maintain()
        assert fed.hw.engine.table("orders").manifest().horizon > first
        before = dict(collected.batches)
        gone = r'changes after epoch \d+ of table "orders" are no longer kept(.|\n)*new checkpoint'
        with pytest.raises(Exception, match=gone):
            collected.run(stream(session, fed.folder, "orders", since="snapshot"))
        assert collected.batches.keys() == before.keys()
        other = Collected(tmp_path / "other")
        for since in (first, "beginning"):
            with pytest.raises(Exception, match=r"are no longer kept"):
                other.run(stream(session, fed.folder, "orders", since=since))


def test_a_table_that_was_idle_while_the_horizon_passed_goes_on(session, tmp_path, collected):
    with fed_engine(tmp_path / "w", retention_s=0, fold_files=2) as fed:
        for upto in (20, 40, 60):
            fed.feed(upto)
        collected.run(stream(session, fed.folder, "orders", since="snapshot"))
        at = fed.epochs[-1]
        for _ in range(4):
            fed.hw.flush()
            fed.hw.maintain()
        assert fed.hw.engine.table("orders").manifest().horizon > at, "the horizon did not pass"
        fed.feed(61)
        fed.feed(90)
        collected.run(stream(session, fed.folder, "orders", since="snapshot"))
        rows = replayed(collected.rows, fed.key("orders"))
        assert_same_rows(list(rows.values()), _rows(fed, "orders"))


def test_another_table_of_the_same_name_is_refused(session, fed, collected):
    collected.run(stream(session, fed.folder, "orders", since="snapshot"))
    schema = fed.tap.schemas["orders"]
    fed.hw.drop_source("shop")
    options = {"seed": 1, "tables": {"orders": TABLES["orders"]}, "limit": 50}
    fed.hw.create_source("shop", "generated", options, tables={"orders": schema})
    fed.hw.flush()
    with pytest.raises(Exception, match=r"dropped and created again(.|\n)*new checkpoint"):
        collected.run(stream(session, fed.folder, "orders", since="snapshot"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, r"a stream needs the option since\nHINT: Add .option"),
        ({"since": "yesterday"}, "option since is 'yesterday'"),
        ({"since": "9" * 18}, "is not committed"),
        ({"since": "latest", "epoch": "5"}, "does not exist at epoch 5|has no option epoch"),
        ({"since": "latest", "maxRowsPerBatch": "0"}, "option maxRowsPerBatch is '0'"),
    ],
)
def test_what_cannot_be_followed_says_why(session, fed, collected, options, words):
    with pytest.raises(Exception, match=words):
        collected.run(stream(session, fed.folder, "orders", **options))


def test_some_columns_are_enough(session, fed, collected):
    options = {"workspace": str(fed.folder), "table": "orders", "since": "beginning"}
    schema = f"number bigint, {CHANGE_TYPE} string"
    reader = session.readStream.format("headwater").options(**options).schema(schema)
    collected.run(reader.load())
    wanted = _log(fed, "orders", 0, fed.epochs[-1]).select(["number", CHANGE_TYPE])
    assert_same_rows(pa.concat_tables(collected.batches.values()), wanted)


def test_a_stream_and_a_batch_agree(session, fed, collected):
    fed.feed(120)
    collected.run(stream(session, fed.folder, "customers", since="beginning"))
    rows = replayed(collected.rows, fed.key("customers"))
    batch = load(session, fed.folder, "customers").toArrow().to_pylist()
    assert {key_of(row, fed.key("customers")) for row in batch} == rows.keys()

"""Rows of a workspace through Spark's own door, beside an engine and without one."""

import hashlib
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine_kit import CALM, built, workload
from headwater import Headwater
from headwater.ledger.ledger import Ledger
from headwater.model.schema import Column, Schema
from headwater.model.types import BIGINT
from headwater.spark_source.register import register
from headwater.spark_source.workspace import last_epoch
from headwater.testing.oracle import assert_same_rows
from headwater.testing.pretty import from_pretty
from headwater.testing.scripted_source import Changes, ScriptedSource
from spark_source_kit import TABLES, fed_engine, load

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
CHILD = Path(__file__).resolve().parent.parent / "crash" / "child.py"


@pytest.fixture(scope="module")
def session(spark):
    register(spark)
    return spark


@pytest.fixture(scope="module")
def fed(tmp_path_factory):
    """An engine with a history: many epochs, a fold, and dead rows."""
    with fed_engine(tmp_path_factory.mktemp("source") / "w", fold_files=2) as fed:
        for upto in (1, 20, 45, 80, 81, 120):
            fed.feed(upto)
            fed.hw.maintain()
        folded = [len(fed.hw.engine.table("orders").view(epoch).files) for epoch in fed.epochs]
        assert folded != sorted(folded), "nothing was folded"
        yield fed


def _files(folder: Path) -> dict[str, str]:
    """Every file but SQLite's own, with its content."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith("ledger.db")
    }


@pytest.mark.parametrize("table", TABLES)
def test_the_last_epoch_has_exactly_the_rows_of_the_source(session, fed, table):
    got = load(session, fed.folder, table)
    assert_same_rows(got.toArrow(), fed.truth[fed.epochs[-1]][table], key=fed.key(table))
    assert list(got.columns) == list(fed.tap.schemas[table].names)


@pytest.mark.parametrize("table", ["orders", "things"])
def test_every_epoch_of_the_past_can_be_read(session, fed, table):
    assert any(live.dead for live in fed.hw.engine.table(table).view().files), "no deletion vector"
    for epoch in fed.epochs:
        got = load(session, fed.folder, table, epoch=epoch).toArrow()
        assert_same_rows(got, fed.truth[epoch][table], key=fed.key(table))


def test_an_epoch_between_two_is_the_one_before(session, fed):
    between = fed.epochs[2] + 1
    got = load(session, fed.folder, "notes", epoch=between).toArrow()
    assert_same_rows(got, fed.truth[fed.epochs[2]]["notes"])


def test_spark_sql_can_use_the_format(session, fed):
    session.sql(
        "create or replace temporary view shop_notes using headwater "
        f"options (workspace '{fed.folder}', table 'public.notes')"
    )
    got = session.sql("select * from shop_notes").toArrow()
    assert_same_rows(got, fed.truth[fed.epochs[-1]]["notes"])


@pytest.mark.parametrize("pushdown", ["false", "true"])
def test_a_filter_of_one_query_does_not_reach_the_next(session, fed, pushdown):
    """Spark 4.3 mixes up pushed filters of queries over one DataFrame; here it has none to mix."""
    session.conf.set(PUSHDOWN, pushdown)
    whole = load(session, fed.folder, "orders")
    rows = fed.truth[fed.epochs[-1]]["orders"]
    for number in (3, 4):
        wanted = [row for row in rows if row["number"] == number]
        assert_same_rows(whole.where(f"number = {number}").toArrow(), wanted)
    assert_same_rows(whole.toArrow(), rows)
    session.conf.set(PUSHDOWN, "false")


def test_a_frame_stays_at_the_epoch_it_was_loaded_at(session, tmp_path):
    with fed_engine(tmp_path) as fed:
        first = fed.feed(30)
        frame = load(session, tmp_path, "orders")
        given = load_with_schema(session, tmp_path, "orders", "shop string, number bigint")
        # With a schema given, Spark makes the source only when it first needs rows.
        assert given.count() == len(fed.truth[first]["orders"])
        fed.feed(90)
        fed.hw.maintain()
        assert fed.truth[first]["orders"] != fed.truth[fed.epochs[-1]]["orders"]
        assert_same_rows(frame.toArrow(), fed.truth[first]["orders"])
        keys = [{"shop": r["shop"], "number": r["number"]} for r in fed.truth[first]["orders"]]
        assert_same_rows(given.toArrow(), keys)


def load_with_schema(session, folder, table, schema):
    options = {"workspace": str(folder), "table": table}
    return session.read.format("headwater").options(**options).schema(schema).load()


def test_a_schema_of_the_users_chooses_columns(session, fed):
    got = load_with_schema(session, fed.folder, "things", "many array<bigint>, id bigint")
    rows = [{"many": r["many"], "id": r["id"]} for r in fed.truth[fed.epochs[-1]]["things"]]
    assert_same_rows(got.toArrow(), rows)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("id int", 'column "id" of table "things" is bigint, not int'),
        ("ident bigint", 'table "things" has no column "ident"'),
    ],
)
def test_a_schema_that_does_not_fit_is_refused(session, fed, schema, words):
    with pytest.raises(Exception, match=words):
        load_with_schema(session, fed.folder, "things", schema).collect()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"table": "ordres"}, 'table "ordres" does not exist\nHINT: Did you mean "orders"'),
        ({"table": "sales.orders"}, 'table "sales.orders" does not exist'),
        ({"epoch": "9" * 18}, "is not committed\nDETAIL: The last committed epoch is"),
        ({"epoch": "1"}, 'table "orders" does not exist at epoch 1'),
        ({"epoch": "last"}, "option epoch is 'last'"),
        ({"epcoh": "5"}, "no option epcoh\n(.|\n)*Did you mean epoch"),
        ({"workspace": "/no/such/folder"}, "there is no workspace /no/such/folder"),
        ({"table": ""}, "option table is missing"),
        ({"since": "snapshot"}, "spark.read has no option since"),
    ],
)
def test_what_cannot_be_read_says_why(session, fed, options, words):
    with pytest.raises(Exception, match=words):
        load(session, fed.folder, options.pop("table", "orders"), **options).collect()


def test_a_folder_that_is_no_workspace_stays_as_it_is(session, tmp_path):
    with pytest.raises(Exception, match="is not a workspace"):
        load(session, tmp_path, "orders")
    assert list(tmp_path.iterdir()) == []


def test_history_that_is_gone_says_so(session, tmp_path):
    with fed_engine(tmp_path, retention_s=0, fold_files=2) as fed:
        first = fed.feed(30)
        frame = load(session, tmp_path, "orders", epoch=first)
        assert frame.count() == len(fed.truth[first]["orders"])
        for upto in (60, 90, 120):
            fed.feed(upto)
            fed.hw.maintain()
        with pytest.raises(Exception, match=r"is no longer kept\nDETAIL: The oldest epoch"):
            load(session, tmp_path, "orders", epoch=first)
        with pytest.raises(Exception, match=r"a file of this read is gone(.|\n)*retention_s"):
            frame.count()
        rows = load(session, tmp_path, "orders").toArrow()
        assert_same_rows(rows, fed.truth[fed.epochs[-1]]["orders"])


def test_reading_writes_nothing_and_takes_nothing_over(session, tmp_path):
    with fed_engine(tmp_path) as fed:
        fed.feed(40)
        ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}")
        owner, files = ledger.owner(), _files(tmp_path)
        assert load(session, tmp_path, "orders").count() > 0
        assert (ledger.owner(), _files(tmp_path)) == (owner, files)
        assert ledger.pins() == {}
        ledger.close()
        fed.feed(50)
    files = _files(tmp_path)
    rows = load(session, tmp_path, "orders").toArrow()
    assert_same_rows(rows, fed.truth[fed.epochs[-1]]["orders"])
    assert _files(tmp_path) == files


def test_columns_that_are_ours_are_not_shown(session, tmp_path):
    schema = Schema((Column("a", BIGINT), Column("_hw_own_n", BIGINT)), ("a", "_hw_own_n"))
    chunk = from_pretty("a I  _hw_own_n I\n+ 1 0\n+ 1 1\n+ 2 0")
    source = ScriptedSource("s", [Changes({"v": chunk})])
    with Headwater(tmp_path, settings=CALM, connectors={"s": lambda *_: source}) as hw:
        hw.create_source("s", "s", {}, tables={"v": schema})
        hw.flush()
        got = load(session, tmp_path, "v")
        assert got.columns == ["a"]
        assert sorted(row.a for row in got.collect()) == [1, 1, 2]


def test_the_examples_of_the_page_work(session, fed, tmp_path):
    page = (CHILD.parents[2] / "docs" / "spark-data-source.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    text = "\n".join(blocks).replace("/data/shop", str(fed.folder)).replace("/data", str(tmp_path))
    names = {"spark": session}
    exec(compile(text, "spark-data-source.md", "exec"), names)
    names["query"].awaitTermination()
    truth = fed.truth[fed.epochs[-1]]
    assert_same_rows(names["orders"].toArrow(), truth["orders"])
    assert_same_rows(names["customers"].toArrow(), truth["customers"])
    assert names["amounts"].columns == ["number", "amount"]
    written = session.read.parquet(str(tmp_path / "order_changes"))
    assert_same_rows(written.select(*truth["orders"][0]).toArrow(), truth["orders"])


@pytest.mark.timeout(600)
def test_beside_an_engine_in_another_process_every_epoch_is_whole(session, tmp_path):
    """The bank's money is all there in every pair of tables read at one epoch."""
    log = (tmp_path / "child.log").open("w+")
    sources = workload(limit=100_000)
    workspace = tmp_path / "w"
    command = [sys.executable, str(CHILD), str(workspace), "--limit", "100000", "--endless"]
    command += ["--set", "retention_s=3600"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert child.stdout is not None
        while (line := child.stdout.readline().strip()) != "ready":
            assert line, Path(log.name).read_text()
        seen, reads, deadline = set(), 0, time.monotonic() + 240
        while reads < 8 or len(seen) < 4:
            assert time.monotonic() < deadline, "the engine stood still"
            reads += 1
            epoch = last_epoch(workspace)
            parts = [
                load(session, workspace, table, epoch=epoch).selectExpr(f"sum({column}) as s")
                for table, column in (("accounts", "balance"), ("transfers", "amount"))
            ]
            total = sum(int(part.collect()[0].s or 0) for part in parts)
            if total:
                assert total == built(sources)["bank"].total
                seen.add(epoch)
        assert child.poll() is None, Path(log.name).read_text()
    finally:
        child.kill()
        child.wait()
        log.close()

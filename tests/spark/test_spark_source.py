"""Rows of a workspace through Spark's own door, beside an engine and without one."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from engine_kit import CALM, built, workload
from headwater.ledger.ledger import Ledger
from headwater.model.schema import Schema
from headwater.runtime.synchronous import Headwater
from headwater.spark_source.register import register
from headwater.spark_source.workspace import last_epoch
from headwater.testing.oracle import assert_same_rows
from headwater.testing.pretty import columns_from_pretty, from_pretty
from headwater.testing.scripted_source import Changes, ScriptedSource
from spark_source_kit import TABLES, fed_engine, load

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
        yield fed


def _files(folder: Path) -> dict[str, str]:
    """Every file but SQLite's own, with its content."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith("ledger.db")
    }


def _scanned(frame) -> int:
    """How many rows a frame that was collected took out of Python."""
    found = []

    def walk(plan):
        if plan.nodeName().startswith("BatchScan"):
            found.append(plan.metrics().apply("numOutputRows").value())
        for place in range(plan.children().size()):
            walk(plan.children().apply(place))

    walk(frame._jdf.queryExecution().executedPlan())
    return sum(found)


@pytest.mark.parametrize("table", TABLES)
def test_the_last_epoch_has_exactly_the_rows_of_the_source(session, fed, table):
    got = load(session, fed.folder, table)
    assert_same_rows(got.toArrow(), fed.truth[fed.epochs[-1]][table], key=fed.key(table))
    assert list(got.columns) == list(fed.tap.schemas[table].names)


@pytest.mark.parametrize("table", ["orders", "things"])
def test_every_epoch_of_the_past_can_be_read(session, fed, table):
    assert any(live.dead for live in fed.hw.table(table).view().files), "no deletion vector"
    versions = [len(fed.hw.table(table).view(epoch).files) for epoch in fed.epochs]
    assert versions != sorted(versions), "nothing was folded"
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


@pytest.mark.parametrize(
    ("table", "condition", "fewer"),
    [
        ("orders", "number > 5", True),
        ("orders", "number >= 5 and number < 9", True),
        ("orders", "number in (3, 4, null)", True),
        ("orders", "amount <= 0.01", True),
        ("orders", "paid", True),
        ("orders", "not paid", False),
        ("orders", "amount is null", True),
        ("orders", "number = 99999999999", True),
        ("orders", "number <> 5", False),
        ("orders", "shop = 'ann' or number = 3", False),
        ("customers", "name like 'a%'", False),
        ("customers", "joined > timestamp '2020-01-01 00:00:00'", False),
        ("things", "day > date '2001-01-01'", True),
        ("things", "f = double('NaN')", False),
        ("things", "f > 1", False),
        ("things", "i <=> null", False),
        ("things", "text > 'b'", True),
        ("things", "wide > 0", True),
        ("things", "pair.a > 0", False),
    ],
)
def test_a_filter_keeps_exactly_what_spark_keeps(session, fed, table, condition, fewer):
    whole = load(session, fed.folder, table)
    everything = session.createDataFrame(whole.toArrow())
    filtered = whole.where(condition)
    assert_same_rows(filtered.toArrow(), everything.where(condition).toArrow())
    again = whole.where(condition)
    again.collect()
    assert (_scanned(again) < whole.count()) == fewer


def test_a_whole_key_reads_only_the_files_that_can_hold_it(session, tmp_path):
    settings = {"target_file_bytes": 64 * 1024, "fold_files": 2}
    schema = Schema(columns_from_pretty("id I  text T"), ("id",))
    lines = "\n".join(f"+ {n} {hashlib.sha256(str(n).encode()).hexdigest()}" for n in range(9000))
    source = ScriptedSource("s", [Changes({"t": from_pretty(f"id I  text T\n{lines}")})])
    with Headwater(
        tmp_path, settings={**CALM, **settings}, connectors={"s": lambda *_: source}
    ) as hw:
        hw.create_source("s", "s", {}, tables={"t": schema})
        hw.flush()
        assert len(hw.table("t").view().files) > 4
        found = load(session, tmp_path, "t").where("id = 4711")
        assert found.rdd.getNumPartitions() == 1
        assert [row.text for row in found.collect()] == [hashlib.sha256(b"4711").hexdigest()]
        nothing = load(session, tmp_path, "t").where("id = 9001")
        assert nothing.collect() == []


def test_a_frame_stays_at_the_epoch_it_was_loaded_at(session, tmp_path):
    with fed_engine(tmp_path) as fed:
        first = fed.feed(30)
        frame = load(session, tmp_path, "orders")
        given = load_with_schema(session, tmp_path, "orders", "shop string, number bigint")
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
        with pytest.raises(Exception, match=r"is no longer kept"):
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
    schema = Schema(columns_from_pretty("a I  _hw_own_n I"), ("a", "_hw_own_n"))
    chunk = from_pretty("a I  _hw_own_n I\n+ 1 0\n+ 1 1\n+ 2 0")
    source = ScriptedSource("s", [Changes({"v": chunk})])
    with Headwater(tmp_path, settings=CALM, connectors={"s": lambda *_: source}) as hw:
        hw.create_source("s", "s", {}, tables={"v": schema})
        hw.flush()
        got = load(session, tmp_path, "v")
        assert got.columns == ["a"]
        assert sorted(row.a for row in got.collect()) == [1, 1, 2]


@pytest.mark.timeout(240)
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
        assert child.stdout.readline().strip() == "ready", Path(log.name).read_text()
        seen = set()
        for _ in range(8):
            epoch = last_epoch(workspace)
            parts = [
                load(session, workspace, table, epoch=epoch).selectExpr(f"sum({column}) as s")
                for table, column in (("accounts", "balance"), ("transfers", "amount"))
            ]
            total = sum(int(part.collect()[0].s or 0) for part in parts)
            if total:
                assert total == built(sources)["bank"].total
                seen.add(epoch)
        assert len(seen) > 3, "the engine stood still"
        assert child.poll() is None, Path(log.name).read_text()
    finally:
        child.kill()
        child.wait()
        log.close()

"""SELECT through the engine: PostgreSQL's meaning, one epoch over all tables, clear errors."""

import pytest

from headwater.errors import HeadwaterError
from headwater.session.synchronous import Headwater
from headwater.testing.oracle import assert_same_rows
from headwater.testing.source_kinds import bank

OPTIONS = {"seed": 11, "accounts": 40, "limit": 900}


@pytest.fixture(scope="module")
def hw(tmp_path_factory, spark):
    folder = tmp_path_factory.mktemp("sql")
    with Headwater(folder, spark=spark, settings={"barrier_interval_ms": 50}) as opened:
        source = bank("bank", OPTIONS)
        opened.create_source("bank", "bank", OPTIONS, tables=source.schemas)
        opened.flush()
        yield opened


def _accounts():
    return bank("bank", OPTIONS).oracle_at(str(OPTIONS["limit"]))["accounts"].values()


def test_integers_divide_as_in_postgresql(hw):
    got = hw.sql("select id, balance / 7 as part, balance % 7 as rest from accounts").toArrow()
    wanted = []
    for row in _accounts():
        part = abs(row["balance"]) // 7 * (1 if row["balance"] >= 0 else -1)
        wanted.append({"id": row["id"], "part": part, "rest": row["balance"] - 7 * part})
    assert_same_rows(got, wanted)


def test_both_tables_are_read_at_one_epoch(hw):
    text = (
        "select (select sum(balance) from accounts) + "
        "(select coalesce(sum(amount), 0) from transfers) as total"
    )
    for _ in range(3):
        hw.flush()
        assert int(hw.sql(text).collect()[0][0]) == OPTIONS["accounts"] * 1000


def test_order_and_limit(hw):
    got = [r[0] for r in hw.sql("select id from accounts order by id desc limit 3").collect()]
    ids = sorted((row["id"] for row in _accounts()), reverse=True)
    assert got == ids[:3]


@pytest.mark.parametrize(
    ("text", "sqlstate", "words"),
    [
        ("select balanse from accounts", "42703", 'Did you mean "balance"'),
        ("select * from acounts", "42P01", 'Did you mean "accounts"'),
        ("select (1 from accounts", "42601", "LINE 1"),
        ("drop table accounts", "0A000", "DROP SOURCE bank CASCADE"),
    ],
)
def test_errors_say_what_where_and_what_to_do(hw, text, sqlstate, words):
    with pytest.raises(HeadwaterError) as caught:
        hw.sql(text)
    assert caught.value.sqlstate == sqlstate
    assert words in str(caught.value)

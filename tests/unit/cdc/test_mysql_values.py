"""Small values of MySQL: GTIDs, places, decimals, times, keys in SQL, doubles in documents."""

import datetime
import random
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from headwater.cdc.mysql.gtids import MariaDbGtids, MySqlGtids
from headwater.cdc.mysql.json_binary import double_text
from headwater.cdc.mysql.keys import after, at_least, below, spelled
from headwater.cdc.mysql.options import TimeMode
from headwater.cdc.mysql.seen import BinlogSeen, place
from headwater.cdc.mysql.types import Family, MySqlColumn, family_and_type, listed_values
from headwater.cdc.offset import BinlogOffset
from headwater.errors import DamagedState, SchemaError
from headwater.model.types import BIGINT, VARCHAR, decimal


def test_gtid_sets_grow_and_join():
    gtids = MySqlGtids.parse("a:1-3:7,\nb:5")
    gtids.add("a", np.array([9, 4, 5]))
    assert str(gtids) == "a:1-5:7:9,b:5"
    gtids.add("a", np.array([6, 8]))
    gtids.add("c", np.array([2]))
    assert str(gtids) == "a:1-9,b:5,c:2"
    assert ("a", 9) in gtids
    assert ("a", 10) not in gtids
    tagged = MySqlGtids.parse("a:1-3:blue:1-2")
    assert ("a:blue", 2) in tagged
    assert ("a", 3) in tagged
    assert str(MySqlGtids.parse("")) == ""


def test_gtid_positions_keep_the_last_of_each_domain():
    gtids = MariaDbGtids.parse("0-11-5,2-12-7")
    gtids.add(0, 13, 6)
    assert str(gtids) == "0-13-6,2-12-7"


def test_places_keep_the_order_of_the_log_over_files():
    offsets = [
        BinlogOffset("bl.000009", 2**32), BinlogOffset("bl.000010", 4),
        BinlogOffset("bl.999999", 2**40 - 1), BinlogOffset("bl.1000000", 4),
    ]  # fmt: skip
    places = [place(each) for each in offsets]
    assert places == sorted(places)
    assert max(places) < 2**63
    seen = BinlogSeen(places[1])
    assert seen.holds(pa.array(places)).to_pylist() == [True, True, False, False]
    assert BinlogSeen.parse(seen.serialized()) == seen
    with pytest.raises(DamagedState):
        place(BinlogOffset("bl.000001", 2**40))
    with pytest.raises(DamagedState):
        BinlogSeen.parse('{"v": 9}')


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        ("int(10) unsigned", BIGINT),
        ("bigint(20) unsigned zerofill", decimal(20, 0)),
        ("decimal(38,0)", decimal(38, 0)),
        ("varchar(3)", VARCHAR),
    ],
)
def test_types(text, type_):
    assert family_and_type("t", "c", text, TimeMode.TIME)[1] == type_


def test_a_type_without_a_home_is_named():
    with pytest.raises(SchemaError, match='column "c" of table "t" has type multipolygon'):
        family_and_type("t", "c", "multipolygon", TimeMode.TIME)
    assert listed_values("enum('a','it''s',',','')") == ("a", "it's", ",", "")


TEXT = MySqlColumn(
    name="n`m", spelled="varchar(9)", family=Family.TEXT, type=VARCHAR, charset="latin1",
    collation="latin1_swedish_ci",
)  # fmt: skip
NUMBER = MySqlColumn(name="k", spelled="int", family=Family.INTEGER, type=BIGINT)
CHOICE = MySqlColumn(
    name="e", spelled="enum('z','a')", family=Family.ENUM, type=VARCHAR, values=("z", "a")
)


def test_conditions_are_lexicographic_and_in_the_columns_own_order():
    assert after([NUMBER], ["5"]) == "`k` > 5"
    assert at_least([NUMBER], ["-5"]) == "`k` >= -5"
    assert below([NUMBER, CHOICE], ["5", "2"]) == (
        "`k` <= 5 AND ((`k` < 5) OR (`k` = 5 AND `e` < 2))"
    )
    assert at_least([NUMBER, CHOICE], ["5", "2"]) == (
        "`k` >= 5 AND ((`k` > 5) OR (`k` = 5 AND `e` >= 2))"
    )
    assert after([TEXT], ["a"]) == (
        "`n``m` > CONVERT(_utf8mb4 X'61' USING latin1) COLLATE latin1_swedish_ci"
    )


def test_a_cursor_that_is_no_key_never_reaches_the_server():
    for text in ("1 OR 1=1", "", "1e5", "0x1"):
        with pytest.raises(DamagedState):
            after([NUMBER], [text])
    with pytest.raises(DamagedState):
        after([NUMBER], ["1", "2"])


def test_keys_are_spelled_as_the_server_reads_them():
    moment = MySqlColumn(name="m", spelled="datetime(6)", family=Family.DATETIME, type=VARCHAR)
    early = datetime.datetime(7, 2, 3, 4, 5, 6, 7)  # noqa: DTZ001
    assert spelled(moment, early) == "0007-02-03 04:05:06.000007"
    assert spelled(CHOICE, "a") == "2"
    assert spelled(NUMBER, Decimal(2**64 - 1)) == str(2**64 - 1)


def test_doubles_in_documents_read_back_exactly():
    dice = random.Random(3)
    for _ in range(2000):
        value = dice.uniform(-1, 1) * 10.0 ** dice.randrange(-320, 300)
        text = double_text(value)
        assert float(text) == value
        assert "." in text or "e" in text

"""Positions and options of external streams, without a database."""

import json
import subprocess
import sys

import pytest

from headwater.cdc.external_table import Split
from headwater.cdc.offset import PostgresOffset
from headwater.errors import ConfigError, UserError
from headwater.spark_source.external.options import ReadOptions, Since, divided
from headwater.spark_source.external.position import Position
from headwater.spark_source.external.upstream import Start

START = Start(log=PostgresOffset(100), server="7/1", to_see=(5, 6))
BOUNDS = [("b",), ("d",), ("f",), None]


def planned():
    edges = [None, *BOUNDS]
    splits = [Split(number=n, columns=("k",), left=edges[n], right=edges[n + 1]) for n in range(4)]
    return Position.planned("public.t", START, splits)


def stored(position):
    return Position.from_offset(json.loads(json.dumps(position.to_offset())))


def test_a_position_survives_the_checkpoint():
    first = Position(table="public.t", begin=Since.SNAPSHOT)
    read = planned().with_rows(1, "seen", PostgresOffset(150))
    for position in (first, planned(), read, read.with_log(PostgresOffset(120), [9])):
        assert stored(position) == position
        assert stored(position).to_offset() == position.to_offset()


def test_splits_go_on_where_the_ranges_end():
    position = planned()
    bounds = [(split.left, split.right) for split in position.splits(2)]
    assert bounds == [(None, ("b",)), (("b",), ("d",))]
    later = position.with_rows(2, "s", PostgresOffset(150))
    assert [(split.left, split.right) for split in later.splits(9)] == [
        (("d",), ("f",)),
        (("f",), None),
    ]
    assert later.to_see == (), "a snapshot that was taken has seen them"


def test_a_range_is_settled_once_the_log_has_passed_what_it_holds():
    position = planned().with_rows(1, "one", PostgresOffset(150))
    position = position.with_rows(1, "two", PostgresOffset(250))
    before = position.with_log(PostgresOffset(149))
    assert [each.seen for each in before.read] == ["one", "two"]
    between = before.with_log(PostgresOffset(150))
    assert [each.seen for each in between.read] == [None, "two"]
    after = between.with_log(PostgresOffset(250))
    assert [(each.right, each.seen) for each in after.read] == [(("d",), None)]
    assert not after.following
    done = after.with_rows(2, "three", PostgresOffset(300))
    assert not done.following
    assert done.with_log(PostgresOffset(300)).following


def test_rows_of_unknown_moments_need_no_minding():
    position = planned().with_rows(3, None, None)
    assert [each.right for each in position.read] == [("f",)]
    assert position.with_rows(1, None, None).following


@pytest.mark.parametrize(
    "offset",
    [{}, {"v": 1}, {"v": 2, "table": "t"}, {"v": 1, "table": "t", "begin": "noon"},
     {**planned().to_offset(), "log": {"v": 1, "db": "oracle"}}, {"table": 7, "epoch": 1}],
)  # fmt: skip
def test_a_checkpoint_of_something_else_is_refused(offset):
    with pytest.raises(UserError, match="checkpoint"):
        Position.from_offset(offset)


def test_options_are_divided_and_checked():
    own, other = divided("f", {"Table.Name": "t", "hostname": "h", "columns": "a, b"}, ["hostname"])
    assert other == {"hostname": "h"}
    options = ReadOptions.parse(own)
    assert (options.table, options.columns) == ("t", ("a", "b"))
    for wrong, said in (
        ({"hostnam": "h"}, "Did you mean hostname"), ({"path": "x"}, "takes no path"),
    ):  # fmt: skip
        with pytest.raises(ConfigError) as caught:
            divided("f", wrong, ["hostname"])
        assert said in str(caught.value)
    for wrong in (
        {}, {"table.name": " "}, {"table.name": "t", "columns": "a,a"},
        {"table.name": "t", "rows_per_split": "-1"}, {"table.name": "t", "since": "noon"},
        {"table.name": "t", "consistent": "perhaps"},
    ):  # fmt: skip
        with pytest.raises(ConfigError):
            ReadOptions.parse(wrong)
    with pytest.raises(ConfigError, match="needs the option since"):
        _ = ReadOptions.parse({"table.name": "t"}).begin
    with pytest.raises(ConfigError, match="has no option since"):
        ReadOptions.parse({"table.name": "t", "since": "latest"}).require_batch(())


def test_no_engine_is_loaded():
    program = (
        "import sys\n"
        "import headwater.spark_source.register\n"
        "import headwater.spark_source.external.held_snapshot\n"
        "rooms = ('runtime', 'session', 'barrier', 'views', 'sql')\n"
        "print([name for name in sys.modules if name.startswith(\n"
        "    tuple(f'headwater.{room}' for room in rooms))])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert done.stdout.strip() == "[]", done.stderr[-500:]

"""Included columns: their values, their memory, and the log's own words for a commit."""

import datetime
import pickle

import numpy as np
import pyarrow as pa
import pytest

from headwater.backfill.cdc.followed_columns import own_columns
from headwater.cdc.external_table import (
    COMMITTED_AT,
    UNCHANGED,
    ExternalColumn,
    ExternalSchema,
    Origin,
)
from headwater.cdc.included import SNAPSHOT_TIME, included
from headwater.cdc.mysql.commit_times import commit_times
from headwater.cdc.mysql.events import GTID, XID, Events
from headwater.cdc.schema_change import Follower, NotPossible, SchemaChange, SchemaPolicy, decide
from headwater.errors import NotSupported
from headwater.model.reserved import CHANGE_TYPE, SEQ
from headwater.model.schema import Column, Schema
from headwater.model.types import BIGINT, TIMESTAMPTZ, VARCHAR

ORIGIN = Origin(connector="postgres-cdc", database="shop", schema="public", table="t")
ALL = [("timestamp", "ts"), ("database_name", "d"), ("schema_name", "s"), ("table_name", "n")]


def test_snapshot_rows_share_the_memory_of_their_constants():
    rows = pa.table({"id": np.arange(1_000_000)})
    got = included(ALL, ORIGIN).in_snapshot(rows)
    assert got.column_names == ["id", "ts", "d", "s", "n"]
    assert got["ts"].unique().to_pylist() == [SNAPSHOT_TIME]
    assert [got[name].unique().to_pylist() for name in "dsn"] == [["shop"], ["public"], ["t"]]
    places = {chunk.buffers()[-1].address for chunk in got["s"].chunks if len(chunk)}
    assert len(places) == 1


@pytest.mark.parametrize("count", [0, 1, (1 << 16) - 1, 1 << 16, (1 << 16) + 1])
def test_there_are_as_many_values_as_rows(count):
    got = included(ALL, ORIGIN).in_snapshot(pa.table({"id": np.arange(count)}))
    assert got.num_rows == count
    assert got["n"].null_count == 0


def test_changes_have_the_time_of_their_commit():
    at = datetime.datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=datetime.UTC)
    times = pa.chunked_array([pa.array([at], pa.timestamp("us", tz="UTC"))])
    columns = pickle.loads(pickle.dumps(included(ALL, ORIGIN)))
    assert columns.in_log(pa.table({"id": [1]}), times)["ts"].to_pylist() == [at]


def test_a_kind_that_nobody_knows_is_refused():
    with pytest.raises(NotSupported, match="INCLUDE PARTITION"):
        included([("partition", "p")], ORIGIN)


def _external(*names):
    columns = tuple(
        ExternalColumn(column=Column(name, BIGINT), upstream_type="bigint", number=place)
        for place, name in enumerate(names)
    )
    return ExternalSchema(columns=columns, key=("id",))


def _follower(**more):
    columns = (Column("id", BIGINT), Column("a", BIGINT), Column("ts", TIMESTAMPTZ))
    return Follower(schema=Schema(columns, ("id",)), included=frozenset({"ts"}), **more)


def test_columns_change_around_an_included_one():
    before, after = _external("id", "a"), _external("id", "renamed", "new")
    change = decide(_follower(), before, after)
    assert isinstance(change, SchemaChange)
    assert change.schema.names == ("id", "renamed", "ts", "new")
    assert ("ts", "ts") in change.kept


@pytest.mark.parametrize("after", [_external("id", "a", "TS"), _external("id", "ts")])
def test_a_column_that_takes_an_included_name_cannot_be_followed(after):
    assert isinstance(decide(_follower(), _external("id", "a"), after), NotPossible)


def test_one_that_is_not_followed_may_have_the_name():
    after = _external("id", "a", "ts")
    for more in ({"named": True}, {"policy": SchemaPolicy.IGNORE}):
        change = decide(_follower(**more), _external("id", "a"), after)
        assert isinstance(change, SchemaChange)
        assert not change.text


def test_marks_of_values_not_sent_do_not_count_what_is_added():
    schema = Schema(
        (Column("id", BIGINT), Column("ts", TIMESTAMPTZ), Column("b", VARCHAR)), ("id",)
    )
    changes = pa.table({
        "id": [1], "ts": ["theirs"], "b": ["x"], CHANGE_TYPE: ["insert"], SEQ: [0],
        UNCHANGED: np.array([0b110]), COMMITTED_AT: [0],
    })  # fmt: skip
    own = own_columns(changes, schema, included=frozenset({"ts"}))
    assert own.column_names == ["id", "b", CHANGE_TYPE, SEQ, UNCHANGED]
    assert own[UNCHANGED].to_pylist() == [0b100]


def _events(*described):
    """Events as (type, header's seconds, body)."""
    data, rows, ends, at = b"", [], [], 0
    for kind, seconds, body in described:
        rows.append([kind, at, at + len(body), 0, seconds, 0, 0])
        ends.append(1 if kind == XID else 0)
        data, at = data + body, at + len(body)
    table = np.array(rows, dtype=np.int64)
    empty = np.zeros(len(rows), dtype=np.int64)
    return Events(np.frombuffer(data, np.uint8), table, np.array(ends), empty)


def _gtid(micros, *, another=False):
    head = b"\0" + bytes(16) + (5).to_bytes(8, "little") + b"\2" + bytes(16)
    flag = 1 << 55 if another else 0
    return head + (micros | flag).to_bytes(7, "little") + bytes(8)


def test_mysql_tells_microseconds_and_others_seconds():
    old = b"\0" + bytes(16) + bytes(8) + b"\2" + bytes(16)
    events = _events(
        (GTID, 100, _gtid(1_700_000_000_123_456)), (XID, 100, bytes(8)),
        (GTID, 100, _gtid(1_700_000_001_654_321, another=True)), (XID, 100, bytes(8)),
        (GTID, 100, old), (XID, 77, bytes(8)),
        (XID, 78, bytes(8)),
        (GTID, 100, _gtid(0)), (XID, 79, bytes(8)),
    )  # fmt: skip
    ends = np.flatnonzero(events.ends)
    assert commit_times(events, ends).tolist() == [
        1_700_000_000_123_456, 1_700_000_001_654_321, 77_000_000, 78_000_000, 79_000_000
    ]  # fmt: skip

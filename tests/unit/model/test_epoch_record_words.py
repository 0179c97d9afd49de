"""Records: shares of an epoch put together, table commits, and the way to JSON and back."""

import pickle

import pytest
from pydantic import TypeAdapter

from headwater.errors import BrokenInvariant
from headwater.model.epoch import Epoch
from headwater.model.ids import TableId, Term
from headwater.model.record import EpochRecord, StagedWork, merge_work
from headwater.model.schema import Column, Schema
from headwater.model.table_commit import ChangeFile, DataFile, DeletionVector, TableCommit
from headwater.model.types import BIGINT, VARCHAR, DataType, Kind, decimal, list_of

SCHEMA = Schema(
    (
        Column("id", BIGINT, nullable=False),
        Column("sum", decimal(38, 9)),
        Column("tags", list_of(VARCHAR)),
        Column("at", DataType(Kind.STRUCT, fields=(("x", BIGINT), ("y", list_of(BIGINT))))),
    ),
    key=("id",),
)


def data_file(path: str) -> DataFile:
    return DataFile(path=path, bytes=10, rows=2, first_vnode=0, last_vnode=255)


def commit(table: int, **parts) -> TableCommit:
    return TableCommit(table=TableId(table), version=3, **parts)


FULL_COMMIT = commit(
    1,
    added=(data_file("new.parquet"), data_file("folded.parquet")),
    dead=(("old.parquet", DeletionVector(path="d.bin", offset=1, bytes=34, cardinality=2)),),
    changes=(ChangeFile(path="_change_data/c.parquet", bytes=5, rows=4),),
    folded=("a.parquet", "b.parquet"),
    rewritten=("folded.parquet",),
    schema=SCHEMA,
)
FULL_RECORD = EpochRecord(
    epoch=Epoch((1 << 63) + 5),
    after=Epoch(7),
    term=Term(2),
    sealed=(Epoch(8), Epoch(9)),
    tables=(FULL_COMMIT, commit(2)),
    positions={"shop": "0/16B3748"},
    progress={"job 1": '{"rows": 5}'},
    log_ends={"sink": "9"},
    sinks={"sink": "delivered"},
    horizons={1: Epoch(3)},
)


@pytest.mark.parametrize(
    "record", [FULL_RECORD, EpochRecord(epoch=Epoch(2), after=Epoch(1), term=Term(1))]
)
def test_records_survive_json(record):
    adapter = TypeAdapter(EpochRecord)
    again = adapter.validate_json(adapter.dump_json(record))
    assert again == record
    assert type(again.tables) is tuple
    assert all(isinstance(table, int) for table in again.horizons)


def test_records_survive_pickle():
    assert pickle.loads(pickle.dumps(FULL_RECORD)) == FULL_RECORD


def test_a_stored_schema_that_breaks_the_rules_is_not_accepted():
    text = TypeAdapter(EpochRecord).dump_json(FULL_RECORD).replace(b'"key":["id"]', b'"key":["no"]')
    with pytest.raises(Exception, match='key column "no" does not exist'):
        TypeAdapter(EpochRecord).validate_json(text)


def test_shares_are_put_together():
    merged = merge_work(
        [
            StagedWork(tables=(commit(1),), positions={"a": "1"}, progress={"j": "1"}),
            StagedWork(tables=(commit(2),), positions={"b": "2"}, sinks={"s": "x"}),
            StagedWork(log_ends={"l": "9"}),
        ]
    )
    assert [table.table for table in merged.tables] == [1, 2]
    assert merged.positions == {"a": "1", "b": "2"}
    assert (merged.progress, merged.log_ends, merged.sinks) == ({"j": "1"}, {"l": "9"}, {"s": "x"})
    assert merge_work([]) == StagedWork()


@pytest.mark.parametrize("name", ["positions", "progress", "log_ends", "sinks"])
def test_two_actors_may_not_speak_about_the_same_fact(name):
    works = [StagedWork(**{name: {"a": "1", "b": "1"}}), StagedWork(**{name: {"b": "1"}})]
    with pytest.raises(BrokenInvariant, match=f"two actors staged {name} of b"):
        merge_work(works)


def test_two_actors_may_not_stage_the_same_table():
    works = [StagedWork(tables=(commit(7),)), StagedWork(tables=(commit(7),))]
    with pytest.raises(BrokenInvariant, match="two actors staged the same table"):
        merge_work(works)


def test_merging_leaves_the_shares_alone():
    share = StagedWork(positions={"a": "1"})
    merge_work([share, StagedWork(positions={"b": "2"})])
    assert share.positions == {"a": "1"}


def test_an_empty_commit_publishes_nothing():
    assert commit(1).empty


@pytest.mark.parametrize("part", ["added", "dead", "changes", "folded", "schema"])
def test_a_commit_with_any_part_is_not_empty(part):
    assert not commit(1, **{part: getattr(FULL_COMMIT, part)}).empty


def test_inserted_files_are_those_not_rewritten():
    assert [file.path for file in FULL_COMMIT.inserted] == ["new.parquet"]
    assert commit(1, added=(data_file("x"),)).inserted == (data_file("x"),)

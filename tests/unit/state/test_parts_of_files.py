"""Parts of files: the rows between two places, whatever row groups and dead rows there are."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from headwater.errors import DamagedState
from headwater.model.table_commit import DataFile
from headwater.state.dead_rows import DeadRows
from headwater.state.deletion_vector import pack
from headwater.state.manifest import LiveFile
from headwater.state.parquet_file import row_group_starts
from headwater.state.read import read_alive
from headwater.state.row_cache import read_rows
from headwater.state.storage import open_storage

ROWS = 50
WANTED = pa.schema([("b", pa.string()), ("a", pa.int64()), ("new", pa.int32())])


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    table = pa.table({"a": pa.array(range(ROWS), pa.int32()), "b": [f"r{n}" for n in range(ROWS)]})
    for size in (1, 7, 25, 50, 80):
        pq.write_table(table, folder / f"{size}.parquet", row_group_size=size)
    return folder


@pytest.mark.parametrize(
    ("size", "starts"), [(25, (0, 25)), (7, tuple(range(0, 50, 7))), (80, (0,))]
)
def test_a_file_can_be_cut_where_its_row_groups_begin(folder, size, starts):
    assert row_group_starts(folder / f"{size}.parquet") == starts


@given(
    size=st.sampled_from([1, 7, 25, 50, 80]),
    between=st.tuples(st.integers(0, ROWS), st.integers(0, ROWS)).map(sorted),
    dead=st.sets(st.integers(0, ROWS - 1)),
)
def test_any_part_has_just_its_rows_that_are_alive(folder, size, between, dead):
    start, stop = between
    storage = open_storage(str(folder), fsync=False)
    content, vectors = pack("dead.bin", {"f": BitMap(dead)} if dead else {})
    if dead:
        storage.put("dead.bin", content)
    file = DataFile(path=f"{size}.parquet", bytes=1, rows=ROWS, first_vnode=0, last_vnode=255)
    live = LiveFile(file, vectors.get("f"), (start, stop))
    found = read_alive(storage, live, WANTED, DeadRows(storage))
    wanted = [n for n in range(start, stop) if n not in dead]
    assert found.schema == WANTED
    assert found.column("a").to_pylist() == wanted
    assert found.column("b").to_pylist() == [f"r{n}" for n in wanted]
    assert found.column("new").null_count == len(wanted)


def test_a_part_of_a_file_that_is_gone_says_so(folder):
    storage = open_storage(str(folder), fsync=False)
    with pytest.raises(DamagedState, match="missing"):
        read_rows(storage, "gone.parquet", WANTED, only=(0, 3))


def test_only_the_row_groups_of_a_part_are_read(folder, monkeypatch):
    seen = []
    read = pq.ParquetFile.read_row_groups

    def told(self, groups, **others):
        seen.append(list(groups))
        return read(self, groups, **others)

    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", told)
    storage = open_storage(str(folder), fsync=False)
    rows = read_rows(storage, "7.parquet", WANTED, only=(14, 28))
    assert np.array_equal(rows.column("a").to_numpy(), np.arange(14, 28))
    assert seen == [[2, 3]]

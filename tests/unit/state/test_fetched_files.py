"""Files of an object store are fetched once by a machine, however many read them."""

import multiprocessing
import os
import time
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwater.errors import DamagedState
from headwater.state.fetched_files import FetchedFiles
from headwater.state.row_cache import read_rows
from headwater.state.storage import LocalStorage

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])


class FarStorage(LocalStorage):
    """Files that cannot be opened in place, and notes who fetches them."""

    def __init__(self, root, pause=0.0):
        super().__init__(root, fsync=False)
        self.pause = pause

    @property
    def local_root(self):
        return None

    def get(self, path):
        with (self._root / "fetches").open("a") as file:
            file.write(f"{path}\n")
        time.sleep(self.pause)
        return super().get(path)

    @property
    def fetches(self):
        try:
            return (self._root / "fetches").read_text().split()
        except FileNotFoundError:
            return []


def rows_of(number, count=100):
    return pa.table({"id": list(range(count)), "text": [f"{number} {n}" for n in range(count)]})


def put(storage, number, count=100):
    path = f"part-{number}.parquet"
    pq.write_table(rows_of(number, count), storage._root / path)
    return path


@pytest.fixture
def far(tmp_path):
    (tmp_path / "store").mkdir()
    return FarStorage(tmp_path / "store")


@pytest.fixture
def fetched(tmp_path):
    return FetchedFiles(tmp_path / "fetched", 1 << 20)


def read(storage, path, fetched):
    return read_rows(storage, path, SCHEMA, fetched)


def test_the_second_reader_finds_what_the_first_has_fetched(far, fetched):
    paths = [put(far, number) for number in range(3)]
    for _ in range(3):
        for number, path in enumerate(paths):
            assert read(far, path, fetched).to_pylist() == rows_of(number).to_pylist()
    assert far.fetches == paths


def test_readers_at_the_same_time_fetch_a_file_once(far, fetched):
    far.pause = 0.2
    path = put(far, 1)
    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(lambda _: read(far, path, fetched), range(6)))
    assert all(each.equals(found[0]) for each in found)
    assert far.fetches == [path]


def _reads(storage, path, fetched):
    read(storage, path, fetched)


def test_so_do_those_of_other_processes(far, fetched):
    far.pause = 0.3
    path = put(far, 1)
    spawned = multiprocessing.get_context("spawn")
    readers = [spawned.Process(target=_reads, args=(far, path, fetched)) for _ in range(3)]
    for each in readers:
        each.start()
    for each in readers:
        each.join(200)
    assert [each.exitcode for each in readers] == [0, 0, 0]
    assert far.fetches == [path]


def test_copies_stay_within_their_limit_and_the_longest_unused_goes(far, fetched, tmp_path):
    paths = [put(far, number) for number in range(4)]
    size = (far._root / paths[0]).stat().st_size
    fetched = FetchedFiles(tmp_path / "fetched", 2 * size + size // 2)
    for path in (paths[0], paths[1], paths[0], paths[2], paths[0]):
        time.sleep(0.05)
        read(far, path, fetched)
        assert fetched.size <= fetched.limit
    assert far.fetches == [paths[0], paths[1], paths[2]]
    read(far, paths[1], fetched)
    assert far.fetches[3:] == [paths[1]]


@pytest.mark.parametrize("limit", [0, 10])
def test_a_file_that_has_no_room_is_read_all_the_same(far, tmp_path, limit):
    path = put(far, 1)
    fetched = FetchedFiles(tmp_path / "fetched", limit)
    for _ in range(2):
        assert read(far, path, fetched).num_rows == 100
    assert far.fetches == [path, path]
    assert fetched.size == 0


def test_a_copy_that_is_cut_short_is_fetched_again(far, fetched):
    path = put(far, 1, count=1000)
    read(far, path, fetched)
    (copy,) = fetched.folder.glob("*.parquet")
    copy.write_bytes(copy.read_bytes()[:500])
    assert read(far, path, fetched).to_pylist() == rows_of(1, 1000).to_pylist()
    assert read(far, path, fetched).num_rows == 1000


def test_a_file_that_is_damaged_in_the_store_is_told(far, fetched):
    path = put(far, 1, count=1000)
    (far._root / path).write_bytes((far._root / path).read_bytes()[:500])
    with pytest.raises(DamagedState, match="corrupt"):
        read(far, path, fetched)


def test_a_file_that_is_missing_in_the_store_is_told(far, fetched):
    with pytest.raises(DamagedState, match="missing"):
        read(far, "nothing.parquet", fetched)


def test_a_machine_whose_disk_takes_nothing_reads_from_the_store(far, tmp_path):
    (tmp_path / "fetched").write_text("not a folder")
    path = put(far, 1)
    fetched = FetchedFiles(tmp_path / "fetched", 1 << 20)
    assert read(far, path, fetched).num_rows == 100


def test_files_of_the_same_name_in_other_stores_are_kept_apart(tmp_path, fetched):
    stores = []
    for number in range(2):
        (tmp_path / f"store{number}").mkdir()
        stores.append(FarStorage(tmp_path / f"store{number}"))
        pq.write_table(rows_of(number), stores[-1]._root / "part.parquet")
    for _ in range(2):
        for number, store in enumerate(stores):
            assert read(store, "part.parquet", fetched).to_pylist() == rows_of(number).to_pylist()


def test_what_a_killed_reader_left_is_removed_some_time(far, fetched):
    fetched.folder.mkdir()
    old, new = fetched.folder / "old.1.tmp", fetched.folder / "new.2.tmp"
    for each in (old, new):
        each.write_bytes(b"half")
    os.utime(old, (0, 0))
    read(far, put(far, 1), fetched)
    assert not old.exists()
    assert new.exists()

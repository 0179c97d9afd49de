"""What every storage must do, whatever it is made of."""

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest


class StorageContract:
    """Inherit and give the fixture `storage`, an empty one."""

    def test_a_file_comes_back(self, storage):
        for data in (b"", b"x", bytes(range(256)) * 9):
            storage.put("a/b/file.bin", data)
            assert storage.get("a/b/file.bin") == data

    def test_a_file_is_moved_in_and_copied_out(self, storage, tmp_path):
        for size in (0, 5, 3 << 20):
            source = tmp_path / "source"
            source.write_bytes(b"7" * size)
            storage.put_file("deep/er/file", source)
            assert not source.exists()
            storage.get_file("deep/er/file", tmp_path / "copy")
            assert (tmp_path / "copy").read_bytes() == b"7" * size

    def test_a_missing_file_is_said_to_be_missing(self, storage, tmp_path):
        storage.put("there", b"1")
        for path in ("missing", "no/folder/either"):
            with pytest.raises(FileNotFoundError):
                storage.get(path)
            with pytest.raises(FileNotFoundError):
                storage.get_file(path, tmp_path / "copy")

    def test_deleting_twice_is_deleting_once(self, storage):
        storage.put("folder/file", b"1")
        storage.delete("folder/file")
        storage.delete("folder/file")
        storage.delete("never/was")
        with pytest.raises(FileNotFoundError):
            storage.get("folder/file")

    def test_a_file_gets_another_name(self, storage):
        storage.put("old/file", b"1")
        storage.move("old/file", "new/folder/file")
        assert set(storage.list()) == {"new/folder/file"}
        assert storage.get("new/folder/file") == b"1"
        with pytest.raises(FileNotFoundError):
            storage.move("old/file", "new/folder/file")
        assert storage.get("new/folder/file") == b"1"

    def test_a_taken_name_is_taken(self, storage):
        assert storage.put_if_absent("log/1.json", b"first")
        assert not storage.put_if_absent("log/1.json", b"second")
        assert not storage.put_if_absent("log/1.json", b"first")
        assert storage.get("log/1.json") == b"first"
        assert list(storage.list("log")) == ["log/1.json"]

    def test_of_many_writers_of_one_name_exactly_one_wins(self, storage):
        writers = 8
        for number in range(5):
            together = threading.Barrier(writers)

            def write(who, together=together, number=number):
                together.wait()
                return storage.put_if_absent(f"log/{number}", b"%d" % who * 1000)

            with ThreadPoolExecutor(writers) as pool:
                won = list(pool.map(write, range(writers)))
            assert won.count(True) == 1
            assert storage.get(f"log/{number}") == b"%d" % won.index(True) * 1000

    def test_listing_goes_by_folder(self, storage):
        paths = {"a", "ab/c", "ab/d/e", "b/c", "abc/d"}
        for path in paths:
            storage.put(path, b"1")
        assert set(storage.list()) == paths
        assert set(storage.list("ab")) == {"ab/c", "ab/d/e"}
        assert set(storage.list("b")) == {"b/c"}
        assert set(storage.list("nothing")) == set()

    def test_a_folder_of_it_is_a_storage(self, storage):
        below = storage.below("tables").below("t")
        below.put("x/y", b"1")
        assert below.get("x/y") == b"1"
        assert list(below.list()) == ["x/y"]
        assert list(storage.list("tables")) == ["tables/t/x/y"]
        assert below.url == f"{storage.url}/tables/t"

    def test_it_travels(self, storage):
        storage.put("x", b"1")
        assert pickle.loads(pickle.dumps(storage)).get("x") == b"1"

    def test_a_thousand_files_are_listed(self, storage):
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda n: storage.put(f"many/{n:04d}", b"1"), range(1100)))
        assert sorted(storage.list("many")) == [f"many/{n:04d}" for n in range(1100)]

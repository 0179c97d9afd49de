"""The local folder as storage, and storage in trouble: full, read-only, in the way."""

import os
import subprocess
from pathlib import Path

import pytest

from headwater.errors import ConfigError, StorageUnavailable
from headwater.state.storage import LocalStorage, open_storage
from servers import not_available
from state_kit import SCHEMAS, Dice, Rig, changes_of
from storage_contract import StorageContract


class TestLocalFolder(StorageContract):
    @pytest.fixture(params=[True, False], ids=["fsync", "no fsync"])
    def storage(self, tmp_path, request):
        return open_storage(str(tmp_path / "root"), fsync=request.param)


@pytest.mark.parametrize("name", ["a b", "a#b", "a?b", "a%20b", "a[b]", "ä", "{a,b}", "a*"])
def test_any_folder_name_is_taken_as_it_is(tmp_path, name):
    storage = open_storage(str(tmp_path / name))
    storage.put("x", b"1")
    assert (tmp_path / name / "x").read_bytes() == b"1"
    assert Path(storage.url) == tmp_path / name


def test_a_file_address_is_decoded(tmp_path):
    open_storage(f"{tmp_path.as_uri()}/a%20b%23").put("x", b"1")
    assert (tmp_path / "a b#" / "x").exists()


def test_a_relative_folder_is_below_the_current_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert open_storage("some/where").url == str(tmp_path / "some" / "where")


def test_unknown_kinds_are_refused():
    with pytest.raises(ConfigError, match='storage of kind "gs"'):
        open_storage("gs://bucket/x")


def test_nothing_is_left_beside_a_taken_name(tmp_path):
    storage = LocalStorage(tmp_path)
    storage.put_if_absent("x", b"1")
    storage.put_if_absent("x", b"2")
    assert os.listdir(tmp_path) == ["x"]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if mounted.returncode:
        not_available(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def remount(folder: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(folder)], check=True)


def test_a_full_disk_is_said_to_be_full_and_leaves_nothing(small_disk):
    storage = open_storage(str(small_disk))
    storage.put("first", b"1")
    for write in (storage.put, storage.put_if_absent):
        with pytest.raises(StorageUnavailable, match="No space left") as caught:
            write("large", b"x" * (2 << 20))
        assert "Free some space" in caught.value.hint
        assert set(storage.list()) == {"first"}
    storage.put("second", b"1")


def test_a_read_only_disk_is_said_to_be_read_only(small_disk):
    storage = open_storage(str(small_disk))
    storage.put("first", b"1")
    remount(small_disk, "ro")
    try:
        for deed in (
            lambda: storage.put("x", b"1"),
            lambda: storage.put_if_absent("x", b"1"),
            lambda: storage.delete("first"),
        ):
            with pytest.raises(StorageUnavailable, match="Read-only"):
                deed()
        assert storage.get("first") == b"1"
    finally:
        remount(small_disk, "rw")


@pytest.mark.parametrize("rows", [3, 30_000], ids=["full at the start", "full on the way"])
def test_a_table_on_a_full_disk_waits_and_goes_on(small_disk, rows):
    rig = Rig(small_disk / "w", SCHEMAS["int"])
    rig.put(("insert", {"id": 1, "name": "a"}))
    before = rig.files()
    if rows == 3:
        with (small_disk / "ballast").open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"x" * 4096)
            except OSError:
                pass
    changes = changes_of(
        (("insert", {"id": n, "name": os.urandom(60).hex()}) for n in range(rows)), SCHEMAS["int"]
    )
    with pytest.raises(StorageUnavailable, match="No space left"):
        rig.table.stage(rig.last + 1, changes)
    assert rig.files() == before
    rig.check(every=True)
    (small_disk / "ballast").unlink(missing_ok=True)
    rig.stage(Dice("disk", SCHEMAS["int"]).changes())
    rig.commit()
    rig.check(every=True)


def test_a_table_on_a_read_only_disk_waits_and_goes_on(small_disk):
    rig = Rig(small_disk / "w", SCHEMAS["int"])
    rig.put(("insert", {"id": 1, "name": "a"}))
    remount(small_disk, "ro")
    changes = changes_of([("insert", {"id": 2})], SCHEMAS["int"])
    with pytest.raises(StorageUnavailable, match="Read-only"):
        rig.table.stage(rig.last + 1, changes)
    rig.check(every=True)
    remount(small_disk, "rw")
    rig.put(("insert", {"id": 2}))
    rig.check(every=True)


def test_a_file_in_the_way_is_told(tmp_path):
    (tmp_path / "root").write_bytes(b"")
    with pytest.raises(StorageUnavailable):
        open_storage(str(tmp_path / "root" / "below"))
    storage = LocalStorage(tmp_path)
    for write in (storage.put, storage.put_if_absent):
        with pytest.raises(StorageUnavailable):
            write("root/x", b"1")

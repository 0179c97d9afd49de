"""The lookup cache: bounded, disposable, shared, and never wrong."""

import multiprocessing
import os
import pickle
from pathlib import Path

import pyarrow as pa
import pytest

from headwater.state import row_cache
from headwater.state.row_cache import RowCache
from headwater.testing.oracle import assert_same_rows
from state_kit import SCHEMAS, Dice, Rig, look_up, wander

SCHEMA = SCHEMAS["text"]
ROWS = 400


@pytest.fixture
def small(monkeypatch):
    """Nothing stays in memory, so that every file goes through the folder."""
    monkeypatch.setattr(row_cache, "_SMALL_BYTES", 0)
    monkeypatch.setattr(row_cache, "_OPEN_FILES", 2)
    monkeypatch.setattr(row_cache, "_BATCH_ROWS", 64)


def filled(tmp_path, cache, files: int = 12) -> Rig:
    rig = Rig(tmp_path / "w", SCHEMA, cache=cache)
    for number in range(files):
        rig.put(*(("insert", {"k": f"key {number} {n}", "v": n}) for n in range(ROWS)))
    return rig


def look_up_all(rig: Rig) -> None:
    keys = pa.table({"k": [row["k"] for row in rig.model.values()] + ["nobody", ""]})
    assert_same_rows(rig.table.lookup(keys), rig.model, key=rig.key)


def test_the_folder_stays_within_its_limit(tmp_path, small):
    cache = RowCache(tmp_path / "cache", 40_000)
    rig = filled(tmp_path, cache)
    for _ in range(3):
        look_up_all(rig)
        size = sum(f.stat().st_size for f in (tmp_path / "cache").iterdir())
        assert 0 < size <= 40_000
        assert cache.bytes == size
    assert cache.misses > 12


def test_a_file_larger_than_the_limit_is_searched_without_being_kept(tmp_path, small):
    cache = RowCache(tmp_path / "cache", 100)
    rig = filled(tmp_path, cache, 3)
    look_up_all(rig)
    assert not (tmp_path / "cache").exists() or not os.listdir(tmp_path / "cache")


def test_the_longest_unused_goes_first(tmp_path, small):
    cache = RowCache(tmp_path / "cache", 1 << 30)
    rig = filled(tmp_path, cache, 4)
    look_up_all(rig)
    entries = sorted((tmp_path / "cache").glob("*.arrow"))
    for age, entry in enumerate(entries):
        os.utime(entry, (10**9 - age, 10**9 - age))
    one = cache.bytes // 4
    cache._limit = cache.bytes
    cache._make_room(one)
    assert sorted((tmp_path / "cache").glob("*.arrow")) == entries[:3]
    look_up_all(rig)


def test_what_killed_writers_leave_goes_too(tmp_path, small):
    """Files that never got their name, and rows whose index never came."""
    folder = tmp_path / "cache"
    cache = RowCache(folder, 1 << 30)
    rig = filled(tmp_path, cache, 4)
    look_up_all(rig)
    lone, left, fresh = folder / "lone.arrow", folder / "a.arrow.1.tmp", folder / "b.index.2.tmp"
    for place in (lone, left, fresh):
        place.write_bytes(bytes(1000))
    for old in (lone, left):
        os.utime(old, (10**9, 10**9))
    cache._limit = cache.bytes
    cache._make_room(500)
    assert not left.exists()
    assert not lone.exists()
    assert fresh.exists(), "somebody may be writing it"
    look_up_all(rig)


def test_a_hot_file_outlives_a_cold_one(tmp_path, small, monkeypatch):
    monkeypatch.setattr(row_cache, "_OPEN_FILES", 100)
    cache = RowCache(tmp_path / "cache", 1 << 30)
    rig = filled(tmp_path, cache, 4)
    look_up_all(rig)
    paths = [live.file.path for live in rig.table.view().files]
    for entry in (tmp_path / "cache").glob("*.arrow"):
        os.utime(entry, (10**9, 10**9))
    cache.open(rig.table.storage, paths[0], SCHEMA, 10**9)
    cache._limit = cache.bytes
    cache._make_room(cache.bytes // 2)
    left = {entry.name.split(".")[0] for entry in (tmp_path / "cache").glob("*.arrow")}
    assert paths[0].removesuffix(".parquet") in left


def test_small_files_stay_in_memory_within_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(row_cache, "_MEMORY_BYTES", 60_000)
    cache = RowCache(tmp_path / "cache", 1 << 30)
    rig = filled(tmp_path, cache)
    look_up_all(rig)
    assert len(cache._memory) < 12
    assert sum(size for size, _ in cache._memory.values()) <= 60_000
    assert not (tmp_path / "cache").exists()


HARM = {
    "empty": lambda content: b"",
    "half": lambda content: content[: len(content) // 2],
    "without its end": lambda content: content[:-1],
    "longer": lambda content: content + b"\x00" * 16,
    "zeros": lambda content: bytes(len(content)),
    "garbage": lambda content: bytes((b * 7 + 3) % 256 for b in content),
    "another end": lambda content: content[:-64] + bytes(64),
}


@pytest.mark.parametrize("suffix", [".arrow", ".index"])
@pytest.mark.parametrize("harm", HARM)
def test_a_damaged_entry_is_built_again(tmp_path, small, suffix, harm):
    rig = filled(tmp_path, RowCache(tmp_path / "cache", 1 << 30), 2)
    look_up_all(rig)
    entries = list((tmp_path / "cache").glob(f"*{suffix}"))
    assert len(entries) == 2
    for entry in entries:
        entry.write_bytes(HARM[harm](entry.read_bytes()))
    rig.cache = RowCache(tmp_path / "cache", 1 << 30)
    rig.restart()
    look_up_all(rig)
    rig.put(*(("delete", {"k": f"key 0 {n}"}) for n in range(0, ROWS, 2)))
    rig.check(every=True)


def test_entries_of_different_files_never_mix(tmp_path, small):
    """Two entries swapped on disk are as damaged as any."""
    rig = filled(tmp_path, RowCache(tmp_path / "cache", 1 << 30), 2)
    look_up_all(rig)
    one, two = sorted((tmp_path / "cache").glob("*.index"))
    content = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(content)
    rig.cache = RowCache(tmp_path / "cache", 1 << 30)
    rig.restart()
    look_up_all(rig)


def test_the_folder_may_vanish_at_any_time(tmp_path, small):
    cache = RowCache(tmp_path / "cache", 1 << 30)
    rig = filled(tmp_path, cache, 3)
    for _ in range(3):
        look_up_all(rig)
        for entry in (tmp_path / "cache").iterdir():
            entry.unlink()
    (tmp_path / "cache").rmdir()
    (tmp_path / "cache").write_bytes(b"in the way")
    look_up_all(rig)
    rig.cache = RowCache(tmp_path / "cache", 1 << 30)
    rig.restart()
    look_up_all(rig)


def test_a_history_is_right_with_a_tiny_cache(tmp_path, small, monkeypatch):
    monkeypatch.setattr(row_cache, "_MEMORY_BYTES", 1)
    for name in ("int", "everything"):
        cache = RowCache(tmp_path / "cache", 30_000)
        rig, dice = Rig(tmp_path / name, SCHEMAS[name], cache=cache), Dice("tiny", SCHEMAS[name])
        wander(rig, dice, 40)
        look_up(rig, dice)


def _look_up_in_another_process(rig_bytes: bytes, start: object, answers: object) -> None:
    row_cache._SMALL_BYTES = 0
    storage, cache, schema, paths = pickle.loads(rig_bytes)
    start.wait()
    try:
        for path in paths * 3:
            cached = cache.open(storage, path, schema, 10**9)
            assert cached.hashes.size == ROWS
            assert len(set(cached.positions.tolist())) == ROWS
            cache._open.clear()
        answers.put("right")
    except BaseException as error:
        answers.put(repr(error))


def test_two_processes_may_build_the_same_entries_at_once(tmp_path, small):
    rig = filled(tmp_path, RowCache(tmp_path / "cache", 60_000), 6)
    paths = [live.file.path for live in rig.table.view().files]
    sent = pickle.dumps((rig.table.storage, rig.cache, SCHEMA, paths))
    context = multiprocessing.get_context("fork")
    start, answers = context.Barrier(3), context.Queue()
    others = [
        context.Process(target=_look_up_in_another_process, args=(sent, start, answers))
        for _ in range(2)
    ]
    for other in others:
        other.start()
    start.wait()
    look_up_all(rig)
    assert [answers.get(timeout=90) for _ in others] == ["right", "right"]
    for other in others:
        other.join()
    look_up_all(rig)
    left = {Path(name).suffix for name in os.listdir(tmp_path / "cache")}
    assert left == {".arrow", ".index"}


def test_another_schema_is_another_entry(tmp_path):
    rig, dice = Rig(tmp_path / "w", SCHEMAS["int"]), Dice("schema", SCHEMAS["int"])
    rig.stage(dice.changes(60))
    rig.commit()
    for _ in range(6):
        look_up(rig, dice)
        schema = dice.other_schema()
        rig.stage(dice.changes(), schema)
        rig.commit()
    look_up(rig, dice)
    rig.check(every=True)

"""Missing and corrupt files of committed epochs: an error that names the file, never fewer rows."""

import random

import pyarrow as pa
import pytest

from headwater.errors import DamagedState
from headwater.state.row_cache import RowCache
from headwater.testing.oracle import assert_same_rows
from state_kit import SCHEMAS, Rig, plain


@pytest.fixture
def rig(tmp_path):
    """A table with a data file, a second one, dead rows, and changes."""
    rig = Rig(tmp_path / "w", SCHEMAS["int"])
    rig.put(*(("insert", {"id": n, "name": f"name {n}" * 9}) for n in range(300)))
    rig.put(*(("delete", {"id": n}) for n in range(0, 300, 5)), ("insert", {"id": 999}))
    return rig


def path_of(rig, kind):
    commit = rig.records[-1].tables[0]
    match kind:
        case "data":
            return rig.records[0].tables[0].added[0].path
        case "vector":
            return commit.dead[0][1].path
        case "change":
            return commit.changes[0].path


def fresh(rig):
    """The same table in a process that remembers nothing."""
    rig.cache = RowCache(rig.cache.folder.with_name("other-cache"), 1 << 30)
    rig.restart(store=True)


def read_all(rig):
    first = rig.records[0].epoch
    return plain(rig.table.rows()), rig.table.change_rows(first, rig.committed)


DEEDS = {
    "data": lambda rig: rig.table.rows(),
    "vector": lambda rig: rig.table.rows(),
    "change": lambda rig: rig.table.change_rows(rig.records[0].epoch, rig.committed),
}


@pytest.mark.parametrize("kind", DEEDS)
def test_a_missing_file_is_named(rig, kind):
    path = path_of(rig, kind)
    rig.table.storage.delete(path)
    fresh(rig)
    with pytest.raises(DamagedState) as caught:
        DEEDS[kind](rig)
    assert path in caught.value.detail


@pytest.mark.parametrize("kind", ["data", "vector"])
def test_lookups_and_stages_never_take_a_missing_file_for_no_row(rig, kind):
    path = path_of(rig, kind)
    rig.table.storage.delete(path)
    fresh(rig)
    with pytest.raises(DamagedState, match="missing"):
        rig.table.lookup(pa.table({"id": [1]}))
    with pytest.raises(DamagedState, match="missing"):
        rig.put(("insert", {"id": 1}))


@pytest.mark.parametrize("kind", DEEDS)
@pytest.mark.parametrize("harm", ["empty", "half", "zeros", "garbage"])
def test_a_corrupt_file_is_named(rig, kind, harm):
    path = path_of(rig, kind)
    content = rig.table.storage.get(path)
    harmed = {
        "empty": b"",
        "half": content[: len(content) // 2],
        "zeros": bytes(len(content)),
        "garbage": random.Random(1).randbytes(len(content)),
    }[harm]
    rig.table.storage.put(path, harmed)
    fresh(rig)
    with pytest.raises(DamagedState) as caught:
        DEEDS[kind](rig)
    assert path in caught.value.detail


@pytest.mark.parametrize("kind", DEEDS)
def test_a_flipped_bit_is_found_or_means_nothing(rig, kind):
    path = path_of(rig, kind)
    content = rig.table.storage.get(path)
    # Parquet has checksums for its pages only, so the footer is left out.
    footer = 0 if kind == "vector" else int.from_bytes(content[-8:-4], "little") + 8
    rows, changes = read_all(rig)
    found = 0
    dice = random.Random(7)
    tries = 80
    for _ in range(tries):
        harmed = bytearray(content)
        harmed[dice.randrange(len(content) - footer)] ^= 1 << dice.randrange(8)
        rig.table.storage.put(path, bytes(harmed))
        rig.restart(store=True)
        try:
            seen = read_all(rig)
        except DamagedState:
            found += 1
            continue
        assert_same_rows(seen[0], rows)
        assert_same_rows(seen[1], changes)
    assert found > tries / 3

"""Deletion vectors: what is packed comes back, and damage is never read as fewer dead rows."""

import dataclasses
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from headwater.errors import DamagedState
from headwater.state.deletion_vector import descriptor, file_name, pack, token_of, unpack

NAME = file_name(bytes(range(16)))
positions = st.sets(st.integers(0, 2**32 - 1) | st.integers(0, 300), min_size=1, max_size=60)


@given(st.dictionaries(st.text("abc", min_size=1, max_size=4), positions, min_size=1, max_size=5))
def test_what_is_packed_comes_back(dead):
    content, vectors = pack(NAME, {path: BitMap(places) for path, places in dead.items()})
    assert vectors.keys() == dead.keys()
    for path, places in dead.items():
        assert set(unpack(content, vectors[path])) == places
        assert vectors[path].cardinality == len(places)
        assert vectors[path].path == NAME


def test_a_run_of_all_rows_comes_back():
    content, vectors = pack(NAME, {"f": BitMap(range(70_000))})
    assert unpack(content, vectors["f"]) == BitMap(range(70_000))


def test_any_changed_byte_of_a_vector_is_found():
    content, vectors = pack(NAME, {"a": BitMap([1, 5, 90_000]), "b": BitMap(range(10))})
    for vector in vectors.values():
        for place in range(vector.offset, vector.offset + vector.bytes + 8):
            broken = bytearray(content)
            broken[place] ^= 0x10
            with pytest.raises(DamagedState):
                unpack(bytes(broken), vector)


def test_a_file_cut_short_anywhere_is_found():
    content, vectors = pack(NAME, {"a": BitMap([1, 5, 90_000])})
    for length in range(len(content)):
        with pytest.raises(DamagedState):
            unpack(content[:length], vectors["a"])


def test_a_vector_that_holds_other_rows_than_the_ledger_says_is_found():
    content, vectors = pack(NAME, {"a": BitMap([1, 5])})
    with pytest.raises(DamagedState, match="does not hold what the ledger says"):
        unpack(content, dataclasses.replace(vectors["a"], cardinality=3))


def test_a_vector_in_another_format_is_refused():
    data = struct.pack("<i", 7) + b"whatever"
    content = b"\x01" + struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))
    _, vectors = pack(NAME, {"a": BitMap([1])})
    with pytest.raises(DamagedState):
        unpack(content, dataclasses.replace(vectors["a"], bytes=len(data)))


@given(st.binary(min_size=16, max_size=16))
def test_a_token_comes_back_from_its_name(token):
    assert token_of(file_name(token)) == token


@pytest.mark.parametrize(
    "name",
    [
        "part-1.parquet",
        "deletion_vector_.bin",
        "deletion_vector_notes.bin",
        "deletion_vector_00.bin",
        file_name(bytes(16)).replace("0", "g", 1),
        file_name(bytes(16)) + ".bak",
    ],
)
def test_other_names_have_no_token(name):
    assert token_of(name) is None


def test_the_descriptor_names_the_file_as_delta_does():
    # The example of the Delta protocol: this uuid is written as these 20 letters.
    token = bytes.fromhex("d2c639aa8816431aaaf6d3fe2512ff61")
    _, vectors = pack(file_name(token), {"f": BitMap([3, 4, 7])})
    described = descriptor(vectors["f"])
    assert described["pathOrInlineDv"] == "ab^-aqEH.-t@S}K{vb[*k^"[2:]
    assert described["storageType"] == "u"
    assert described["offset"] == 1
    assert described["cardinality"] == 3

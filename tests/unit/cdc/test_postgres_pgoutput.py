"""pgoutput's messages: kernels against plain Python, on random transactions."""

import struct
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.cdc.external_table import TRANSACTION, UNCHANGED
from headwater.cdc.postgres.cells import Cells
from headwater.cdc.postgres.changes import MessageBatch, OtherFormat, RelationView
from headwater.cdc.postgres.pgoutput import (
    Begin,
    Cell,
    Commit,
    Other,
    Relation,
    RelationColumn,
    Truncate,
    plain_changes,
    read_message,
)
from headwater.cdc.postgres.types import Codec, Wire
from headwater.errors import BrokenInvariant, SchemaError
from headwater.model.types import INTEGER, VARCHAR

NAMES = ("a", "b", "c")
RELATION = Relation(
    16_400, "public", "t", "d", tuple(RelationColumn(name, 25, -1, name == "a") for name in NAMES)
)
OTHER_TABLE = 16_500
NEAR = (5 << 32) + 1000


def cell(value: bytes | Cell, kind: bytes = b"t") -> bytes:
    if isinstance(value, Cell):
        return value.value.encode()
    return kind + struct.pack(">i", len(value)) + value


def row(values, kind: bytes = b"t") -> bytes:
    return struct.pack(">h", len(values)) + b"".join(cell(each, kind) for each in values)


def begin(lsn: int, xid: int) -> bytes:
    return b"B" + struct.pack(">QqI", lsn, 1_000_000, xid)


def commit(lsn: int) -> bytes:
    return b"C" + struct.pack(">bQQq", 0, lsn, lsn + 50, 1_000_000)


def change(kind: bytes, new, old=None, mark: bytes = b"K", oid: int = RELATION.oid) -> bytes:
    head = kind + struct.pack(">I", oid)
    before = b"" if old is None else mark + row(old)
    return head + before + (b"" if new is None else b"N" + row(new))


def relation(described: Relation = RELATION) -> bytes:
    columns = b"".join(
        bytes([each.key]) + each.name.encode() + b"\0" + struct.pack(">Ii", each.oid, each.typmod)
        for each in described.columns
    )
    return (
        b"R"
        + struct.pack(">I", described.oid)
        + f"{described.schema}\0{described.name}\0".encode()
        + described.identity.encode()
        + struct.pack(">h", len(described.columns))
        + columns
    )


def batch(messages: list[bytes], *, binary: bool = False) -> MessageBatch:
    lengths = np.array([len(each) for each in messages], dtype=np.int32)
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)
    data = np.frombuffer(b"".join(messages), dtype=np.uint8)
    return MessageBatch(Cells(data, starts, lengths), binary=binary)


TEXTS = (Wire(VARCHAR, Codec.TEXT),) * 3


def view(key: tuple[str, ...], wires: tuple[Wire, ...] = TEXTS) -> RelationView:
    return RelationView(relation=RELATION, table="public.t", wires=wires, key=key)


cells = st.binary(max_size=6).map(lambda each: each.hex().encode()) | st.just(Cell.NULL)
new_cells = cells | st.just(Cell.UNCHANGED)
rows = st.tuples(cells, cells, cells)
new_rows = st.tuples(new_cells, new_cells, new_cells)
changes = st.one_of(
    rows.map(lambda new: change(b"I", new)),
    st.tuples(new_rows, st.none() | rows, st.sampled_from([b"K", b"O"])).map(
        lambda drawn: change(b"U", *drawn)
    ),
    st.tuples(rows, st.sampled_from([b"K", b"O"])).map(lambda drawn: change(b"D", None, *drawn)),
    rows.map(lambda new: change(b"I", new, oid=OTHER_TABLE)),
    st.sampled_from([b"Y" + bytes(8), b"O" + bytes(9), b"M" + bytes(15), relation()]),
)
transactions = st.lists(
    st.tuples(st.integers(3, (1 << 32) - 1), st.lists(changes, max_size=6)), max_size=5
)


@settings(max_examples=300)
@given(transactions, st.sampled_from([("a",), ("a", "c"), ()]), st.booleans())
def test_kernels_say_what_plain_python_says(drawn, key, cut):
    messages = []
    for number, (xid, inner) in enumerate(drawn):
        lsn = 1000 * (number + 1)
        messages += [begin(lsn, xid), *inner, commit(lsn)]
    if cut and messages:
        messages.pop()
    found = batch(messages) if messages else None
    expected, owner = [], None
    for place, data in enumerate(messages):
        message = read_message(data)
        if isinstance(message, Begin):
            owner = message
        if getattr(message, "relation", None) != RELATION.oid:
            continue
        for second, each in enumerate(plain_changes(message, tuple(NAMES.index(k) for k in key))):
            values = [None if one is Cell.NULL else one.decode() for one in each.row]
            expected.append((each.kind, 2 * place + second, owner.xid, *values, each.unchanged))
    if found is None:
        assert expected == []
        return
    whole = len(drawn) - bool(cut)
    told = [found.transaction(number) for number in range(found.whole_transactions)]
    assert [each.commit_lsn for each in told] == [1000 * (number + 1) for number in range(whole)]
    assert all(each.end_lsn == each.commit_lsn + 50 for each in told)
    assert [each.xid for each in told] == [xid for xid, _ in drawn[:whole]]
    assert all(
        each.end - each.first == len(inner) + 2
        for each, (_, inner) in zip(told, drawn[:whole], strict=True)
    )
    for lsn in (0, 1000, 1001, 10_000):
        assert found.first_after(lsn) == sum(each.end_lsn <= lsn for each in told)
    for number in range(whole):
        assert found.last_before(told[number].end) == number + 1
        assert found.last_before(told[number].end - 1) == number
        assert found.last_within(number, 0) == number + 1
        assert found.last_within(number, 1 << 30) == whole
    table = found.changes(view(key), range(len(messages)), near=NEAR, bad_as_null=False)
    table.validate(full=True)
    got = [
        (
            each["_change_type"], each["_seq"], each[TRANSACTION] & 0xFFFFFFFF,
            each["a"], each["b"], each["c"], each[UNCHANGED],
        )
        for each in table.to_pylist()
    ]  # fmt: skip
    assert got == expected
    assert all(abs(each - NEAR) <= 1 << 31 for each in table[TRANSACTION].to_pylist())


def test_a_row_that_moves_is_a_delete_and_an_insert():
    x, y, old = b"x", b"y", (b"k1", Cell.NULL, Cell.NULL)
    found = batch(
        [
            begin(100, 7),
            change(b"U", (b"k2", x, Cell.UNCHANGED), old),
            change(b"U", (b"k1", y, y), old),
            change(b"U", (b"k1", y, Cell.UNCHANGED), (b"k1", x, b"long"), b"O"),
            commit(100),
        ]
    )
    table = found.changes(view(("a",)), range(5), near=NEAR, bad_as_null=False)
    assert [
        (each["_change_type"], each["a"], each["b"], each["c"], each[UNCHANGED])
        for each in table.to_pylist()
    ] == [
        ("delete", "k1", None, None, 0),
        ("insert", "k2", "x", None, 0b100),
        ("update_preimage", "k1", None, None, 0),
        ("update_postimage", "k1", "y", "y", 0),
        ("update_preimage", "k1", "x", "long", 0),
        ("update_postimage", "k1", "y", "long", 0),
    ]


def test_relations_and_truncates_are_read():
    truncate = b"T" + struct.pack(">IbII", 2, 0, RELATION.oid, OTHER_TABLE)
    found = batch([begin(1, 1), relation(), truncate, commit(1)])
    assert found.rare() == [(1, RELATION), (2, Truncate((RELATION.oid, OTHER_TABLE)))]
    assert read_message(b"M" + bytes(15)) == Other("M")
    assert isinstance(read_message(commit(7)), Commit)
    assert read_message(begin(9, 4_294_967_295)) == Begin(9, 946_684_801.0, 4_294_967_295)


def test_cells_in_another_format_are_noticed():
    data = b"I" + struct.pack(">I", RELATION.oid) + b"N" + row((b"x", b"y", b"z"), b"b")
    for binary, message in ((False, data), (True, change(b"I", (b"x", b"y", b"z")))):
        found = batch([begin(1, 1), message, commit(1)], binary=binary)
        with pytest.raises(OtherFormat):
            found.changes(view(("a",)), range(3), near=NEAR, bad_as_null=False)


@pytest.mark.parametrize(
    "message",
    [
        b"I" + struct.pack(">I", RELATION.oid) + b"N" + row((b"x", b"y")),
        change(b"I", (b"x", b"y", b"z"))[:-1],
        b"I" + struct.pack(">I", RELATION.oid) + b"N" + struct.pack(">h", 3) + b"nn?",
    ],
    ids=["width", "short", "kind"],
)
def test_damaged_messages_are_our_bug(message):
    found = batch([begin(1, 1), message, commit(1)])
    with pytest.raises(BrokenInvariant, match=r"public\.t"):
        found.changes(view(("a",)), range(3), near=NEAR, bad_as_null=False)


def test_binary_cells_use_the_kernels_of_copy():
    new = (struct.pack(">i", -7), b"text", Cell.NULL)
    data = b"I" + struct.pack(">I", RELATION.oid) + b"N" + row(new, b"b")
    wires = (Wire(INTEGER, Codec.INT4), Wire(VARCHAR, Codec.TEXT), Wire(VARCHAR, Codec.TEXT))
    found = batch([begin(1, 1), data, commit(1)], binary=True)
    table = found.changes(view(("a",), wires), range(3), near=NEAR, bad_as_null=False)
    assert table.select(["a", "b", "c"]).to_pylist() == [{"a": -7, "b": "text", "c": None}]


def test_an_unchanged_column_beyond_the_bits_is_refused_with_the_remedy():
    names = [f"c{number}" for number in range(70)]
    wide = Relation(
        RELATION.oid, "public", "t", "d",
        tuple(RelationColumn(name, 25, -1, name == "c0") for name in names),
    )  # fmt: skip
    new = [b"x"] * 70
    shown = RelationView(
        relation=wide, table="public.t", wires=(Wire(VARCHAR, Codec.TEXT),) * 70, key=("c0",)
    )
    new[62] = Cell.UNCHANGED
    found = batch([begin(1, 1), change(b"U", new), commit(1)])
    table = found.changes(shown, range(3), near=NEAR, bad_as_null=False)
    assert table[UNCHANGED].to_pylist() == [0, 1 << 62]
    new[63] = Cell.UNCHANGED
    found = batch([begin(1, 1), change(b"U", new), commit(1)])
    with pytest.raises(SchemaError) as caught:
        found.changes(shown, range(3), near=NEAR, bad_as_null=False)
    assert "REPLICA IDENTITY FULL" in caught.value.hint


@given(st.lists(st.integers(0, 40), max_size=30), st.data(), st.integers(1, 60))
def test_parts_are_small_and_hold_every_message_once(sizes, data, most):
    messages = [b"M" + bytes(size) for size in sizes]
    begin = data.draw(st.integers(0, len(messages)))
    whole = range(begin, data.draw(st.integers(begin, len(messages))))
    parts = list(batch(messages).parts(whole, most))
    assert [place for part in parts for place in part] == list(whole)
    for part in parts:
        assert len(part) == 1 or sum(len(messages[place]) for place in part) <= most
    for part, after in pairwise(parts):
        assert sum(len(messages[place]) for place in [*part, after[0]]) > most

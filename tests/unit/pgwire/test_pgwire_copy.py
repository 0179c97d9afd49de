"""COPY streams: any rows, in any pieces, come back; what is not a row is refused."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.model import types as t
from headwater.pgwire.copy_rows import CopyWriter
from headwater.pgwire.copy_stream import as_batch, reader_of
from headwater.pgwire.session import CopyOptions, ResultColumn
from headwater.pgwire.violation import WireError
from pgwire_kit import read_or_refused

TYPES = [t.VARCHAR, t.VARCHAR]
COLUMNS = [ResultColumn(name="a", type=t.VARCHAR), ResultColumn(name="b,c", type=t.VARCHAR)]
VALUE = st.one_of(
    st.none(),
    st.text(alphabet="\\N,.\"'\t\n\r xä|\b\x7f", max_size=8),
    st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=8),
)
TEXT_OPTIONS = st.builds(
    CopyOptions,
    format=st.just("text"),
    delimiter=st.sampled_from(["", "|", ","]),
    header=st.booleans(),
)
CSV_OPTIONS = st.builds(
    CopyOptions,
    format=st.just("csv"),
    delimiter=st.sampled_from(["", "|", "\t"]),
    header=st.booleans(),
)
OPTIONS = st.one_of(
    TEXT_OPTIONS,
    CSV_OPTIONS,
    st.just(CopyOptions(format="text", null="<null>")),
    st.just(CopyOptions(format="csv", null="NULL", quote="'", escape="\\")),
    st.just(CopyOptions(format="binary")),
)


def written(rows, options):
    writer = CopyWriter(options, COLUMNS, "UTC")
    arrays = [pa.array([row[place] for row in rows], pa.string()) for place in (0, 1)]
    batch = pa.record_batch(arrays, names=["a", "b"])
    messages = writer.head() + bytes(writer.rows(batch)) + writer.end()
    bodies = []
    while messages:
        end = 1 + int.from_bytes(messages[1:5], "big")
        bodies.append(messages[5:end])
        messages = messages[end:]
    return b"".join(bodies)


@given(
    rows=st.lists(st.tuples(VALUE, VALUE), max_size=6),
    options=OPTIONS,
    cuts=st.lists(st.integers(1, 9), min_size=1, max_size=4),
)
def test_what_is_written_is_read(rows, options, cuts):
    if options.null == "<null>":
        rows = [tuple("x" if value == "<null>" else value for value in row) for row in rows]
    data, reader, read, at, turn = written(rows, options), reader_of(options, TYPES), [], 0, 0
    while at < len(data):
        size = cuts[turn % len(cuts)]
        read += reader.feed(data[at : at + size])
        at, turn = at + size, turn + 1
    read += reader.finish()
    assert [tuple(row) for row in read] == rows
    if read:
        assert as_batch(read, ["a", "b"]).num_rows == len(rows)


@given(data=st.binary(max_size=60), options=OPTIONS)
def test_any_bytes_are_rows_or_refused(data, options):
    reader = reader_of(options, TYPES)
    with read_or_refused("22P04", "22021"):
        assert all(len(row) == 2 for row in [*reader.feed(data), *reader.finish()])


@pytest.mark.parametrize(
    ("format_", "data", "complaint"),
    [
        ("text", b"1\n", "missing data"),
        ("text", b"1\t2\t3\n", "extra data"),
        ("csv", b"1\n", "missing data"),
        ("csv", b'1,"x\n', "unterminated"),
        ("binary", b"PGCOPY", "unexpected end"),
        ("binary", b"x" * 40, "signature"),
    ],
)
def test_rows_that_are_refused(format_, data, complaint):
    reader = reader_of(CopyOptions(format=format_), TYPES)
    with pytest.raises(WireError, match=complaint) as raised:
        [*reader.feed(data), *reader.finish()]
    assert raised.value.sqlstate == "22P04"


def test_escapes_of_the_text_format():
    reader = reader_of(CopyOptions(), TYPES)
    [row] = reader.feed(b"\\x41\\101\\303\\244\\b\\q\ta\\\tb\\\\\\\nc\r\n")
    assert row == ["AAä\bq", "a\tb\\\nc"]
    assert reader.feed(b"\\.\n1\n") == []

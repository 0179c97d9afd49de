"""Framing and messages: the same out of any pieces, and never more than the limits."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.pgwire.framing import SMALL_BYTES, START_UP_BYTES, Frames
from headwater.pgwire.messages import (
    Bind,
    CancelRequest,
    EncryptionRequest,
    Parse,
    Query,
    Startup,
    read_message,
    read_start_up,
)
from headwater.pgwire.violation import ProtocolViolation, WireError
from pgwire_kit import frame, read_or_refused, start_up


def started(limit: int = 1 << 20) -> Frames:
    frames = Frames(limit)
    frames.begin_messages()
    frames.allow_large()
    return frames


@given(
    bodies=st.lists(st.tuples(st.sampled_from(b"QPBdS"), st.binary(max_size=50)), max_size=8),
    cuts=st.lists(st.integers(1, 20), min_size=1),
)
def test_messages_do_not_depend_on_the_pieces(bodies, cuts):
    frames = started()
    data = b"".join(frame(bytes([kind]), body) for kind, body in bodies)
    found, at, turn = [], 0, 0
    while at < len(data):
        size = cuts[turn % len(cuts)]
        frames.feed(data[at : at + size])
        at, turn = at + size, turn + 1
        while frames.ready:
            found.append(frames.next())
    assert found == bodies
    assert frames.held == 0
    assert frames.next() is None


@given(st.binary(max_size=64))
def test_any_bytes_are_messages_or_a_violation(data):
    frames = started()
    frames.feed(data)
    with read_or_refused("08P01"):
        while (found := frames.next()) is not None:
            with read_or_refused("08P01", "22021"):
                read_message(*found)


@given(st.binary(max_size=64))
def test_any_start_up_is_read_or_refused(data):
    with read_or_refused("08P01", "0A000", "22021"):
        read_start_up(data)


@given(kind=st.sampled_from(b"QPBDECf"), data=st.binary(max_size=80))
def test_any_body_is_read_or_refused(kind, data):
    with read_or_refused("08P01", "22021"):
        read_message(kind, data)


def test_a_length_is_refused_before_its_bytes_arrive():
    frames = Frames()
    frames.feed(struct.pack(">i", START_UP_BYTES + 1))
    with pytest.raises(ProtocolViolation):
        frames.next_start_up()
    frames = Frames()
    frames.begin_messages()
    frames.feed(b"Q" + struct.pack(">i", SMALL_BYTES + 1))
    with pytest.raises(ProtocolViolation):
        frames.next()
    frames = started(1 << 20)
    frames.feed(b"Q" + struct.pack(">i", 1 << 20))
    assert frames.next() is None
    frames.feed(bytes((1 << 20) - 4))
    assert len(frames.next()[1]) == (1 << 20) - 4
    frames.feed(b"E" + struct.pack(">i", SMALL_BYTES + 1))
    with pytest.raises(ProtocolViolation):
        frames.next()


def test_messages_are_read():
    assert read_message(ord("Q"), b"select 1\0") == Query("select 1")
    parsed = read_message(ord("P"), b"s\0text\0" + struct.pack(">HII", 2, 23, 4_000_000_000))
    assert parsed == Parse(name="s", text="text", oids=(23, 4_000_000_000))
    body = b"p\0s\0" + struct.pack(">HhHiihhh", 1, 1, 2, -1, 0, 2, 0, 1)
    assert read_message(ord("B"), body) == Bind(
        portal="p", statement="s", formats=(1,), values=(None, b""), result_formats=(0, 1)
    )
    for broken in (body[:-1], body + b"x", body.replace(b"\0\1\0\2", b"\0\7\0\2", 1)):
        with pytest.raises(WireError):
            read_message(ord("B"), broken)


def test_openings_are_read():
    assert read_start_up(start_up()[4:]) == Startup(
        minor=0, options={"user": "root", "database": "dev"}
    )
    assert read_start_up(struct.pack(">i", 80877103)) == EncryptionRequest(True)
    cancel = read_start_up(struct.pack(">iI", 80877102, 7) + b"abcd")
    assert cancel == CancelRequest(process=7, secret=b"abcd")

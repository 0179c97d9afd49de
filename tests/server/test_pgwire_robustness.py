"""The server among clients that are slow, broken, hostile, dead, or many."""

import os
import socket
import struct
import time

import psutil
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.pgwire.house import Limits
from pgwire_kit import BATCH, BareClient, error_fields, frame, served, start_up

SYNC, FLUSH, BYE = frame(b"S"), frame(b"H"), frame(b"X")


def query(text: str) -> bytes:
    return frame(b"Q", text.encode() + b"\0")


def parse(text: str, name: str = "", oids: tuple[int, ...] = ()) -> bytes:
    head = name.encode() + b"\0" + text.encode() + b"\0"
    return frame(b"P", head + struct.pack(f">H{len(oids)}I", len(oids), *oids))


def bind(*values: bytes | None, portal: str = "", name: str = "", results: tuple[int, ...] = ()):
    body = portal.encode() + b"\0" + name.encode() + b"\0" + struct.pack(">HH", 0, len(values))
    for value in values:
        body += struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value
    return frame(b"B", body + struct.pack(f">H{len(results)}h", len(results), *results))


def execute(portal: str = "", rows: int = 0) -> bytes:
    return frame(b"E", portal.encode() + b"\0" + struct.pack(">i", rows))


def describe(kind: bytes, name: str = "") -> bytes:
    return frame(b"D", kind + name.encode() + b"\0")


def close(kind: bytes, name: str = "") -> bytes:
    return frame(b"C", kind + name.encode() + b"\0")


def eventually(condition, limit_s=60.0):
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def begin(place, client, text):
    """Say a statement, and wait until the server is at it."""
    begun, given = place.world.seen.count(text), place.world.given
    client.send(query(text))
    eventually(lambda: place.world.seen.count(text) > begun)
    if text == "endless":
        eventually(lambda: place.world.given > given)
    if text.startswith("copy in"):
        assert client.kinds("G") == "G"


@pytest.fixture(scope="module")
def place():
    with served() as server:
        yield server


@pytest.fixture
def client(place):
    with BareClient(place) as client:
        yield client


def told(messages) -> dict[str, str]:
    [body] = [body for kind, body in messages if kind == "E"]
    return error_fields(body)


def test_greeting(client):
    kinds = "".join(kind for kind, _ in client.greeting)
    assert kinds == "R" + "S" * 13 + "KZ"
    said = dict(body.decode().split("\0")[:2] for kind, body in client.greeting if kind == "S")
    assert said["server_version"].startswith("14.0")
    assert (said["client_encoding"], said["TimeZone"]) == ("UTF8", "UTC")
    assert (said["integer_datetimes"], said["standard_conforming_strings"]) == ("on", "on")


def test_rows_in_portions(client):
    client.send(query("begin"))
    client.until("Z")
    client.send(parse("rows 5"), bind(portal="p"), describe(b"P", "p"), execute("p", 2), SYNC)
    assert client.kinds() == "12TDDsZ"
    client.send(execute("p", 3), SYNC)
    assert client.kinds() == "DDDsZ"
    client.send(execute("p", 3), SYNC)
    assert client.until("Z")[0] == ("C", b"SELECT 0\0")
    client.send(bind(portal="p"), SYNC)
    assert told(client.until("Z"))["C"] == "42P03"
    client.send(query("rollback"))
    client.until("Z")
    client.send(execute("p", 3), SYNC)
    assert told(client.until("Z"))["C"] == "34000"


def test_after_an_error_all_is_skipped_until_sync(client):
    client.send(parse("fail at parse"), bind(), execute(), query("rows 1"), SYNC)
    messages = client.until("Z")
    assert "".join(kind for kind, _ in messages) == "EZ"
    assert told(messages)["P"] == "6"
    client.send(parse("echo(int4) $1"), bind(b"x"), execute(), SYNC, query("rows 1"))
    assert client.kinds() == "1EZ"
    assert client.kinds() == "TDCZ"


def test_names_and_counts_are_checked(client):
    client.send(parse("rows 1", "s"), parse("rows 2", "s"), SYNC)
    assert told(client.until("Z"))["C"] == "42P05"
    client.send(bind(name="nothing"), SYNC)
    assert told(client.until("Z"))["C"] == "26000"
    client.send(bind(b"1", name="s"), SYNC)
    assert told(client.until("Z"))["C"] == "08P01"
    client.send(bind(name="s", results=(1, 1, 1)), SYNC)
    assert told(client.until("Z"))["C"] == "08P01"
    client.send(close(b"S", "s"), close(b"S", "never"), parse("rows 2", "s"), SYNC)
    assert client.kinds() == "331Z"
    client.send(query("deallocate all"), parse("rows 3", "s"), SYNC)
    assert client.kinds() == "CZ"
    assert client.kinds() == "1Z"
    client.send(parse("insert x"), bind(), execute(), execute(), SYNC)
    assert told(client.until("Z"))["C"] == "55000"
    client.send(parse(""), describe(b"S"), bind(), execute(), SYNC, query(" ; "))
    assert client.kinds() == "1tn2IZ"
    assert client.kinds() == "IZ"


def test_a_result_that_changed_is_not_sent(place, client):
    client.send(parse("select current_schema()", "s"), SYNC)
    assert client.kinds() == "1Z"
    before = place.world.fixed["select current_schema()"]
    place.world.fixed["select current_schema()"] = place.world.fixed_number
    client.send(bind(name="s"), execute(), SYNC)
    assert told(client.until("Z"))["C"] == "0A000"
    place.world.fixed["select current_schema()"] = before
    client.send(bind(name="s"), execute(), SYNC)
    assert client.kinds() == "2DCZ"


def test_a_value_that_cannot_be_sent_fails_the_statement_only(client):
    client.send(query("unsendable; rows 1"), query("rows 1"))
    assert told(client.until("Z"))["C"] == "XX000"
    assert client.kinds() == "TDCZ"


def test_a_flush_brings_answers_without_sync(client):
    client.send(parse("rows 1"), describe(b"S"), FLUSH)
    assert [client.message()[0] for _ in range(3)] == ["1", "t", "T"]
    client.send(SYNC)
    assert client.kinds() == "Z"


def test_copy_data_after_a_failed_copy_is_ignored(client):
    piece = frame(b"d", b"13\trefused\n" * 10_000)
    client.send(query("copy in text"), piece * 20, frame(b"c"), query("rows 1"))
    assert client.kinds("E") == "GE"
    assert client.kinds() == "Z"
    assert client.kinds() == "TDCZ"
    client.send(parse("copy in text"), bind(), execute(), SYNC, frame(b"d", b"1\n"), SYNC)
    assert client.kinds() == "12GEZ"
    client.send(query("copy in text"), query("rows 1"))
    messages = client.until("Z")
    assert told(messages)["C"] == "08P01"
    client.send(query("copy in binary"), frame(b"d", b"nonsense" * 9), frame(b"c"))
    assert told(client.until("Z"))["C"] == "22P04"


def test_bad_text_is_an_error_of_the_statement(client):
    client.send(frame(b"Q", b"rows \xff\0"), frame(b"Q", b"no end"), frame(b"F", b""))
    assert told(client.until("Z"))["C"] == "22021"
    assert told(client.until("Z"))["C"] == "08P01"
    assert told(client.until("Z"))["C"] == "0A000"


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"\x00", None),
        (b"GET / HTTP/1.1\r\n\r\n", "08P01"),
        (struct.pack(">i", 4), "08P01"),
        (struct.pack(">i", 2**31 - 1), "08P01"),
        (struct.pack(">ii", 8, 2 << 16), "0A000"),
        (struct.pack(">ii", 9, 196608) + b"x", "08P01"),
        (struct.pack(">ii", 9, 196608) + b"\0", "28000"),
        (start_up(replication="database"), "0A000"),
        (start_up(user="nobody"), "28000"),
        (start_up(database="missing"), "3D000"),
        (start_up(options="nonsense"), "42601"),
        (struct.pack(">ii", 8, 80877103) + b"too early", "08P01"),
        (start_up() + frame(b"p", b"x"), "08P01"),
        (start_up() + b"!\0\0\0\4", "08P01"),
        (start_up() + b"Q\0\0\0\3", "08P01"),
        (start_up() + b"Q\x7f\xff\xff\xff", "08P01"),
        (start_up() + b"S\x00\x02\x00\x00", "08P01"),
    ],
)
def test_bytes_that_make_no_sense_end_the_connection(place, sent, code):
    with BareClient(place, start=False) as client:
        client.send(sent)
        client.socket.shutdown(socket.SHUT_WR) if code is None else None
        last = [body for kind, body in client.until("none") if kind == "E"]
        assert client.message() is None
    if code is not None:
        assert error_fields(last[0])["C"] == code
        assert error_fields(last[0])["S"] == "FATAL"


def test_encryption_is_refused_where_there_is_none(place):
    with BareClient(place, start=False) as client:
        client.send(struct.pack(">ii", 8, 80877104))
        assert client.socket.recv(1) == b"N"
        client.send(struct.pack(">ii", 8, 80877103))
        assert client.socket.recv(1) == b"N"
        client.send(start_up())
        assert client.kinds().endswith("KZ")


def test_a_later_protocol_is_negotiated_down(place):
    body = struct.pack(">i", 196610) + b"user\0root\0_pq_.x\0y\0\0"
    with BareClient(place, start=False) as client:
        client.send(struct.pack(">i", len(body) + 4) + body)
        assert client.message() == ("v", struct.pack(">ii", 196608, 1) + b"_pq_.x\0")
        assert client.kinds().endswith("KZ")


def test_cancel_needs_the_secret(place, client):
    key = dict(client.greeting)["K"]
    cancels = place.world.cancels
    begin(place, client, "sleep")
    for secret in (b"\0\0\0\0", key[4:] + b"\0", b""):
        with BareClient(place, start=False) as other:
            body = struct.pack(">i", 80877102) + key[:4] + secret
            other.send(struct.pack(">i", len(body) + 4) + body)
            assert other.message() is None
    assert place.world.cancels == cancels
    with BareClient(place, start=False) as other:
        other.send(struct.pack(">ii", 16, 80877102) + key)
        assert other.message() is None
    assert told(client.until("Z"))["C"] == "57014"


def test_a_client_that_never_starts_is_cut_off():
    with served(limits=Limits(start_up_s=3.0)) as place:
        # The good one is there for longer than it may take to start, when the silent one is gone.
        with BareClient(place) as good, BareClient(place, start=False) as silent:
            silent.send(start_up()[:7])
            assert [kind for kind, _ in silent.until("none")] == ["E"]
            good.send(query("rows 1"))
            assert good.kinds() == "TDCZ"


def test_one_client_too_many():
    with served(limits=Limits(connections=2)) as place:
        with BareClient(place), BareClient(place):
            with BareClient(place, start=False) as third:
                third.send(start_up())
                assert told(third.until("none"))["C"] == "53300"
        eventually(lambda: place.server.connections == 0)
        with BareClient(place) as client:
            client.send(query("rows 1"))
            assert client.kinds() == "TDCZ"


def test_messages_longer_than_the_limit_and_long_ones_within():
    with served(limits=Limits(message_bytes=1 << 24)) as place:
        with BareClient(place) as client:
            client.send(query("rows 1" + " " * 10_000_000))
            assert client.kinds() == "TDCZ"
            client.send(b"Q" + struct.pack(">i", (1 << 24) + 1))
            assert told(client.until("none"))["C"] == "08P01"


def test_many_pipelined_messages(client):
    count = 20_000
    part = parse("echo(int4) $1", oids=(23,)) + bind(b"7") + execute()
    client.socket.setblocking(False)
    to_send = memoryview(part * count + SYNC)
    received = bytearray()
    while not received.endswith(b"Z\0\0\0\5I"):
        try:
            to_send = to_send[client.socket.send(to_send[: 1 << 16]) :] if to_send else to_send
        except BlockingIOError:
            pass
        try:
            received += client.socket.recv(1 << 16)
        except BlockingIOError:
            time.sleep(0.001)
    assert received.count(b"C\0\0\0\rSELECT 1\0") == count


def test_a_slow_client_is_waited_for(place, client):
    process = psutil.Process()
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    given_before, memory = place.world.given, process.memory_info().rss
    begin(place, client, "endless")

    def stands_still():
        given = place.world.given
        assert BATCH <= given - given_before < 1_000_000
        time.sleep(0.5)
        return place.world.given == given

    eventually(stands_still)
    given_now = place.world.given
    assert process.memory_info().rss - memory < 100 << 20
    for _ in range(200):
        client.socket.recv(1 << 16)
    eventually(lambda: place.world.given > given_now)


@pytest.mark.parametrize("text", ["endless", "sleep", "copy in text"])
@pytest.mark.parametrize("by_reset", [False, True], ids=["end", "reset"])
def test_a_client_that_dies_stops_its_statement(place, text, by_reset):
    world = place.world
    eventually(lambda: place.server.connections == 0)
    cancels, closed, streams = world.cancels, world.closed, world.streams_closed
    aborted, opened = world.aborted, world.opened
    client = BareClient(place)
    eventually(lambda: world.opened == opened + 1)
    begin(place, client, text)
    if by_reset:
        linger = struct.pack("ii", 1, 0)
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    client.socket.close()
    eventually(lambda: world.closed == closed + 1)
    assert world.cancels == cancels + 1
    assert world.streams_closed == streams + (text == "endless")
    assert world.aborted == aborted + (text == "copy in text")


def test_a_polite_client_need_not_wait_for_its_answer(place):
    client = BareClient(place)
    client.send(query("insert polite"), BYE)
    client.socket.close()
    eventually(lambda: "insert polite" in place.world.seen)


def test_two_hundred_idle_clients(place):
    process = psutil.Process()
    before, files = process.memory_info().rss, process.num_fds()
    clients = [BareClient(place) for _ in range(200)]
    try:
        spent = process.memory_info().rss - before
        assert spent < 40 << 20, f"{spent >> 20} MiB for 200 idle clients"

        def rests():
            cpu = process.cpu_times()
            time.sleep(0.5)
            now = process.cpu_times()
            return (now.user + now.system) - (cpu.user + cpu.system) < 0.1

        eventually(rests)
        for client in clients[::50]:
            client.send(query("rows 1"))
            assert client.kinds() == "TDCZ"
    finally:
        for client in clients:
            client.socket.close()
    eventually(lambda: process.num_fds() <= files + 2)


def test_stop_tells_every_client():
    with served() as place:
        idle, busy, silent = BareClient(place), BareClient(place), BareClient(place, start=False)
        busy.send(query("sleep"))
        eventually(lambda: "sleep" in place.world.seen)
        place.call(place.server.stop())
        assert told(idle.until("none"))["C"] == "57P01"
        assert told(busy.until("none"))["C"] == "57P01"
        silent.until("none")
        assert place.server.connections == 0
        assert place.world.closed == 2
        with pytest.raises(OSError, match="refused"):
            BareClient(place)
        place.call(place.server.stop())


def test_stop_does_not_wait_for_a_client_that_does_not_read():
    with served() as place:
        client = BareClient(place)
        begin(place, client, "endless")
        # Whoever waits for the client waits for ever.
        place.call(place.server.stop(grace_s=1.0))
        assert place.server.connections == 0
        assert client.until("none")
        assert client.message() is None


NAMES = st.sampled_from(["", "s", "p", "nothing"])
STATEMENTS = st.sampled_from(
    ["rows 3", "", "fail", "boom", "begin", "commit", "echo(int4) $1", "texts $1 $2", "insert x",
     "copy in text", "copy in csv", "copy in binary", "copy out text", "fail at parse", "rows 1; x"]
)  # fmt: skip
MESSAGES = st.one_of(
    st.builds(query, STATEMENTS),
    st.builds(parse, STATEMENTS, NAMES, st.sampled_from([(), (23,), (25, 0), (1007,), (99999,)])),
    st.builds(
        lambda values, portal, name, results: bind(
            *values, portal=portal, name=name, results=results
        ),
        st.lists(st.one_of(st.none(), st.binary(max_size=8), st.just(b"7")), max_size=3),
        NAMES,
        NAMES,
        st.sampled_from([(), (0,), (1,), (1, 0)]),
    ),
    st.builds(execute, NAMES, st.sampled_from([0, 1, 2, -1])),
    st.builds(describe, st.sampled_from([b"S", b"P", b"?"]), NAMES),
    st.builds(close, st.sampled_from([b"S", b"P"]), NAMES),
    st.sampled_from([SYNC, FLUSH, frame(b"c"), frame(b"f", b"no\0"), frame(b"F", b"")]),
    st.builds(lambda data: frame(b"d", data), st.binary(max_size=40)),
    st.builds(
        lambda kind, body: frame(bytes([kind]), body),
        st.sampled_from(b"QPBDECHSdcfF"),
        st.binary(max_size=30),
    ),
)
FUZZ = settings(
    max_examples=int(os.environ.get("PGWIRE_FUZZ", "150")),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@FUZZ
@given(messages=st.lists(MESSAGES, max_size=12))
def test_any_order_of_messages_ends_ready_or_closed(place, messages):
    with BareClient(place) as client:
        client.send(*messages)
        # The first ends a COPY that may be under way, the second what is skipped.
        client.send(frame(b"f", b"enough\0"), SYNC, query("echo"), query("rows 2"))
        last = []
        while (message := client.message()) is not None:
            last.append(message)
            if message == ("C", b"SELECT 2\0") and client.message()[0] == "Z":
                break
        kinds = "".join(kind for kind, _ in last)
        if message is None:
            assert error_fields(last[-1][1])["S"] == "FATAL"
        assert set(kinds) <= set("ZTDC123tnsIEGHdcSN")
    eventually(lambda: place.server.connections == 0)


@FUZZ
@given(data=st.binary(max_size=200), started=st.booleans())
def test_any_bytes_end_in_an_error_or_a_close(place, data, started):
    with BareClient(place, start=started) as client:
        client.send(data)
        client.socket.shutdown(socket.SHUT_WR)
        client.until("none")
    eventually(lambda: place.server.connections == 0)
    assert place.world.opened == place.world.closed


def test_after_all_that_the_server_is_well(place):
    with psycopg.connect(place.dsn, autocommit=True) as connection:
        assert connection.execute("rows 2").fetchall() == [(0, "name 0"), (1, "name 1")]

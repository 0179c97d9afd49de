"""A sink that posts to a real HTTP server: keys, repeats, refusals, and what is never shown."""

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pyarrow as pa
import pytest

from headwater.errors import ConfigError, SinkUnavailable, UserError
from headwater.model.schema import Column
from headwater.model.types import BIGINT, VARCHAR, decimal
from headwater.sinks.sink import SinkKind, SinkSpec, TransactionalSink
from headwater.sinks.webhook import webhook_sink
from lake_sinks import deletes, delivery, sets
from servers import free_port

COLUMNS = (Column("id", BIGINT), Column("name", VARCHAR), Column("amount", decimal(12, 2)))


class Receiver(ThreadingHTTPServer):
    """Keeps what it is sent; answers as it is told, and takes a key once, as it should."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[tuple[str, dict[str, str], dict[str, object]]] = []
        self.answers: list[int | str] = []
        self.taken: dict[str, dict[str, object]] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def rows(self, sink: str = "") -> list[dict[str, object]]:
        return [
            row for key, body in self.taken.items() if key.startswith(sink) for row in body["rows"]
        ]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Receiver

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, dict(self.headers.items()), body))
        answer = self.server.answers.pop(0) if self.server.answers else 200
        if answer == "lost":
            # It has acted, and nobody hears of it.
            self.server.taken.setdefault(self.headers["Idempotency-Key"], body)
            self.close_connection = True
            return
        if answer == 200:
            self.server.taken.setdefault(self.headers["Idempotency-Key"], body)
        self.send_response(int(answer))
        content = b"the answer, with token-of-ours in it"
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def spec_of(receiver, kind=SinkKind.UPSERT, **options):
    return SinkSpec(
        name="orders",
        ident="orders_9",
        columns=COLUMNS,
        key=("id",),
        kind=kind,
        options={"url": f"{receiver.url}/in?token=token-of-ours", **options},
    )


def batches(spec, *groups):
    return [pa.RecordBatch.from_pylist(rows, schema=spec.arrow) for rows in groups]


def test_rows_arrive_with_their_key(receiver):
    spec = spec_of(receiver, authorization="Bearer b", headers='{"X-Team": "data"}')
    sink = webhook_sink(spec)
    assert isinstance(sink, TransactionalSink)
    sink.check()
    assert sink.begin(3) == 0
    rows = deletes([{"id": 1, "name": "gone"}]), sets([{"id": 2, "name": "é\n"}])
    sink.deliver(delivery("orders_9", 7, term=3), batches(spec, *rows))
    [(path, headers, body)] = receiver.requests
    assert path == "/in?token=token-of-ours"
    assert re.fullmatch(r"orders_9_7-0-[0-9a-f]{16}", headers["Idempotency-Key"])
    assert headers["Headwater-Term"] == "3"
    assert (headers["Authorization"], headers["X-Team"]) == ("Bearer b", "data")
    assert headers["Content-Type"] == "application/json"
    assert body == {
        "sink": "orders",
        "commit_id": "orders_9_7",
        "epoch": 7,
        "request": 0,
        "last": True,
        "rows": [
            {"op": "delete", "row": {"id": 1}},
            {"op": "insert", "row": {"id": 2, "name": "é\n", "amount": None}},
        ],
    }
    sink.deliver(delivery("orders_9", 8, rows=0), [])
    assert len(receiver.requests) == 1, "nothing is posted where nothing is owed"


def test_a_delivery_that_is_divided_in_another_way_loses_nothing(receiver):
    """A receiver that has seen a key skips it: other rows must have another."""
    rows = sets([{"id": n} for n in range(10)])
    for most in ("4", "8"):
        spec = spec_of(receiver, SinkKind.APPEND_ONLY, **{"max.batch": most})
        webhook_sink(spec).deliver(delivery("orders_9", 7), batches(spec, rows))
    taken = [row["row"]["id"] for body in receiver.taken.values() for row in body["rows"]]
    assert set(taken) == set(range(10))


def test_a_large_delivery_is_divided_the_same_way_each_time(receiver):
    spec = spec_of(receiver, SinkKind.APPEND_ONLY, **{"max.batch": "4"})
    sink, rows = webhook_sink(spec), sets([{"id": n} for n in range(10)])
    sink.deliver(delivery("orders_9", 7), batches(spec, rows[:7], rows[7:]))
    sink.deliver(delivery("orders_9", 7), batches(spec, rows[:1], [], rows[1:3], rows[3:]))
    bodies = [body for _, _, body in receiver.requests]
    assert bodies[:3] == bodies[3:]
    assert [(len(b["rows"]), b["request"], b["last"]) for b in bodies[:3]] == [
        (4, 0, False),
        (4, 1, False),
        (2, 2, True),
    ]
    assert [line["row"]["id"] for line in receiver.rows()] == list(range(10))
    receiver.requests.clear()
    small = webhook_sink(spec_of(receiver, **{"max.bytes": "100"}))
    small.deliver(delivery("orders_9", 8), batches(spec, rows))
    sizes = [len(json.dumps(body["rows"])) for _, _, body in receiver.requests]
    assert len(sizes) > 3
    assert max(sizes) < 200


@pytest.mark.parametrize("first", [500, 503, 429, 409, 408, "lost"])
def test_a_receiver_that_refuses_for_now_is_asked_again(receiver, first):
    spec = spec_of(receiver, **{"max.batch": "2"})
    sink, rows = webhook_sink(spec), sets([{"id": n} for n in range(5)])
    receiver.answers = [200, first]
    with pytest.raises(SinkUnavailable) as caught:
        sink.deliver(delivery("orders_9", 7), batches(spec, rows))
    assert "token-of-ours" not in str(caught.value)
    sink.deliver(delivery("orders_9", 7), batches(spec, rows))
    assert [line["row"]["id"] for line in receiver.rows()] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("status", [400, 401, 404, 413, 301])
def test_a_refusal_that_stays_is_for_the_user(receiver, status):
    spec = spec_of(receiver)
    receiver.answers = [status]
    with pytest.raises(UserError, match="refuses a request") as caught:
        webhook_sink(spec).deliver(delivery("orders_9", 7), batches(spec, sets([{"id": 1}])))
    assert str(status) in caught.value.detail
    assert "token-of-ours" not in str(caught.value)


def test_nobody_listens(receiver):
    spec = spec_of(receiver, url=f"http://127.0.0.1:{free_port()}/token-of-ours")
    for attempt in (
        webhook_sink(spec).check,
        lambda: webhook_sink(spec).deliver(
            delivery("orders_9", 7), batches(spec, sets([{"id": 1}]))
        ),
    ):
        with pytest.raises(SinkUnavailable, match="does not answer") as caught:
            attempt()
        assert "token-of-ours" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"url": "ftp://host"}, "url"),
        ({"headers": "X-Team: data"}, "headers"),
        ({"headers": '{"Idempotency-Key": "mine"}'}, "Idempotency-Key"),
        ({"max.batch": "0"}, "max.batch"),
        ({"adress": "x"}, "adress"),
    ],
)
def test_bad_options(receiver, options, told):
    with pytest.raises(ConfigError, match=told):
        webhook_sink(spec_of(receiver, **options))

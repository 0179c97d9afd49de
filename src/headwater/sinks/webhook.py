"""A sink that posts rows as JSON to an HTTP address.

    POST URL
    Idempotency-Key: orders_9_4711-0-5df1c27f0b8e9a34
    Headwater-Term: 3

    {"sink": "orders", "commit_id": "orders_9_4711", "epoch": 4711, "request": 0, "last": true,
     "rows": [{"op": "insert", "row": {"id": 7, "amount": "10.00"}}]}

What can be promised
    HTTP has no transaction: an answer may get lost after the receiver has acted, and the request
    is then sent again. It arrives **at least once**. It has the same key and the same rows each
    time, so a receiver that keeps the keys it has seen takes every row **exactly once**.
    A delivery is several requests only if it is larger than `max.batch` or `max.bytes`; the
    key's number counts them, and a receiver that wants a delivery whole waits for `last`.
    The key ends with a digest of the rows. When the options are altered while a delivery is
    refused, it may be divided in another way: its rows then have other keys, and none is lost,
    but those that the receiver took before arrive once more.
    Nobody can be fenced through HTTP. The term is in a header, for receivers that compare it.

An upsert's delete has only the key's columns. Values are spelled as in `json_text`.
"""

import contextlib
import hashlib
import http.client
import json
import socket
import ssl
from collections.abc import Iterator, Mapping
from urllib.parse import parse_qsl, urlsplit

import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import ConfigError, SinkUnavailable, UserError
from headwater.model.change import RowOp
from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.ids import Term
from headwater.sinks.json_text import json_objects
from headwater.sinks.options import Option, Options, checked_options
from headwater.sinks.sink import OP, Batches, Delivery, SinkKind, SinkSpec

OPTIONS: tuple[Option, ...] = (
    Option("url", "Where to post: http://host/path or https://host/path.", secret=True),
    Option(
        "headers",
        'More headers, as a JSON object: {"X-Team": "data"}.',
        default="",
        secret=True,
    ),
    Option("authorization", "The Authorization header.", default="", secret=True),
    Option("max.batch", "How many rows one request has at most.", default="10000"),
    Option("max.bytes", "How large a request's body is at most, about.", default="4194304"),
    Option("timeout.s", "How long an answer may take, in seconds.", default="30"),
)

_LATER = frozenset({408, 409, 425, 429})
"""Refusals that say: not now. 409 means that the same key is being worked on."""

_OWN_HEADERS = frozenset({"idempotency-key", "headwater-term", "content-type", "content-length"})
_SHOWN_ANSWER = 200
_SHORTEST_SECRET = 6
_NAMES = {op: op.name.lower() for op in RowOp}


def webhook_sink(spec: SinkSpec) -> "WebhookSink":
    """The sink of `connector = 'webhook'`."""
    return WebhookSink(spec)


class WebhookSink:
    """One address, as the target of one sink."""

    def __init__(self, spec: SinkSpec) -> None:
        self._spec = spec
        self._options = checked_options("webhook", spec.options, OPTIONS)
        self._rows_at_most = self._options.integer("max.batch", 1, 1_000_000)
        self._bytes_at_most = self._options.integer("max.bytes", 1, 1 << 30)
        self._timeout_s = self._options.integer("timeout.s", 1, 3600)
        self._headers = _headers(self._options)
        self._url = urlsplit(self._options["url"])
        if self._url.scheme not in ("http", "https") or not self._url.hostname:
            raise ConfigError(
                'option "url" must be an address that begins with http:// or https://'
            )

    def check(self) -> None:
        """Check that somebody listens there; nothing is posted."""
        with self._errors(), contextlib.closing(self._connection()) as connection:
            connection.connect()

    def begin(self, term: Term) -> Epoch:
        """`NO_EPOCH`: a receiver cannot be asked, so the engine's own mark decides."""
        del term
        return NO_EPOCH

    def deliver(self, delivery: Delivery, rows: Batches) -> None:
        """Post all rows. Replay: the same requests again, with the same keys."""
        with self._errors(), contextlib.closing(self._connection()) as connection:
            for number, body in enumerate(self._bodies(delivery, rows)):
                self._post(connection, delivery, number, body)

    def drop(self) -> None:
        """There is nothing of ours at a receiver."""

    def _bodies(self, delivery: Delivery, rows: Batches) -> Iterator[bytes]:
        """The bodies of all requests; which row is in which depends on the rows alone."""
        head = {
            "sink": self._spec.name,
            "commit_id": delivery.commit_id,
            "epoch": delivery.epoch,
        }
        waiting: list[str] | None = None
        for number, lines in enumerate(self._requests(rows)):
            if waiting is not None:
                yield _body({**head, "request": number - 1, "last": False}, waiting)
            waiting = lines
        if waiting is not None:
            yield _body({**head, "request": number, "last": True}, waiting)

    def _requests(self, rows: Batches) -> Iterator[list[str]]:
        lines: list[str] = []
        size = 0
        for batch in rows:
            for line in self._lines(batch):
                if lines and (
                    len(lines) == self._rows_at_most or size + len(line) > self._bytes_at_most
                ):
                    yield lines
                    lines, size = [], 0
                lines.append(line)
                size += len(line)
        if lines:
            yield lines

    def _lines(self, batch: pa.RecordBatch) -> list[str]:
        if batch.num_rows == 0:
            return []
        objects = json_objects(batch, self._spec.columns)
        ops = batch.column(OP)
        if self._spec.kind is SinkKind.UPSERT:
            key = [column for column in self._spec.columns if column.name in self._spec.key]
            objects = pc.if_else(pc.equal(ops, RowOp.DELETE), json_objects(batch, key), objects)
        return [
            f'{{"op":"{_NAMES[RowOp(op)]}","row":{row}}}'
            for op, row in zip(ops.to_pylist(), objects.to_pylist(), strict=True)
        ]

    def _connection(self) -> http.client.HTTPConnection:
        host, port = self._url.hostname or "", self._url.port
        if self._url.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(host, port, timeout=self._timeout_s, context=context)
        return http.client.HTTPConnection(host, port, timeout=self._timeout_s)

    def _post(
        self, connection: http.client.HTTPConnection, delivery: Delivery, number: int, body: bytes
    ) -> None:
        path = self._url.path or "/"
        # Other rows have another key: a delivery may be divided differently after an ALTER SINK.
        digest = hashlib.sha256(body).hexdigest()[:16]
        headers = {
            **self._headers,
            "Content-Type": "application/json",
            "Idempotency-Key": f"{delivery.commit_id}-{number}-{digest}",
            "Headwater-Term": str(delivery.term),
        }
        target = f"{path}?{self._url.query}" if self._url.query else path
        connection.request("POST", target, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        if 200 <= answer.status < 300:
            return
        told = self._shown(content[:_SHOWN_ANSWER].decode(errors="replace"))
        detail = f"Request {number} of {delivery.commit_id}: {answer.status} {told}".strip()
        if answer.status >= 500 or answer.status in _LATER:
            raise SinkUnavailable(
                f'the receiver of sink "{self._spec.name}" refuses for now',
                detail=detail,
                hint="It is tried again by itself, with the same key.",
            )
        raise UserError(
            f'the receiver of sink "{self._spec.name}" refuses a request',
            detail=detail,
            hint="Change the receiver or the sink's options, then let the sink go on.",
        )

    def _shown(self, text: str) -> str:
        """What a receiver says, without pieces of address and headers that it may repeat."""
        pieces = [value for _, value in parse_qsl(self._url.query)]
        pieces += [*self._url.path.split("/"), self._url.password or ""]
        pieces += [word for value in self._headers.values() for word in value.split()]
        for piece in pieces:
            if len(piece) >= _SHORTEST_SECRET:
                text = text.replace(piece, "***")
        return self._options.without_secrets(text)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, http.client.HTTPException) as error:
            reason = "no answer in time" if isinstance(error, socket.timeout) else str(error)
            raise SinkUnavailable(
                f'the receiver of sink "{self._spec.name}" does not answer',
                detail=f"{self._url.scheme}://{self._url.hostname}: "
                + self._shown(reason or type(error).__name__),
                hint="It is tried again by itself, with the same key.",
            ) from error


def _body(head: Mapping[str, object], lines: list[str]) -> bytes:
    return f'{json.dumps(head)[:-1]},"rows":[{",".join(lines)}]}}'.encode()


def _headers(options: Options) -> dict[str, str]:
    """The user's headers; ours are not among them."""
    try:
        given = json.loads(options["headers"] or "{}")
    except ValueError:
        given = None
    if not isinstance(given, dict) or not all(isinstance(v, str) for v in given.values()):
        raise ConfigError('option "headers" must be a JSON object of texts')
    if taken := sorted(name for name in given if name.lower() in _OWN_HEADERS):
        raise ConfigError(f'option "headers" cannot set {taken[0]}, which the sink itself sets')
    if options["authorization"]:
        given["Authorization"] = options["authorization"]
    return given

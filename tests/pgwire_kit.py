"""A session with a few fixed answers, a server in a thread, and a client of bare bytes.

statement                 answer
rows N                    N rows (id bigint, name varchar)
endless                   rows without end
values                    one row of every type
echo(int8,text) $1 $2     the parameters, as a row of these types
texts $1 $2               the parameters' texts, untyped
begin, commit, rollback   a transaction's status
sleep                     nothing, until it is cancelled
fail, boom                an error with all its parts; an exception with a secret in it
copy in FORMAT            takes rows (a bigint, b varchar); copy out FORMAT gives them
set NAME VALUE            a setting
"""

import asyncio
import re
import socket
import struct
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pyarrow as pa

from headwater.errors import UserError
from headwater.model import types as t
from headwater.pgwire.house import Limits
from headwater.pgwire.oids import type_of
from headwater.pgwire.server import PgServer
from headwater.pgwire.session import (
    CopyIn,
    CopyOptions,
    CopyOut,
    Described,
    Done,
    Notice,
    ResultColumn,
    Rows,
)
from headwater.pgwire.violation import WireError

NAMED = {
    "bool": t.BOOLEAN, "int2": t.SMALLINT, "int4": t.INTEGER, "int8": t.BIGINT,
    "float4": t.REAL, "float8": t.DOUBLE, "numeric": t.NUMERIC, "text": t.VARCHAR,
    "bytea": t.BYTEA, "date": t.DATE, "time": t.TIME, "timestamp": t.TIMESTAMP,
    "timestamptz": t.TIMESTAMPTZ, "interval": t.INTERVAL, "uuid": t.UUID, "jsonb": t.JSONB,
    "int4[]": t.list_of(t.INTEGER), "text[]": t.list_of(t.VARCHAR), "float8[]": t.list_of(t.DOUBLE),
    "numeric[]": t.list_of(t.NUMERIC), "bool[]": t.list_of(t.BOOLEAN), "uuid[]": t.list_of(t.UUID),
}  # fmt: skip
ID_NAME = (
    ResultColumn(name="id", type=t.BIGINT),
    ResultColumn(name="name", type=t.VARCHAR),
)
A_B = (ResultColumn(name="a", type=t.BIGINT), ResultColumn(name="b", type=t.VARCHAR))
SECRET = "hunter2-in-an-exception"
BATCH = 1000


def failure(message: str, sqlstate: str, position: int = 0) -> UserError:
    error = UserError(message, detail="the detail", hint="the hint")
    error.sqlstate = sqlstate
    error.position = position
    return error


def id_rows(start: int, count: int) -> pa.RecordBatch:
    ids = range(start, start + count)
    return pa.record_batch(
        [pa.array(ids, pa.int64()), pa.array([f"name {i}" for i in ids])], names=["id", "name"]
    )


def casted(value: object, type_: t.DataType) -> pa.Array:
    """A parameter as a column of its type: its text, as Arrow reads it."""
    if isinstance(value, list) or value is None or not isinstance(value, str):
        if type_.kind is t.Kind.LIST and type_.element.arrow == pa.string() and value is not None:
            value = [None if v is None else str(v) for v in value]
        elif type_.arrow == pa.string() and value is not None:
            value = str(value)
        return pa.array([value], type_.arrow)
    if type_.kind in (t.Kind.TIMESTAMP, t.Kind.TIMESTAMPTZ):
        value = re.sub(r"\.(\d+)", lambda m: "." + m[1].ljust(6, "0"), value)
        value = re.sub(r"\+00$", "Z", value)
    return pa.array([value]).cast(type_.arrow)


class Target:
    """Keeps the rows of a COPY."""

    def __init__(self, session: "KitSession") -> None:
        self.session = session
        self.rows: list[tuple[str | None, ...]] = []
        self.batches = 0

    async def write(self, rows: pa.RecordBatch) -> None:
        assert rows.num_rows
        self.batches += 1
        self.rows += list(zip(*(column.to_pylist() for column in rows.columns), strict=True))
        if ("13", "refused") in self.rows:
            raise failure("row 13 is refused", "23505")

    async def finish(self) -> int:
        self.session.world.copied += self.rows
        return len(self.rows)

    async def abort(self) -> None:
        self.session.world.aborted += 1


class KitSession:
    """Answers the statements of the module's table."""

    def __init__(self, world: "KitSessions", options: dict[str, str]) -> None:
        self.world = world
        self.transaction_status = "I"
        self.settings = {k: v for k, v in options.items() if k in ("application_name", "TimeZone")}
        self.closed = 0
        self._cancelled = asyncio.Event()

    async def simple(self, text: str):
        for statement in text.split(";"):
            if statement.strip():
                yield await self._run(statement.strip(), ())

    async def describe(self, text: str, parameter_oids) -> Described:
        text = text.strip()
        count = max([0, *(int(n) for n in re.findall(r"\$(\d+)", text))])
        if text.startswith("fail at parse"):
            raise failure("cannot parse", "42601", 6)
        types = self._echoed(text)
        given = [type_of(oid) for oid in parameter_oids]
        parameters = [
            (given[i] if i < len(given) and given[i] else None)
            or (types[i] if i < len(types) else None)
            for i in range(max(count, len(given)))
        ]
        columns = None
        if types:
            columns = tuple(ResultColumn(name=f"c{i}", type=ty) for i, ty in enumerate(types))
        elif text.startswith(("rows", "endless", "unsendable")):
            columns = ID_NAME
        elif text.startswith("texts"):
            columns = tuple(ResultColumn(name=f"c{i}", type=t.VARCHAR) for i in range(count))
        elif text in self.world.fixed:
            columns = self.world.fixed[text][0]
        return Described(parameters=tuple(parameters), columns=columns)

    async def execute(self, text: str, parameters):
        text = text.strip().removesuffix(";")
        return await self._run(text, parameters) if text else None

    def fail(self) -> None:
        self.world.failures += 1
        if self.transaction_status == "T":
            self.transaction_status = "E"

    def cancel(self) -> None:
        self.world.cancels += 1
        self._cancelled.set()

    async def close(self) -> None:
        self.closed += 1
        self.world.closed += 1
        assert self.closed == 1

    def _echoed(self, text: str) -> list[t.DataType]:
        match = re.match(r"echo\(([^)]*)\)", text)
        return [NAMED[name.strip()] for name in match[1].split(",")] if match else []

    async def _run(self, text: str, parameters):  # noqa: PLR0911  one per statement
        verb, _, rest = text.partition(" ")
        self.world.seen.append(text)
        if types := self._echoed(text):
            arrays = [casted(p.value, ty) for p, ty in zip(parameters, types, strict=True)]
            columns = tuple(ResultColumn(name=f"c{i}", type=ty) for i, ty in enumerate(types))
            return Rows(columns=columns, batches=self._given(arrays))
        match verb.lower():
            case "rows" | "texts" | "endless" | "unsendable":
                return self._rows(verb, rest, parameters)
            case "fail":
                raise failure("it failed", "42601", 6)
            case "boom":
                raise RuntimeError(SECRET)
            case "sleep":
                self._cancelled.clear()
                await self._cancelled.wait()
                raise failure("canceling statement due to user request", "57014")
            case "copy":
                return self._copy(*rest.split(" ", 1))
            case "set":
                name, value = rest.replace("=", " ", 1).split(None, 1)
                self.settings[name] = value
                return Done(tag="SET", notices=(Notice(message=f"{name} is set"),))
            case "begin" | "commit" | "rollback":
                self.transaction_status = "T" if verb.lower() == "begin" else "I"
                return Done(tag=verb.upper())
        if text in self.world.fixed:
            columns, batch = self.world.fixed[text]
            return Rows(columns=columns, batches=self._given(batch.columns))
        if verb.upper() in ("INSERT", "DEALLOCATE", "DISCARD", "CLOSE"):
            return Done(tag="INSERT 0 1" if verb.upper() == "INSERT" else text.upper())
        raise failure(f"unknown statement {text[:50]!r}", "42601", 1)

    def _rows(self, verb: str, rest: str, parameters):
        if verb == "texts":
            columns = tuple(
                ResultColumn(name=f"c{i}", type=t.VARCHAR) for i in range(len(parameters))
            )
            arrays = [pa.array([p.text], pa.string()) for p in parameters]
            return Rows(columns=columns, batches=self._given(arrays))
        if verb == "unsendable":
            return Rows(columns=ID_NAME, batches=self._given([pa.array([1]), pa.array([b"\xff"])]))
        count = int(rest or (1 << 62)) if verb == "rows" else 1 << 62
        return Rows(columns=ID_NAME, batches=self._ids(count))

    def _copy(self, direction: str, spec: str):
        format_, *flags = spec.split()
        options = CopyOptions(format=format_, header="header" in flags)
        if direction == "in":
            return CopyIn(columns=A_B, target=Target(self), options=options)
        batch = self.world.to_copy
        return CopyOut(columns=A_B, batches=self._given(batch.columns), options=options)

    async def _given(self, arrays) -> AsyncIterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_arrays(list(arrays), names=[str(i) for i in range(len(arrays))])

    async def _ids(self, count: int) -> AsyncIterator[pa.RecordBatch]:
        try:
            for start in range(0, count, BATCH):
                self.world.given += BATCH
                yield id_rows(start, min(BATCH, count - start))
                await asyncio.sleep(0)
        finally:
            self.world.streams_closed += 1


class KitSessions:
    """Opens sessions, and keeps what they saw."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.copied: list[tuple[str | None, ...]] = []
        self.opened = self.closed = self.cancels = self.failures = 0
        self.aborted = self.given = self.streams_closed = 0
        self.options: list[dict[str, str]] = []
        self.fixed: dict[str, tuple[tuple[ResultColumn, ...], pa.RecordBatch]] = {}
        self.to_copy = pa.record_batch(
            [pa.array([1, None]), pa.array(["a\tb\\", None])], names=["a", "b"]
        )
        number = (ResultColumn(name="value", type=t.BIGINT),)
        self.fixed_number = (number, pa.record_batch([pa.array([7])], names=["value"]))
        for text, value in (
            ("select pg_catalog.version()", "PostgreSQL 14.0 (Headwater)"),
            ("select current_schema()", "public"),
            ("show standard_conforming_strings", "on"),
            ("show transaction isolation level", "read committed"),
        ):
            column = ResultColumn(name="value", type=t.VARCHAR)
            self.fixed[text] = ((column,), pa.record_batch([pa.array([value])], names=["value"]))

    async def open(self, user, database, options, peer) -> KitSession:
        if database == "missing":
            raise failure('database "missing" does not exist', "3D000")
        self.opened += 1
        self.options.append({"user": user, "database": database, "peer": peer, **options})
        return KitSession(self, dict(options))


@contextmanager
def served(**choices) -> Iterator[SimpleNamespace]:
    """A server in a thread of its own; gives its address and what its sessions saw."""
    world = KitSessions()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def call(coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(60)

    server = PgServer(world, port=0, **{"limits": Limits(), **choices})
    try:
        host, port = call(server.start())
        yield SimpleNamespace(
            host=host,
            port=port,
            world=world,
            server=server,
            call=call,
            dsn=f"host={host} port={port} user=root dbname=dev",
        )
    finally:
        call(server.stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


@contextmanager
def read_or_refused(*codes: str) -> Iterator[None]:
    """What is inside succeeds, or is refused with one of these codes."""
    try:
        yield
    except WireError as error:
        if error.sqlstate not in codes:
            raise


def frame(kind: bytes, body: bytes = b"") -> bytes:
    return kind + struct.pack(">i", len(body) + 4) + body


def start_up(**options: str) -> bytes:
    pairs = {"user": "root", "database": "dev", **options}
    body = struct.pack(">i", 196608)
    body += b"".join(k.encode() + b"\0" + v.encode() + b"\0" for k, v in pairs.items()) + b"\0"
    return struct.pack(">i", len(body) + 4) + body


class BareClient:
    """Says exactly the bytes it is told to, and reads what comes back as messages."""

    def __init__(self, place: SimpleNamespace, *, start: bool = True) -> None:
        self.socket = socket.create_connection((place.host, place.port), timeout=60)
        self.buffer = b""
        if start:
            self.send(start_up())
            self.greeting = self.until("Z")

    def __enter__(self) -> "BareClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, *parts: bytes) -> None:
        self.socket.sendall(b"".join(parts))

    def message(self) -> tuple[str, bytes] | None:
        """The next message; None when the server hung up."""
        while len(self.buffer) < 5 or len(self.buffer) < 1 + self._size():
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionError:
                return None
            if not data:
                return None
            self.buffer += data
        end = 1 + self._size()
        whole, self.buffer = self.buffer[:end], self.buffer[end:]
        return chr(whole[0]), whole[5:]

    def until(self, kind: str) -> list[tuple[str, bytes]]:
        """All messages up to one of this kind, or up to the end."""
        found = []
        while (message := self.message()) is not None:
            found.append(message)
            if message[0] == kind:
                return found
        return found

    def kinds(self, until: str = "Z") -> str:
        return "".join(kind for kind, _ in self.until(until))

    def _size(self) -> int:
        return int.from_bytes(self.buffer[1:5], "big")


def error_fields(body: bytes) -> dict[str, str]:
    return {part[:1].decode(): part[1:].decode() for part in body.split(b"\0") if part}

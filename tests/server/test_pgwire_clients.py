"""Real clients against the real server: psycopg, asyncpg, psql, SQLAlchemy."""

import datetime as dt
import decimal
import json
import os
import shutil
import ssl
import subprocess
import threading
import time
import uuid

import asyncpg
import psycopg
import pytest
import sqlalchemy

from pgwire_kit import SECRET, served
from servers import not_available

PASSWORD = "pässword "
VALUES = [
    ("bool", True),
    ("int2", -32768),
    ("int4", 2**31 - 1),
    ("int8", -(2**63)),
    ("float4", 1.5),
    ("float8", 1e-300),
    ("float8", float("inf")),
    ("numeric", decimal.Decimal("-12345678901234567890123456789012345678901234567890.0001")),
    ("numeric", decimal.Decimal("0.00")),
    ("text", "ä\n'\"\\ \U0001f600"),
    ("text", ""),
    ("bytea", b"\x00\xff'\\"),
    ("date", dt.date(1, 1, 2)),
    ("date", dt.date(9999, 12, 30)),
    ("time", dt.time(23, 59, 59, 999999)),
    ("timestamp", dt.datetime(2024, 2, 29, 12, 0, 0, 500000)),  # noqa: DTZ001
    ("timestamptz", dt.datetime(2024, 2, 29, 12, 0, 0, 1, tzinfo=dt.UTC)),
    ("interval", dt.timedelta(days=-3, hours=5, microseconds=7)),
    ("uuid", uuid.UUID(int=2**128 - 1)),
    ("int4[]", [1, None, -3]),
    ("text[]", ["a b", "", "NULL", None, 'q"\\', "{,}"]),
    ("float8[]", [1.5, float("-inf")]),
    ("numeric[]", [decimal.Decimal("1.10"), decimal.Decimal("-2")]),
    ("bool[]", [True, False, None]),
    ("uuid[]", [uuid.UUID(int=7)]),
    ("int4[]", []),
]


@pytest.fixture(scope="module")
def place():
    with served() as server:
        yield server


@pytest.fixture
def connection(place):
    with psycopg.connect(place.dsn, autocommit=True) as connection:
        yield connection


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
@pytest.mark.parametrize(("name", "value"), VALUES, ids=str)
def test_psycopg_gets_back_every_value(connection, name, value, binary):
    mark = "%b" if binary else "%t"
    sent = f"echo({name},{name}) {mark} {mark}"
    [row] = connection.execute(sent, (value, None), binary=binary).fetchall()
    assert row == (value, None)
    assert type(row[0]) is type(value)


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
def test_psycopg_json(connection, binary):
    value = {"a": [1, None, "ä"]}
    sent = psycopg.types.json.Jsonb(value)
    mark = "%b" if binary else "%t"
    assert connection.execute(f"echo(jsonb) {mark}", [sent], binary=binary).fetchone() == (value,)


def test_psycopg_many_rows_and_statements(connection):
    rows = connection.execute("rows 10000").fetchall()
    assert rows == [(i, f"name {i}") for i in range(10_000)]
    cursor = connection.execute("rows 1; insert x; rows 2")
    assert cursor.statusmessage == "SELECT 1"
    assert cursor.nextset()
    assert (cursor.statusmessage, cursor.rowcount) == ("INSERT 0 1", 1)
    assert cursor.nextset()
    assert cursor.fetchall() == [(0, "name 0"), (1, "name 1")]
    assert connection.execute("").pgresult.status == psycopg.pq.ExecStatus.EMPTY_QUERY


def test_psycopg_error_has_all_its_parts(connection):
    with pytest.raises(psycopg.errors.SyntaxError) as raised:
        connection.execute("fail")
    told = raised.value.diag
    assert (told.message_primary, told.message_detail, told.message_hint) == (
        "it failed",
        "the detail",
        "the hint",
    )
    assert (told.sqlstate, told.statement_position, told.severity) == ("42601", "6", "ERROR")
    assert connection.execute("rows 1").fetchall() == [(0, "name 0")]


def test_no_word_of_a_foreign_exception(connection, caplog):
    with pytest.raises(psycopg.errors.InternalError) as raised:
        connection.execute("boom")
    assert raised.value.sqlstate == "XX000"
    assert SECRET not in str(raised.value)
    assert "RuntimeError" in caplog.text
    assert SECRET not in caplog.text


def test_psycopg_transaction_status(place):
    status = psycopg.pq.TransactionStatus
    with psycopg.connect(place.dsn) as connection:
        connection.execute("rows 1")
        assert connection.info.transaction_status == status.INTRANS
        with pytest.raises(psycopg.errors.SyntaxError):
            connection.execute("fail")
        assert connection.info.transaction_status == status.INERROR
        connection.rollback()
        with pytest.raises(psycopg.errors.InvalidTextRepresentation):
            connection.execute("echo(int4) %s", ["no number"])
        assert connection.info.transaction_status == status.INERROR
        connection.rollback()
        assert connection.info.transaction_status == status.IDLE


def test_psycopg_pipeline(connection):
    with connection.pipeline():
        cursors = [connection.execute("echo(int8) %s", [i]) for i in range(500)]
    assert [cursor.fetchone() for cursor in cursors] == [(i,) for i in range(500)]
    with pytest.raises(psycopg.errors.SyntaxError), connection.pipeline():  # noqa: PT012
        connection.execute("fail at parse %s", [1])
        connection.execute("rows 1")
    assert connection.execute("rows 1").fetchall() == [(0, "name 0")]


def test_psycopg_prepared_statements(connection):
    for i in range(20):
        got = connection.execute("echo(int8,text) %s %s", [i, str(i)], prepare=True).fetchone()
        assert got == (i, str(i))


def test_psycopg_notices_and_settings(connection):
    heard = []
    connection.add_notice_handler(lambda said: heard.append(said.message_primary))
    connection.execute("set TimeZone Asia/Kolkata")
    assert heard == ["TimeZone is set"]
    assert str(connection.info.timezone) == "Asia/Kolkata"
    moment = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    cursor = connection.execute("echo(timestamptz) %s", [moment])
    assert cursor.pgresult.get_value(0, 0) == b"2024-01-01 05:30:00+05:30"
    assert cursor.fetchone() == (moment,)


COPIED = [(1, "a b"), (2, None), (3, "tab\t \\ back\nline \"quote\" , 'ä'"), (4, ""), (None, "\\N")]


@pytest.mark.parametrize("format_", ["text", "binary"])
def test_psycopg_copies_in(place, connection, format_):
    place.world.copied.clear()
    cursor = connection.cursor()
    with cursor.copy(f"copy in {format_}") as copy:
        if format_ == "binary":
            copy.set_types(["int8", "text"])
        for row in COPIED:
            copy.write_row(row)
    assert cursor.statusmessage == "COPY 5"
    assert [(None if a is None else int(a), b) for a, b in place.world.copied] == COPIED


def test_psycopg_copies_csv_in(place, connection):
    place.world.copied.clear()
    with connection.cursor().copy("copy in csv header") as copy:
        for char in b'a,b\n1,"x ""y"", z"\n2,\n3,""\n4,"two\nlines"\r\n5,plain':
            copy.write(bytes([char]))
    expected = [("1", 'x "y", z'), ("2", None), ("3", ""), ("4", "two\nlines"), ("5", "plain")]
    assert place.world.copied == expected


def test_a_copy_that_fails_leaves_the_connection_whole(place, connection):
    place.world.copied.clear()
    aborted = place.world.aborted
    with pytest.raises(psycopg.errors.UniqueViolation):  # noqa: PT012
        with connection.cursor().copy("copy in text") as copy:
            for _ in range(3):
                copy.write(b"13\trefused\n" * 20_000)
    with pytest.raises(psycopg.errors.BadCopyFileFormat, match="missing data"):
        with connection.cursor().copy("copy in text") as copy:
            copy.write(b"1\n")
    with pytest.raises(ZeroDivisionError), connection.cursor().copy("copy in text") as copy:  # noqa: PT012
        copy.write(b"1\tx\n")
        raise ZeroDivisionError
    assert place.world.aborted == aborted + 3
    assert place.world.copied == []
    assert connection.execute("rows 1").fetchall() == [(0, "name 0")]


@pytest.mark.parametrize("format_", ["text", "binary"])
def test_psycopg_copies_out(connection, format_):
    with connection.cursor().copy(f"copy out {format_}") as copy:
        copy.set_types(["int8", "text"])
        assert list(copy.rows()) == [(1, "a\tb\\"), (None, None)]
    assert connection.execute("rows 1").fetchall() == [(0, "name 0")]


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_psycopg_cancels(place, connection):
    world = place.world
    begun = world.seen.count("sleep")

    def cancel():
        until(lambda: world.seen.count("sleep") > begun)
        connection.cancel_safe()

    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(psycopg.errors.QueryCanceled):
        connection.execute("sleep")
    thread.join()
    assert connection.execute("rows 1").fetchall() == [(0, "name 0")]
    cancels = world.cancels
    with pytest.raises(psycopg.errors.QueryCanceled):  # noqa: PT012
        with connection.cursor().copy("copy in text") as copy:
            copy.write(b"1\tx\n")
            connection.cancel_safe()
            until(lambda: world.cancels > cancels)


def test_psycopg_unknown_database(place):
    with pytest.raises(psycopg.OperationalError, match='database "missing" does not exist'):
        psycopg.connect(place.dsn.replace("dev", "missing"))
    with pytest.raises(psycopg.OperationalError, match='role "nobody" does not exist'):
        psycopg.connect(place.dsn.replace("root", "nobody"))


def test_start_up_settings_reach_the_session(place):
    with psycopg.connect(place.dsn, options="-c a.b=1 --c-d=x\\ y", application_name="ann"):
        pass
    seen = place.world.options[-1]
    assert (seen["a.b"], seen["c_d"], seen["application_name"]) == ("1", "x y", "ann")
    assert (seen["user"], seen["database"], seen["peer"]) == ("root", "dev", "127.0.0.1")


async def test_asyncpg_types_are_binary(place):
    connection = await asyncpg.connect(
        host=place.host, port=place.port, user="root", database="dev"
    )
    try:
        # asyncpg asks the catalog about arrays before it uses one, and there is no catalog here.
        for name, value in (pair for pair in VALUES if "[" not in pair[0]):
            got = await connection.fetchval(f"echo({name}) $1", value)
            assert got == value, name
        got = await connection.fetchval("echo(jsonb) $1", json.dumps({"a": 1}))
        assert json.loads(got) == {"a": 1}
        prepared = await connection.prepare("echo(int8,text) $1 $2")
        assert [p.name for p in prepared.get_parameters()] == ["int8", "varchar"]
        assert [a.name for a in prepared.get_attributes()] == ["c0", "c1"]
        assert list(await prepared.fetchrow(1, "x")) == [1, "x"]
    finally:
        await connection.close()


async def test_asyncpg_cursors_and_copy(place):
    connection = await asyncpg.connect(
        host=place.host, port=place.port, user="root", database="dev"
    )
    try:
        closed = place.world.streams_closed
        async with connection.transaction():
            cursor = await connection.cursor("rows 4500")
            assert [row[0] for row in await cursor.fetch(1)] == [0]
            assert [row[0] for row in await cursor.fetch(999)] == list(range(1, 1000))
            assert await connection.fetchval("echo(int8) $1", 7) == 7
            assert len(await cursor.fetch(5000)) == 3500
            assert await cursor.fetch(5) == []
            half_read = await connection.cursor("rows 4500")
            await half_read.fetch(1)
        assert place.world.streams_closed == closed + 2
        with pytest.raises(asyncpg.PostgresSyntaxError):
            await connection.fetch("fail")
        place.world.copied.clear()
        await connection.execute("rows 1")
        records = [tuple(row) async for row in _rows_of(connection)]
        assert len(records) == 10
    finally:
        await connection.close()


async def _rows_of(connection):
    async with connection.transaction():
        async for row in connection.cursor("rows 10", prefetch=3):
            yield row


def psql(place, *arguments, text="", **environment):
    if shutil.which("psql") is None:
        not_available("psql is not installed")
    return subprocess.run(
        [
            "psql",
            "-X",
            "-h",
            place.host,
            "-p",
            str(place.port),
            "-U",
            "root",
            "-d",
            "dev",
            *arguments,
        ],
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PGCONNECT_TIMEOUT": "60", "LC_ALL": "C.UTF-8", **environment},
    )


def test_psql(place):
    got = psql(place, "-At", "-c", "rows 2")
    assert (got.stdout, got.returncode) == ("0|name 0\n1|name 1\n", 0)
    got = psql(place, text="rows 1;\nbroken;\nset x 1;\n\\echo :SERVER_VERSION_NAME\n")
    assert "(1 row)" in got.stdout
    assert "ERROR:  unknown statement 'broken'" in got.stderr
    assert "LINE 1: broken;\n        ^" in got.stderr
    assert "HINT:  the hint" in got.stderr
    assert "NOTICE:  x is set" in got.stderr
    assert "14.0 (Headwater)" in got.stdout


def test_psql_copies(place):
    place.world.copied.clear()
    got = psql(place, "-c", "copy in text", text="1\tx\n2\t\\N\n")
    assert (got.stdout, place.world.copied) == ("COPY 2\n", [("1", "x"), ("2", None)])
    assert psql(place, "-c", "copy out text").stdout == "1\ta\\tb\\\\\n\\N\t\\N\n"
    assert psql(place, "-c", "copy out csv header").stdout == "a,b\n1,a\tb\\\n,\n"


def test_sqlalchemy_connects(place):
    url = f"postgresql+psycopg://root@{place.host}:{place.port}/dev"
    engine = sqlalchemy.create_engine(url, use_native_hstore=False)
    try:
        with engine.connect() as connection:
            assert connection.exec_driver_sql("rows 2").fetchall() == [(0, "name 0"), (1, "name 1")]
        assert engine.dialect.server_version_info[:2] == (14, 0)
    finally:
        engine.dispose()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    if shutil.which("openssl") is None:
        not_available("openssl is not installed")
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-keyout",
            folder / "key.pem",
            "-out",
            folder / "cert.pem",
        ],
        check=True,
        capture_output=True,
    )
    return folder


@pytest.fixture(scope="module")
def guarded(certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    with served(tls=context, users={"ann": PASSWORD, "root": None}) as place:
        yield place


@pytest.mark.parametrize("mode", ["disable", "require", "verify-full"])
async def test_password_and_tls(guarded, certificate, mode):
    verified = f"sslrootcert={certificate}/cert.pem" if mode == "verify-full" else ""
    dsn = f"host=127.0.0.1 port={guarded.port} user=ann dbname=dev sslmode={mode} {verified}"
    with psycopg.connect(dsn, password=PASSWORD, autocommit=True) as connection:
        assert connection.pgconn.ssl_in_use == (mode != "disable")
        assert len(connection.execute("rows 50000").fetchall()) == 50_000
    for user, password in (("ann", "wrong"), ("eve", PASSWORD), ("eve", "x"), ("ann", "")):
        with pytest.raises(psycopg.OperationalError) as raised:
            psycopg.connect(dsn.replace("user=ann", f"user={user}"), password=password)
        if password:
            assert f'password authentication failed for user "{user}"' in str(raised.value)
            assert password not in str(raised.value).replace("password", "")
    connection = await asyncpg.connect(
        host="127.0.0.1", port=guarded.port, user="ann", password=PASSWORD, database="dev",
        ssl=mode if mode != "verify-full" else False,
    )  # fmt: skip
    assert await connection.fetchval("echo(int8) $1", 1) == 1
    await connection.close()


def test_psql_with_password_and_tls(guarded):
    got = psql(
        guarded, "-At", "-U", "ann", "-c", "rows 1", PGPASSWORD=PASSWORD, PGSSLMODE="require"
    )
    assert got.stdout == "0|name 0\n", got.stderr

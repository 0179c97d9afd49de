"""A small shop as facts, the same shop as statements for a real PostgreSQL, and a server of it."""

import asyncio
import datetime as dt
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

from headwater.catalog.relation import (
    ColumnDetail,
    Detail,
    ObjectDef,
    ObjectKind,
    Query,
    Read,
    SourceDef,
    TableDef,
    TableKind,
)
from headwater.catalog.snapshot import CatalogSnapshot
from headwater.model import types as t
from headwater.model.epoch import epoch_at
from headwater.model.schema import Column, Schema
from headwater.pgwire.house import Limits
from headwater.pgwire.server import PgServer
from headwater.pgwire.session import Described, Done, ResultColumn, Rows
from headwater.sql.parse import parse
from headwater.sql.statement import Select
from headwater.system.facts import SessionFacts, SizeFact, SystemFacts
from headwater.system.recognise import reads_only_system
from headwater.system.system_catalog import SystemCatalog

SHOP = """
create table public.users(id bigint primary key, name varchar not null, email varchar(40),
    bio varchar);
create table public.orders(id bigint, line integer, user_id bigint,
    amount numeric(12,2) not null default 0, note varchar, at timestamptz, tags varchar[],
    primary key (id, line));
comment on table orders is 'what was ordered';
comment on column orders.note is 'free text';
create view public.big_orders as select id, amount from orders where amount > 100;
create materialized view public.totals as
    select user_id, sum(amount) as total from orders group by user_id;
create index orders_user on orders(user_id) include (amount);
create schema shop;
create table shop.items(sku varchar primary key, price double precision);
"""
BORN = epoch_at(dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC))


def _schema(key: tuple[str, ...], **columns: t.DataType) -> Schema:
    strict = {"name", "amount"}
    return Schema(
        columns=tuple(Column(name, type_, name not in strict) for name, type_ in columns.items()),
        key=key,
    )


USERS = TableDef(
    id=3, name="users", folder="users-3", created=BORN,
    schema=_schema(("id",), id=t.BIGINT, name=t.VARCHAR, email=t.VARCHAR, bio=t.VARCHAR),
    detail=Detail(
        definition="CREATE TABLE users (...)", columns={"email": ColumnDetail(length=40)}
    ),
)  # fmt: skip
ORDERS = TableDef(
    id=4, name="orders", folder="orders-4", created=BORN,
    schema=_schema(
        ("id", "line"), id=t.BIGINT, line=t.INTEGER, user_id=t.BIGINT, amount=t.decimal(12, 2),
        note=t.VARCHAR, at=t.TIMESTAMPTZ, tags=t.list_of(t.VARCHAR),
    ),
    detail=Detail(
        definition="CREATE TABLE orders (...)", comment="what was ordered",
        columns={
            "amount": ColumnDetail(default="0"), "note": ColumnDetail(comment="free text"),
        },
    ),
)  # fmt: skip
TOTALS = TableDef(
    id=5, name="totals", folder="totals-5", created=BORN, kind=TableKind.MATERIALIZED_VIEW,
    schema=Schema((Column("user_id", t.BIGINT), Column("total", t.NUMERIC)), ("user_id",)),
    detail=Detail(
        definition="CREATE MATERIALIZED VIEW totals AS ...",
        query=Query(
            text="SELECT user_id, sum(amount) AS total FROM orders GROUP BY user_id",
            reads={"orders": Read(relation=4, columns=("user_id", "amount"))},
        ),
    ),
)  # fmt: skip
STORE = TableDef(
    id=6, name="totals_store", folder="store-6", kind=TableKind.STORE,
    schema=Schema((Column("user_id", t.BIGINT),), ("user_id",)),
    detail=Detail(part_of=5),
)  # fmt: skip
ITEMS = TableDef(
    id=10, name="items", folder="items-10", namespace="shop", created=BORN,
    schema=_schema(("sku",), sku=t.VARCHAR, price=t.DOUBLE), source="upstream", upstream="items",
)  # fmt: skip
BIG_ORDERS = ObjectDef(
    id=7, kind=ObjectKind.VIEW, name="big_orders",
    query=Query(
        text="SELECT id, amount FROM orders WHERE amount > 100",
        reads={"orders": Read(relation=4, columns=("id", "amount"))},
    ),
    columns=(Column("id", t.BIGINT), Column("amount", t.decimal(12, 2))), created=BORN,
)  # fmt: skip
ORDERS_USER = ObjectDef(
    id=8, kind=ObjectKind.INDEX, name="orders_user", table=ORDERS.id, keys=("user_id",),
    includes=("amount",), created=BORN,
)  # fmt: skip
SCHEMA = ObjectDef(id=9, kind=ObjectKind.SCHEMA, name="shop")
UPSTREAM = SourceDef(
    id=1, name="upstream", kind="postgres-cdc", created=BORN,
    options={"hostname": "db.example", "port": "5432", "password": "hunter2"},
)  # fmt: skip
SNAPSHOT = CatalogSnapshot(
    sources=(UPSTREAM,),
    tables=(USERS, ORDERS, TOTALS, STORE, ITEMS),
    objects=(BIG_ORDERS, ORDERS_USER, SCHEMA),
)


def shop_facts(**changes) -> SystemFacts:
    """The shop, with a few rows in it."""
    chosen = {
        "snapshot": SNAPSHOT,
        "session": SessionFacts(backend_pid=77),
        "sizes": lambda: {
            3: SizeFact(rows=2, bytes=8192),
            4: SizeFact(rows=1000, bytes=20_000_000),
        },
        **changes,
    }
    return SystemFacts(**chosen)


class SystemSession:
    """A session that knows system tables and nothing else; SET and transactions do nothing."""

    def __init__(self, catalog: SystemCatalog, facts: SystemFacts) -> None:
        self.catalog, self.facts = catalog, facts
        self.transaction_status = "I"
        self.settings: dict[str, str] = {}
        self.seen: list[str] = []

    async def simple(self, text: str):
        for statement in parse(text):
            yield self._run(statement, ())

    async def describe(self, text: str, parameter_oids) -> Described:
        [statement] = parse(text) or [None]
        if not isinstance(statement, Select):
            return Described(columns=None if "show" not in text.lower() else _shown())
        found = self.catalog.describe(statement.query, self.facts)
        return Described(
            parameters=found.parameters,
            columns=_columns(found.columns),
            parameter_oids=found.parameter_oids,
        )

    async def execute(self, text: str, parameters):
        statements = parse(text)
        return self._run(statements[0], [p.value for p in parameters]) if statements else None

    def _run(self, statement, parameters):
        self.seen.append(statement.text)
        if isinstance(statement, Select):
            assert reads_only_system(statement.query), statement.text
            rows = self.catalog.answer(statement.query, self.facts, parameters)
            return Rows(columns=_columns(rows.columns), batches=_batches(rows.table))
        words = statement.text.lower().split()
        if words[0] == "show":
            name = "transaction_isolation" if words[1] == "transaction" else words[1]
            rows = self.catalog.answer(f"SELECT current_setting('{name}')", self.facts)
            return Rows(columns=_shown(), batches=_batches(rows.table))
        self.transaction_status = {"begin": "T", "start": "T"}.get(words[0], "I")
        return Done(tag=words[0].upper())

    def fail(self) -> None: ...

    def cancel(self) -> None: ...

    async def close(self) -> None: ...


def _shown() -> tuple[ResultColumn, ...]:
    return (ResultColumn(name="setting", type=t.VARCHAR),)


def _columns(columns) -> tuple[ResultColumn, ...]:
    return tuple(ResultColumn(name=c.name, type=c.type, oid=c.oid) for c in columns)


async def _batches(table):
    for batch in table.to_batches():
        yield batch


class SystemSessions:
    """Opens sessions over one catalog."""

    def __init__(self, facts: SystemFacts) -> None:
        self.catalog, self.facts = SystemCatalog(), facts
        self.opened: list[SystemSession] = []

    async def open(self, user, database, options, peer) -> SystemSession:
        self.opened.append(SystemSession(self.catalog, self.facts))
        return self.opened[-1]


@contextmanager
def shop_served(**changes) -> Iterator[SimpleNamespace]:
    """The shop behind the wire protocol, in a thread of its own."""
    sessions = SystemSessions(shop_facts(**changes))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def call(coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(60)

    server = PgServer(sessions, port=0, limits=Limits())
    try:
        host, port = call(server.start())
        yield SimpleNamespace(
            host=host, port=port, sessions=sessions, dsn=f"postgresql://root@{host}:{port}/dev"
        )
    finally:
        call(server.stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
        sessions.catalog.close()


def recorded(name: str) -> list[tuple[str, str]]:
    """Queries that clients send: what for, and the text."""
    path = Path(__file__).parent / "unit" / "system" / "queries" / f"{name}.sql"
    found = []
    for part in re.split(r"\n(?=-- )", path.read_text()):
        label, _, text = part.partition("\n")
        found.append((label.removeprefix("-- "), text.strip()))
    return found


def rows(answer) -> list[tuple]:
    """The rows of an answer as tuples; two columns may have one name."""
    return list(zip(*(column.to_pylist() for column in answer.table.columns), strict=True))

"""Records, owners and ledgers for the ledger's tests."""

import dataclasses
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import select

from headwater.ledger.fence import Owner
from headwater.ledger.ledger import Ledger
from headwater.ledger.tables import EPOCH, FACT, FENCE, MANIFEST, PIN
from headwater.model.epoch import Epoch
from headwater.model.ids import TableId, Term
from headwater.model.record import EpochRecord
from headwater.model.schema import Column, Schema
from headwater.model.table_commit import ChangeFile, DataFile, DeletionVector, TableCommit
from headwater.model.types import BIGINT, VARCHAR, decimal, list_of

SCHEMA_OF_ORDERS = Schema(
    (Column("id", BIGINT, False), Column("who", list_of(VARCHAR)), Column("sum", decimal(10, 2))),
    ("id",),
)


def owner(**changes: Any) -> Owner:
    """This process, under a fresh token."""
    return dataclasses.replace(Owner.this_process(), **changes)


def elsewhere() -> Owner:
    """A process on another machine."""
    return owner(host="other", machine="other/1", pid=1)


def record(epoch: int, after: int, term: int, **rest: Any) -> EpochRecord:
    return EpochRecord(epoch=Epoch(epoch), after=Epoch(after), term=Term(term), **rest)


def full_record(epoch: int, after: int, term: int) -> EpochRecord:
    """A record with something in every field."""
    file = DataFile(path="data/a.parquet", bytes=7, rows=3, first_vnode=0, last_vnode=255)
    dead = DeletionVector(path="dead/a.bin", offset=1, bytes=40, cardinality=2)
    commit = TableCommit(
        table=TableId(1),
        version=4,
        added=(file,),
        dead=(("data/b.parquet", dead),),
        changes=(ChangeFile(path="log/a.parquet", bytes=9, rows=5),),
        folded=("data/c.parquet",),
        rewritten=("data/a.parquet",),
        schema=SCHEMA_OF_ORDERS,
    )
    return record(
        epoch,
        after,
        term,
        sealed=(Epoch(epoch - 1), Epoch(epoch)),
        tables=(commit, TableCommit(table=TableId(2), version=1)),
        positions={"shop": "0/16B3748", "größe": "日本"},
        progress={"job 1": '{"rows": 10}'},
        log_ends={"sink 1": "17"},
        sinks={"sink 1": "delivered"},
        horizons={1: Epoch(2)},
    )


def rows(ledger: Ledger) -> dict[str, list[Any]]:
    """Everything in the ledger's tables, except for signs of life."""
    with ledger.reading() as connection:
        found = {
            table.name: sorted(map(tuple, connection.execute(select(table))))
            for table in (EPOCH, FACT, MANIFEST, PIN)
        }
        found["head"] = [connection.execute(select(FENCE.c.term, FENCE.c.head)).one()]
        return found


class OpenLedgers:
    """Ledgers on the database that the fixture `url` of a subclass gives."""

    @pytest.fixture
    def open_ledger(self, url: str) -> Iterator[Callable[..., Ledger]]:
        opened: list[Ledger] = []

        def open_one(**options: Any) -> Ledger:
            opened.append(Ledger.open(url, **options))
            return opened[-1]

        yield open_one
        for ledger in opened:
            ledger.close()

    @pytest.fixture
    def ledger(self, open_ledger: Callable[..., Ledger]) -> Ledger:
        return open_ledger()

    @pytest.fixture
    def term(self, ledger: Ledger) -> Term:
        return ledger.take_over(owner())


def flip(value: bytes, index: int) -> bytes:
    """The same bytes with one bit flipped."""
    changed = bytearray(value)
    changed[index] ^= 0x10
    return bytes(changed)


def in_threads(run: Callable[[int], None], count: int) -> None:
    """Run in several threads at once; what one raises is raised here."""
    failures: list[BaseException] = []

    def guarded(index: int) -> None:
        try:
            run(index)
        except BaseException as error:
            failures.append(error)

    threads = [
        threading.Thread(target=guarded, args=(index,), daemon=True) for index in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures, failures
    assert not any(thread.is_alive() for thread in threads)

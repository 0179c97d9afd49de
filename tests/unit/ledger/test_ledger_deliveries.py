"""Deliveries in the ledger: fenced, repeatable, verified, and only ever in order."""

import pytest
from sqlalchemy import update

from headwater.errors import BrokenInvariant, DamagedState, Fenced
from headwater.ledger.deliveries import (
    DeliveryBook,
    DeliveryState,
    StoredDelivery,
    read_deliveries,
)
from headwater.ledger.ledger import Ledger
from headwater.ledger.tables import DELIVERY
from headwater.model.epoch import Epoch
from ledger_kit import owner


@pytest.fixture
def ledger(tmp_path):
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.db")
    yield ledger
    ledger.close()


@pytest.fixture
def book(ledger):
    return DeliveryBook(ledger, ledger.take_over(owner()))


def test_a_delivery_from_beginning_to_end(book):
    assert book.of("s") == StoredDelivery(sink="s")
    for _ in range(2):
        book.preparing("s", after=Epoch(0), epoch=Epoch(7), rows=3)
        assert book.of("s") == StoredDelivery(
            sink="s", state=DeliveryState.PREPARING, epoch=Epoch(7), rows=3
        )
    receipts = [b"", b"\x00one", b"two" * 1000]
    for _ in range(2):
        book.prepared("s", after=Epoch(0), epoch=Epoch(7), rows=3, receipts=receipts)
        assert book.of("s").receipts == tuple(receipts)
        assert book.of("s").state is DeliveryState.PREPARED
    for _ in range(2):
        book.committed("s", Epoch(7))
        assert book.of("s") == StoredDelivery(sink="s", delivered=Epoch(7), shown=Epoch(7))
    book.committed("s", Epoch(9), shown=False)
    assert book.of("s") == StoredDelivery(sink="s", delivered=Epoch(9), shown=Epoch(7))
    book.committed("s", Epoch(8), shown=False)
    assert book.of("s").delivered == 9, "a mark goes back only when a user says so"
    book.rewound("s", Epoch(2))
    assert book.of("s") == StoredDelivery(sink="s", delivered=Epoch(2))


def test_what_was_begun_can_be_given_up_or_begun_anew(book):
    book.prepared("s", after=Epoch(3), epoch=Epoch(7), rows=1, receipts=[b"x"])
    book.preparing("s", after=Epoch(3), epoch=Epoch(7), rows=1)
    assert book.of("s").receipts == ()
    for _ in range(2):
        book.aborted("s")
        assert book.of("s") == StoredDelivery(sink="s", delivered=Epoch(3))
    book.prepared("s", after=Epoch(3), epoch=Epoch(5), rows=1)


def test_deliveries_out_of_order_are_refused(book):
    book.prepared("s", after=Epoch(3), epoch=Epoch(7), rows=1)
    for wrong in ({"after": 3, "epoch": 8}, {"after": 4, "epoch": 7}, {"after": 2, "epoch": 7}):
        with pytest.raises(BrokenInvariant):
            book.prepared("s", rows=1, **wrong)
    with pytest.raises(BrokenInvariant):
        book.committed("s", Epoch(6))
    with pytest.raises(BrokenInvariant):
        book.prepared("t", after=Epoch(3), epoch=Epoch(3), rows=1)
    assert book.of("s").epoch == 7


def test_an_engine_that_was_replaced_writes_nothing(ledger, book):
    book.prepared("s", after=Epoch(0), epoch=Epoch(7), rows=1, receipts=[b"x"])
    before = book.of("s")
    ledger.take_over(owner(), force=True)
    for write in (
        lambda: book.preparing("s", after=Epoch(0), epoch=Epoch(7), rows=1),
        lambda: book.prepared("s", after=Epoch(0), epoch=Epoch(7), rows=1),
        lambda: book.committed("s", Epoch(7)),
        lambda: book.aborted("s"),
        lambda: book.rewound("s", Epoch(1)),
        lambda: book.forget("s"),
    ):
        with pytest.raises(Fenced):
            write()
    assert book.of("s") == before


def test_sinks_are_apart_and_can_be_forgotten(ledger, book):
    book.committed("s", Epoch(7))
    book.committed("t", Epoch(8))
    with ledger.reading() as connection:
        assert {k: v.delivered for k, v in read_deliveries(connection).items()} == {"s": 7, "t": 8}
    for _ in range(2):
        book.forget("s")
    assert book.of("s") == StoredDelivery(sink="s")
    assert book.of("t").delivered == 8


@pytest.mark.parametrize(
    "change", [{"delivered": 5}, {"state": "lost"}, {"receipts": b"junk"}, {"rows": 2}]
)
def test_a_damaged_row_is_named_and_not_guessed(ledger, book, change):
    book.prepared("s", after=Epoch(0), epoch=Epoch(7), rows=1, receipts=[b"x"])
    with ledger.transaction() as connection:
        connection.execute(update(DELIVERY).values(**change))
    with pytest.raises(DamagedState, match="deliveries to s"):
        book.of("s")

"""The delivery machine by itself: what it does from every start, and after every answer."""

from random import Random

import pytest

from headwater.errors import (
    BrokenInvariant,
    Fenced,
    LedgerUnavailable,
    SinkUnavailable,
    StagedRowsGone,
    StorageUnavailable,
    UserError,
)
from headwater.ledger.deliveries import DeliveryState, StoredDelivery
from headwater.logstore.items import LogBarrier, LogChunk, Offset
from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.ids import Term
from headwater.model.rate_limit import RateLimit, RateLimiter
from headwater.model.vnode import VnodeBitmap
from headwater.sinks.machine import DeliveryMachine
from headwater.sinks.steps import (
    Abort,
    Announce,
    AwaitCommit,
    Begin,
    Begun,
    Collected,
    Commit,
    Deliver,
    Done,
    Failed,
    Interrupted,
    Mark,
    Prepare,
    Prepared,
    ReadOn,
    RewindTo,
    Seek,
    SinkState,
    Store,
    Truncate,
)
from headwater.sinks.trouble import Backoff, Trouble

STAGED, TRANSACTIONAL = True, False


def machine(*, staged=TRANSACTIONAL, limit=None, **more):
    return DeliveryMachine(
        sink="s",
        term=Term(4),
        staged=staged,
        limiter=RateLimiter(RateLimit(rows_per_s=limit), 0.0),
        trouble=Trouble(Random(3).random, Backoff(first_s=1.0, longest_s=16.0)),
        **more,
    )


def chunk(epoch, number=0, count=2):
    return LogChunk(epoch=Epoch(epoch), chunk_id=number, first_seq=0, count=count, nbytes=9)


def barrier(epoch, *, checkpoint=True, **more):
    return LogBarrier(epoch=Epoch(epoch), checkpoint=checkpoint, **more)


def stored(**more):
    return StoredDelivery(sink="s", **more)


def answer(tested, event, now=0.0):
    """Take the next instruction, answer it, and give it."""
    doing = tested.next(now)
    tested.happened(event, now)
    tested.check()
    return doing


def started(tested, row=None, target=NO_EPOCH):
    assert answer(tested, Begun(row or stored(), Epoch(target))) == Begin()
    return tested


def names(tested, *events, now=0.0):
    return [type(answer(tested, event, now)).__name__ for event in events]


def collected(*items):
    return [Collected(item) for item in items]


def test_the_steps_of_a_transactional_delivery():
    tested = started(machine())
    assert answer(tested, Done()) == Seek()
    names(tested, *collected(chunk(7), chunk(7, 1), barrier(7)))
    assert answer(tested, Done()) == AwaitCommit(Epoch(7))
    store = answer(tested, Done())
    assert isinstance(store, Store)
    assert (store.delivery.after, store.delivery.epoch, store.delivery.rows) == (0, 7, 4)
    assert store.delivery.commit_id == "s_7"
    deliver = answer(tested, Done())
    assert isinstance(deliver, Deliver)
    assert deliver.delivery == store.delivery
    assert deliver.chunks == (chunk(7), chunk(7, 1))
    assert answer(tested, Done()) == Mark(Epoch(7), shown=True)
    assert answer(tested, Done()) == Truncate(Offset(Epoch(7)))
    assert answer(tested, Interrupted()) == ReadOn()
    assert tested.status().state is SinkState.IDLE


def test_the_steps_of_a_staged_delivery():
    tested = started(machine(staged=STAGED))
    names(tested, Done(), *collected(chunk(7), barrier(7)), Done())
    assert isinstance(answer(tested, Done()), Announce)
    assert isinstance(answer(tested, Prepared((b"1", b"2"))), Prepare)
    assert answer(tested, Done()).receipts == (b"1", b"2")
    commit = answer(tested, Done())
    assert isinstance(commit, Commit)
    assert commit.receipts == (b"1", b"2")
    assert names(tested, Done(), Done()) == ["Mark", "Truncate"]


@pytest.mark.parametrize("staged", [STAGED, TRANSACTIONAL])
@pytest.mark.parametrize(
    ("state", "target"),
    [
        (state, target)
        for state in DeliveryState
        for target in (0, 5, 7)
        # Nothing shows what was never fixed.
        if (state, target) != (DeliveryState.IDLE, 7)
    ],
)
def test_everything_that_a_ledger_may_hold_is_a_start(staged, state, target):
    """With all combinations of ledger and target the rows of epoch 7 arrive, once."""
    row = stored(delivered=Epoch(5), shown=Epoch(5))
    if state is not DeliveryState.IDLE:
        row = row.begun(state, after=Epoch(5), epoch=Epoch(7), rows=2, receipts=[b"r"])
    tested = started(machine(staged=staged), row, target)
    shown, items = [], [chunk(5), barrier(5), chunk(7), barrier(7), barrier(8)]
    for _ in range(40):
        doing = tested.next(0.0)
        match doing:
            case ReadOn() if items:
                tested.happened(Collected(items.pop(0)), 0.0)
            case ReadOn():
                break
            case Prepare():
                tested.happened(Prepared((b"new",)), 0.0)
            case Commit(each) | Deliver(each):
                shown.append(each.epoch)
                tested.happened(Done(), 0.0)
            case _:
                tested.happened(Done(), 0.0)
        tested.check()
    assert shown == ([] if target == 7 else [7])
    assert tested.delivered == 8
    assert not items


def test_a_lost_answer_is_not_a_second_delivery():
    tested = started(machine())
    names(tested, Done(), *collected(chunk(7), barrier(7)), Done(), Done())
    fixed = stored().begun(DeliveryState.PREPARED, after=Epoch(0), epoch=Epoch(7), rows=2)
    assert isinstance(answer(tested, Failed(SinkUnavailable("no answer"))), Deliver)
    assert tested.status().state is SinkState.STALLED
    assert tested.next(0.1) is None
    assert tested.wake_at is not None
    assert answer(tested, Begun(fixed, Epoch(7)), now=2.0) == Begin()
    assert answer(tested, Done(), now=2.0) == Mark(Epoch(7), shown=True)
    assert tested.status().state is SinkState.IDLE


def test_a_mark_whose_answer_was_lost_is_not_written_again():
    tested = started(machine())
    names(tested, Done(), *collected(chunk(7), barrier(7)), Done(), Done(), Done())
    assert answer(tested, Failed(LedgerUnavailable("away"))) == Mark(Epoch(7), shown=True)
    row = stored(delivered=Epoch(7), shown=Epoch(7))
    assert names(tested, Begun(row, Epoch(7)), Done(), now=9.0) == ["Begin", "Truncate"]
    assert isinstance(tested.next(9.0), ReadOn)


def test_parts_that_are_gone_leave_the_ledger_first_and_are_prepared_anew():
    tested = started(machine(staged=STAGED))
    names(tested, Done(), *collected(chunk(7), barrier(7)), Done(), Done())
    names(tested, Prepared((b"old",)), Done())
    assert isinstance(answer(tested, Failed(StagedRowsGone("expired"))), Commit)
    fixed = stored().begun(
        DeliveryState.PREPARED, after=Epoch(0), epoch=Epoch(7), rows=2, receipts=[b"old"]
    )
    answer(tested, Begun(fixed, NO_EPOCH), now=9.0)
    announce, abort = answer(tested, Done(), now=9.0), answer(tested, Done(), now=9.0)
    assert isinstance(announce, Announce)
    assert abort == Abort(announce.delivery, (b"old",))
    assert names(tested, Done(), Prepared((b"new",)), now=9.0) == ["Announce", "Prepare"]
    assert answer(tested, Done(), now=9.0).receipts == (b"new",)
    assert answer(tested, Done(), now=9.0) == Commit(announce.delivery, (b"new",))


def test_a_failed_preparation_is_removed_before_the_next():
    tested = started(machine(staged=STAGED))
    names(tested, Done(), *collected(chunk(7), barrier(7)), Done(), Done())
    assert isinstance(answer(tested, Failed(SinkUnavailable("half"))), Prepare)
    row = stored().begun(DeliveryState.PREPARING, after=Epoch(0), epoch=Epoch(7), rows=2)
    steps = [Begun(row, NO_EPOCH), Done(), Done(), Prepared((b"x",))]
    assert names(tested, *steps, now=9.0) == ["Begin", "Abort", "Announce", "Prepare"]


def test_waits_double_up_to_the_longest_with_jitter_and_begin_anew():
    tested, now, waits = machine(), 0.0, []
    for _ in range(9):
        answer(tested, Failed(SinkUnavailable("down")), now)
        assert tested.next(now) is None
        waits.append(tested.wake_at - now)
        now = tested.wake_at
    for wait, full in zip(waits, [1, 2, 4, 8, 16, 16, 16, 16, 16], strict=True):
        assert full / 2 <= wait <= full
    assert len({round(wait / full, 3) for wait, full in zip(waits[4:], [16] * 5, strict=True)}) > 2
    status = tested.status()
    assert (status.attempts, status.since, status.reason) == (9, 0.0, "down")
    started_at = now
    assert answer(tested, Begun(stored(), NO_EPOCH), now) == Begin()
    assert tested.status().attempts == 0
    tested.changed(now, staged=False)
    answer(tested, Failed(SinkUnavailable("down")), now)
    assert tested.next(now) is None
    assert tested.wake_at - started_at <= 1.0


def test_reading_that_fails_waits_only_in_the_log():
    tested = started(machine())
    answer(tested, Done())
    assert answer(tested, Failed(StorageUnavailable("disk")), now=5.0) == ReadOn()
    assert answer(tested, Begun(stored(), NO_EPOCH), now=5.0) == Begin()
    assert answer(tested, Done(), now=5.0) == Seek(again=True)


def test_a_fence_ends_it_and_a_stop_ends_it_between_two_steps():
    tested = started(machine())
    answer(tested, Failed(Fenced("another engine")))
    assert tested.over
    assert tested.next(0.0) is None
    assert (tested.status().state, tested.status().reason) == (SinkState.STOPPED, "another engine")
    tested = started(machine())
    names(tested, Done(), *collected(barrier(7)), Done(), Done())
    tested.next(0.0)
    tested.stop()
    assert tested.waiting
    assert tested.asked
    tested.happened(Interrupted(), 0.0)
    assert answer(tested, Done()) == Mark(Epoch(7), shown=False)
    assert tested.next(0.0) is None
    assert tested.over


def test_rows_other_than_those_that_were_fixed_are_never_delivered():
    row = stored().begun(DeliveryState.PREPARED, after=Epoch(0), epoch=Epoch(7), rows=5)
    tested = started(machine(), row)
    names(tested, Done(), *collected(chunk(7), barrier(7)))
    assert "2 rows" in tested.status().reason
    assert tested.status().state is SinkState.STALLED


def test_a_rewind_gives_up_what_is_under_way():
    row = stored(delivered=Epoch(5)).begun(
        DeliveryState.PREPARED, after=Epoch(5), epoch=Epoch(7), rows=2, receipts=[b"r"]
    )
    tested = started(machine(staged=STAGED), row)
    tested.rewind(Epoch(3))
    assert names(tested, Done(), Done()) == ["Announce", "Abort"]
    assert answer(tested, Done()) == RewindTo(Epoch(3))
    assert tested.delivered == 3
    tested = started(machine(), stored(delivered=Epoch(5)))
    tested.rewind(Epoch(3))
    assert answer(tested, Failed(UserError("gone"))) == RewindTo(Epoch(3))
    assert tested.delivered == 5
    assert answer(tested, Done()) == Seek()
    assert tested.status().state is SinkState.IDLE


def test_a_limit_holds_on_average_though_a_delivery_is_never_divided():
    tested, now = started(machine(limit=10)), 0.0
    names(tested, Done())
    for epoch in range(1, 31):
        names(tested, *collected(chunk(epoch, count=10), barrier(epoch)), Done(), now=now)
        while tested.next(now) is None:
            assert tested.wake_at > now
            now = tested.wake_at
        tested.happened(Done(), now)
        assert names(tested, Done(), Done(), Done(), now=now) == ["Deliver", "Mark", "Truncate"]
    # 300 rows, of which a second's worth is free and one delivery is owed.
    assert 27.5 < now < 29.5


def test_vnodes_that_change_end_a_delivery_early():
    tested = started(machine(interval=9))
    items = collected(chunk(7), barrier(7, vnodes=VnodeBitmap.full()))
    names(tested, Done(), *items)
    assert answer(tested, Done()) == AwaitCommit(Epoch(7))


def test_an_answer_to_nothing_tells_the_story():
    tested = started(machine())
    with pytest.raises(BrokenInvariant, match="answers nothing") as raised:
        tested.happened(Done(), 0.0)
    assert "Begun: idle" in raised.value.detail
    tested.next(0.0)
    with pytest.raises(BrokenInvariant, match="Prepared answers Seek"):
        tested.happened(Prepared(()), 0.0)

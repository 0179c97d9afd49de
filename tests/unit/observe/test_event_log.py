from datetime import UTC, datetime, timedelta

import pytest

from headwater.errors import CommitUnknown, LedgerUnavailable
from headwater.ledger.ledger import Ledger
from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.observe.events import WAITING, EventKind, EventLog


@pytest.fixture
def ledger(tmp_path):
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.db")
    yield ledger
    ledger.close()


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        self.now += timedelta(seconds=1)
        return self.now


class Broken:
    """A database that fails as long as it is told to."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.error: Exception | None = None

    def transaction(self):
        if self.error is not None:
            raise self.error
        return self.ledger.transaction()

    def reading(self):
        return self.ledger.reading()


def test_events_come_back_newest_first(ledger):
    log = EventLog(ledger, clock=Clock())
    assert log.record(EventKind.RECOVERY_STARTED, "engine", "it began", epoch=Epoch(2**62))
    assert log.record(EventKind.ACTOR_FAILED, "job 7", "no memory", details={"bytes": [1, None]})
    newest, oldest = log.recent()
    assert (newest.kind, newest.subject, newest.text) == (
        EventKind.ACTOR_FAILED,
        "job 7",
        "no memory",
    )
    assert newest.details == {"bytes": [1, None]}
    assert (newest.epoch, oldest.epoch) == (NO_EPOCH, 2**62)
    assert newest.at - oldest.at == timedelta(seconds=1)
    assert newest.id > oldest.id
    assert log.recent(1) == [newest]
    assert log.recent(kind=EventKind.RECOVERY_STARTED) == [oldest]
    assert EventLog(ledger).recent() == [newest, oldest]


def test_only_the_newest_are_kept(ledger):
    log = EventLog(ledger, kept=5)
    for number in range(8):
        log.record(EventKind.EPOCH_SLOW, str(number), "slow")
    assert [event.subject for event in log.recent()] == ["7", "6", "5", "4", "3"]


@pytest.mark.parametrize("error", [LedgerUnavailable("away"), CommitUnknown("no answer")])
def test_events_wait_while_the_database_is_away(ledger, error):
    database = Broken(ledger)
    log = EventLog(database, clock=Clock())
    database.error = error
    assert not log.record(EventKind.LEDGER_UNAVAILABLE, "a", "first")
    assert not log.record(EventKind.LEDGER_UNAVAILABLE, "b", "second")
    assert log.recent() == []
    database.error = None
    assert log.record(EventKind.RECOVERY_FINISHED, "c", "third")
    events = log.recent()
    assert [event.text for event in events] == ["third", "second", "first"]
    assert events[2].at == datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC)
    log.record(EventKind.FENCED, "d", "fourth")
    assert len(log.recent()) == 4


def test_waiting_events_are_bounded(ledger):
    database = Broken(ledger)
    log = EventLog(database)
    database.error = LedgerUnavailable("away")
    for number in range(WAITING + 10):
        log.record(EventKind.EPOCH_SLOW, str(number), "slow")
    database.error = None
    log.record(EventKind.EPOCH_SLOW, "last", "slow")
    events = log.recent(10_000)
    assert len(events) == WAITING + 1
    assert events[-1].subject == "10"

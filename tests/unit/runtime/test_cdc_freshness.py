"""The lag of a source: near nothing when idle, growing while something is owed."""

import pytest

from headwater.cdc.offset import PostgresOffset
from headwater.runtime.cdc_freshness import Freshness


def at(number):
    return PostgresOffset(number)


def read(fresh, offset, began_at, committed_at=None, more=False):
    fresh.read(at(offset), began_at=began_at, committed_at=committed_at, more=more)


def test_nothing_is_said_before_the_first_epoch():
    fresh = Freshness()
    assert fresh.lag_s(10) is None
    read(fresh, 5, 10)
    assert fresh.lag_s(10) is None


def test_an_idle_source_has_no_lag_however_old_its_last_transaction_is():
    fresh = Freshness()
    read(fresh, 5, 1000, committed_at=10)
    fresh.applied(at(5))
    assert fresh.lag_s(1000.2) == pytest.approx(0.2)
    # Nothing new comes, and no epoch has anything to say of this source.
    read(fresh, 5, 2000)
    assert fresh.lag_s(2000.1) == pytest.approx(0.1)
    assert fresh.last_event_at == 10


def test_what_is_read_and_not_in_the_ledger_counts_as_lag():
    fresh = Freshness()
    read(fresh, 5, 100)
    fresh.applied(at(5))
    read(fresh, 9, 150)
    assert fresh.lag_s(160) == 60
    fresh.applied(at(9))
    assert fresh.lag_s(160) == 10


def test_while_there_is_more_the_commit_time_counts():
    fresh = Freshness()
    read(fresh, 5, 1000, committed_at=400, more=True)
    fresh.applied(at(5))
    assert fresh.lag_s(1000) == 600
    read(fresh, 9, 1001, committed_at=900, more=True)
    fresh.applied(at(9))
    assert fresh.lag_s(1001) == 101


def test_a_restart_forgets_what_was_only_in_memory():
    fresh = Freshness()
    read(fresh, 5, 100)
    fresh.applied(at(5))
    read(fresh, 9, 150)
    fresh.restarted()
    fresh.applied(at(9))
    assert fresh.lag_s(200) == 100


def test_it_stays_small():
    fresh = Freshness()
    for number in range(5_000):
        read(fresh, number, number)
    assert len(fresh._reads) <= 512
    fresh.applied(at(4_999))
    assert fresh.lag_s(5_000) == 1

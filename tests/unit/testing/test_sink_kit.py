"""The kit passes sinks that keep their promises, and fails those that break one."""

import re
import threading
import time
from dataclasses import replace

import pytest

from headwater.errors import HeadwaterError
from headwater.sinks.sink import SinkKind
from headwater.testing.sink_kit import CHECKS, SinkBroken, run_all, run_check
from sink_targets import Case, FileSink, TableSink, values_of


@pytest.mark.parametrize("kind", SinkKind)
@pytest.mark.parametrize("sink", [TableSink, FileSink])
def test_sinks_that_keep_their_promises_pass(sink, kind, tmp_path):
    run_all(Case(sink, tmp_path, kind))


class NotIdempotent(TableSink):
    def deliver(self, delivery, rows):
        with self.transaction() as on:
            self.require(on, delivery.term)
            for batch in rows:
                self.write(on, delivery, values_of(batch))
            self.mark(on, delivery)


class OnlyTheLastIsKnown(TableSink):
    """Knows the last delivery again, and no older one."""

    def deliver(self, delivery, rows):
        with self.transaction() as on:
            if self.epoch(on) == delivery.epoch:
                return
            self.require(on, delivery.term)
            for batch in rows:
                self.write(on, delivery, values_of(batch))
            self.mark(on, delivery)


class CheckedBeforeTheTransaction(TableSink):
    def deliver(self, delivery, rows):
        with self.transaction() as on:
            self.require(on, delivery.term)
            if self.epoch(on) >= delivery.epoch:
                return
        rows = list(rows)
        if threading.current_thread() is not threading.main_thread():
            # Long enough for another to do the same, on any machine.
            time.sleep(0.5)
        with self.transaction() as on:
            for batch in rows:
                self.write(on, delivery, values_of(batch))
            self.mark(on, delivery)


class NotFenced(TableSink):
    def require(self, on, term):
        pass


class NotFencedWhenItDelivers(FileSink):
    def commit(self, delivery, receipts):
        with self.transaction() as on:
            if self.epoch(on) >= delivery.epoch:
                return
        super().commit(_at(delivery, 1 << 40), receipts)


class SeenBatchByBatch(TableSink):
    def deliver(self, delivery, rows):
        with self.transaction() as on:
            self.require(on, delivery.term)
            if self.epoch(on) >= delivery.epoch:
                return
        for batch in rows:
            with self.transaction() as on:
                self.write(on, delivery, values_of(batch))
        with self.transaction() as on:
            self.mark(on, delivery)


class SeenWhenPrepared(FileSink):
    def prepare(self, delivery, part, rows):
        rows = list(rows)
        with self.transaction() as on:
            if self.epoch(on) < delivery.epoch:
                for batch in rows:
                    self.write(on, delivery, values_of(batch))
        return super().prepare(delivery, part, [])


class LosesAPart(FileSink):
    def commit(self, delivery, receipts):
        super().commit(delivery, receipts[:-1])


class EpochOutsideTheTransaction(TableSink):
    def mark(self, on, delivery):
        if delivery.term % 2:
            super().mark(on, delivery)


class ForgetsReceipts(FileSink):
    """Commits what it remembers of its own parts, which another engine does not."""

    def prepare(self, delivery, part, rows):
        receipt = super().prepare(delivery, part, rows)
        self.__dict__.setdefault("mine", []).append((delivery.epoch, receipt))
        return receipt

    def commit(self, delivery, receipts):
        mine = [r for epoch, r in self.__dict__.get("mine", []) if epoch == delivery.epoch]
        super().commit(delivery, mine)


class AbortsOthers(FileSink):
    def abort(self, delivery, receipts):
        super().abort(_at(delivery, 1 << 40), receipts)


class HidesThatRowsStopped(TableSink):
    def deliver(self, delivery, rows):
        got = []
        try:
            got += rows
        except HeadwaterError:
            return
        super().deliver(delivery, got)


class OpensTooEarly(TableSink):
    def __init__(self, spec, folder):
        super().__init__(spec, folder)
        self.lock = threading.Lock()


class DropsRows(TableSink):
    def drop(self):
        super().drop()
        with self.transaction() as on:
            on.execute(f"DELETE FROM {self.spec.ident}")


def _at(delivery, term):
    return replace(delivery, term=term)


BROKEN = [
    (NotIdempotent, "repeated", "too many"),
    (OnlyTheLastIsKnown, "repeated", "missing|too many"),
    (CheckedBeforeTheTransaction, "two_at_once overtaken", "too many|begin says|delivered after"),
    (NotFenced, "zombie", "not fenced"),
    (NotFencedWhenItDelivers, "zombie", "not fenced"),
    (SeenBatchByBatch, "broken_off", "under way"),
    (SeenWhenPrepared, "crashed", "nothing may be seen"),
    (LosesAPart, "rows_arrive", "missing"),
    (EpochOutsideTheTransaction, "rows_arrive crashed", "begin says"),
    (ForgetsReceipts, "crashed_with_receipts", "missing"),
    (AbortsOthers, "zombie_aborts", "No such file"),
    (HidesThatRowsStopped, "broken_off", "did not say so"),
    (OpensTooEarly, "rows_arrive", "pickle"),
    (DropsRows, "dropped", "missing"),
]


@pytest.mark.parametrize(
    ("sink", "checks", "complaint"), BROKEN, ids=[sink.__name__ for sink, _, _ in BROKEN]
)
def test_a_broken_promise_is_found(sink, checks, complaint, tmp_path):
    case = Case(sink, tmp_path, SinkKind.APPEND_ONLY)
    # Where two threads race, a round may be lucky.
    found = [str(error) for name in checks.split() * 5 if (error := broken(case, name))]
    assert found, "it was not found"
    assert re.search(complaint, found[0])


def broken(case, name):
    try:
        run_check(case, name)
    except Exception as error:
        return error
    return None


def test_a_promise_that_cannot_be_kept_is_named(tmp_path):
    case = Case(NotFenced, tmp_path, SinkKind.UPSERT)
    with pytest.raises(SinkBroken, match="zombie"):
        run_all(case)
    case.without = {"zombie", "overtaken"}
    run_all(case)
    assert case.without <= CHECKS.keys()

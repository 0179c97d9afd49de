"""A sink's log on random histories, and the same with bugs that must not get by."""

import asyncio
import dataclasses

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.errors import HeadwaterError
from headwater.logstore.buffer import LogStoreBuffer
from headwater.logstore.items import Offset
from headwater.logstore.open_log import OpenLog
from headwater.logstore.reader import KvLogStoreReader
from headwater.logstore.serde import SortedRows
from headwater.logstore.state import LoggedEpoch
from headwater.logstore.writer import KvLogStoreWriter
from log_store_history_kit import LATENCY, play, play_many


@given(st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_a_target_gets_every_committed_row_once_and_in_order(seed):
    play(seed)


def hand_out_before_the_commit(patch):
    flush = KvLogStoreWriter.flush_current_epoch

    async def hasty(self, *args, **options):
        ended = self.epoch
        text = await flush(self, *args, **options)
        if text is not None:
            self.confirm(ended)
        return text

    patch.setattr(KvLogStoreWriter, "flush_current_epoch", hasty)


def keep_what_was_discarded(patch):
    discard = KvLogStoreWriter.discard

    def forgetful(self):
        staged = self._staged
        discard(self)
        self._staged = staged

    patch.setattr(KvLogStoreWriter, "discard", forgetful)


def forget_a_chunk_too_many(patch):
    without = LoggedEpoch.without

    def generous(self, delivered):
        if delivered.epoch == self.epoch and delivered.chunk_id != float("inf"):
            delivered = Offset(delivered.epoch, delivered.chunk_id + 1)
        return without(self, delivered)

    patch.setattr(LoggedEpoch, "without", generous)


def delete_before_the_ledger_knows(patch):
    truncate = OpenLog.truncate

    def hasty(self, vnodes, place):
        truncate(self, vnodes, place)
        for entry in self.state.entries:
            for at, segment in entry.chunks():
                if at <= self.progress.floor():
                    self.storage.delete(segment.name)

    patch.setattr(OpenLog, "truncate", hasty)


def take_vnodes_at_once(patch):
    patch.setattr(KvLogStoreReader, "_awaits_vnodes", lambda self, at: False)


def read_delivered_vnodes_again(patch):
    patch.setattr(KvLogStoreReader, "_wanted", KvLogStoreReader._vnodes_at)


def call_every_barrier_a_checkpoint(patch):
    barrier = LoggedEpoch.barrier
    patch.setattr(
        LoggedEpoch, "barrier", lambda self: dataclasses.replace(barrier(self), checkpoint=True)
    )


def lose_an_item_when_cancelled(patch):
    next_item = KvLogStoreReader.next_item

    async def careless(self):
        item = await next_item(self)
        await asyncio.sleep(LATENCY / 2)
        return item

    patch.setattr(KvLogStoreReader, "next_item", careless)


def start_where_memory_starts(patch):
    start_from = KvLogStoreReader.start_from

    async def short(self, epoch=None):
        await start_from(self, epoch)
        self._at = max(self._at, self._log.buffer._start)

    patch.setattr(KvLogStoreReader, "start_from", short)


def turn_the_rows_of_a_vnode_around(patch):
    of = SortedRows.of

    def reversed_rows(rows):
        found = of(rows)
        order = np.argsort(-found.seq, kind="stable")
        return of(found.table.take(pa.array(order)))

    patch.setattr(SortedRows, "of", reversed_rows)


def give_room_twice(patch):
    patch.setattr(LogStoreBuffer, "admit", lambda self, nbytes: True)


MUTANTS = [
    hand_out_before_the_commit,
    keep_what_was_discarded,
    forget_a_chunk_too_many,
    delete_before_the_ledger_knows,
    take_vnodes_at_once,
    read_delivered_vnodes_again,
    call_every_barrier_a_checkpoint,
    lose_an_item_when_cancelled,
    start_where_memory_starts,
    turn_the_rows_of_a_vnode_around,
    give_room_twice,
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_log_with_a_bug_does_not_get_by(mutant, monkeypatch):
    mutant(monkeypatch)
    with pytest.raises((AssertionError, HeadwaterError)):
        play_many(range(80))

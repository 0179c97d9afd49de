"""Following tables through random histories: every barrier kind, crashes, failures, rescales."""

import pytest

from headwater.backfill.snapshot import vnode_stream
from headwater.backfill.snapshot.upstream import executor, followed, stream
from headwater.errors import HeadwaterError
from upstream_world import simulate

SEEDS = 24


def test_one_reader_keeps_several_tables_in_step():
    commits = [simulate(seed).commits for seed in range(SEEDS)]
    assert min(commits) > 5


@pytest.mark.parametrize("readers", [2, 3])
def test_vnodes_change_hands_in_every_phase(readers):
    for seed in range(SEEDS // 4):
        simulate(seed, tables=1, readers=readers)


def test_without_a_pin_a_table_whose_history_is_gone_stops_alone():
    worlds = [simulate(seed, tables=2, pins=False) for seed in range(SEEDS)]
    stopped = [[bool(table.ledger.stopped) for table in world.tables] for world in worlds]
    assert [True, False] in stopped
    assert not [world for world in stopped if world[1]]
    reasons = {t.ledger.stopped for world in worlds for t in world.tables if t.ledger.stopped}
    assert all("no longer kept" in reason for reason in reasons)


def fails(**options):
    """Whether any history shows that something is wrong."""
    for seed in range(60):
        try:
            simulate(seed, **options)
        except (AssertionError, HeadwaterError):
            return True
    return False


def test_a_reader_that_does_not_mark_chunks_is_caught(monkeypatch):
    monkeypatch.setattr(followed, "mark_chunk", lambda changes, states: changes)
    assert fails(tables=1, readers=3)


def test_a_reader_that_takes_tables_one_by_one_is_caught(monkeypatch):
    def alone(self):
        every = self.tables.values()
        return [(each, begun) for each in every for begun in each.begun if begun.ready]

    monkeypatch.setattr(executor.UpstreamTableExecutor, "_takable", alone)
    assert fails(tables=2)


def test_a_cursor_that_is_off_by_one_is_caught(monkeypatch):
    real = vnode_stream.next_slice

    def short(group, state, **bounds):
        found = real(group, state, **bounds)
        if found is None or found.after is None or not found.after.row:
            return found
        after = type(found.after)(found.after.file, found.after.row + 1)
        return type(found)(found.first, found.parts, after, found.rows, found.bytes)

    monkeypatch.setattr(vnode_stream, "next_slice", short)
    assert fails(tables=1)


def test_a_log_that_begins_an_epoch_late_is_caught(monkeypatch):
    real = stream.UpstreamStream._changes

    def late(self, upto, taken):
        found = real(self, upto, taken)
        ahead = self.ahead(upto)
        after = ahead[0].epoch if len(ahead) > 1 else found.after
        return stream.ReadChanges(after, found.upto, found.rows, found.bytes, found.allowed)

    monkeypatch.setattr(stream.UpstreamStream, "_changes", late)
    assert fails(tables=1)


def test_a_pin_that_runs_ahead_of_the_ledger_is_caught(monkeypatch):
    def eager(self, each, now):
        if each.stream is not None:
            each.following.upstream.pinned[self._around.actor] = each.stream.committed

    monkeypatch.setattr(executor.UpstreamTableExecutor, "_move_pin", eager)
    assert fails(tables=1)

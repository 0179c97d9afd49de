"""What the ledger keeps of a log: its text, its index files, and how far vnodes are delivered."""

import dataclasses
import json
import zlib

import pytest

from headwater.errors import BrokenInvariant, DamagedState
from headwater.logstore.items import LogBarrier, LogChunk, Offset, Segment
from headwater.logstore.open_log import delete_log, delete_orphans, needed_files
from headwater.logstore.progress import BEGIN, LogStoreVnodeProgress, ProgressForm
from headwater.logstore.state import (
    INLINE,
    IndexFile,
    LoggedEpoch,
    LogStoreState,
    entry_after,
    read_index,
    settle,
)
from headwater.logstore.storage import Origin
from headwater.model.epoch import Epoch
from headwater.model.ids import Term
from headwater.model.vnode import VnodeBitmap
from headwater.testing.memory_storage import MemoryFiles, MemoryStorage

FULL = VnodeBitmap.full()
LOW, HIGH = VnodeBitmap.split(2)


def segment(epoch: int, number: int = 0, vnodes: VnodeBitmap = FULL) -> Segment:
    name = f"rows-000001-{epoch:016x}-{number:016x}.v2.arrow"
    return Segment(
        name=name, epoch=Epoch(epoch), first_seq=number * 10, rows=10, bytes=99, vnodes=vnodes
    )


def logged(epoch: int, segments: int = 1, *, checkpoint: bool = True, stop: bool = False):
    return LoggedEpoch(
        epoch=Epoch(epoch),
        checkpoint=checkpoint,
        segments=tuple(segment(epoch, n) for n in range(segments)),
        first=Epoch(epoch),
        stop=stop,
    )


def delivered(epoch: int, chunk: int | None = None) -> LogStoreVnodeProgress:
    place = Offset(Epoch(epoch)) if chunk is None else Offset(Epoch(epoch), chunk)
    return LogStoreVnodeProgress().advance(FULL, place)


def grown(*entries: LoggedEpoch, progress: LogStoreVnodeProgress | None = None) -> LogStoreState:
    return LogStoreState().grown(entries, progress or LogStoreVnodeProgress())


class TestProgress:
    def test_forms_follow_from_places(self):
        none = LogStoreVnodeProgress()
        assert (none.form, none.floor(), none.of(3)) == (ProgressForm.NONE, BEGIN, BEGIN)
        aligned = none.advance(FULL, Offset(Epoch(5)))
        assert aligned.form is ProgressForm.ALIGNED
        apart = aligned.advance(LOW, Offset(Epoch(7), 2))
        assert apart.form is ProgressForm.PER_VNODE
        assert (apart.of(0), apart.of(255)) == (Offset(Epoch(7), 2), Offset(Epoch(5)))
        assert apart.floor() == apart.floor(HIGH) == Offset(Epoch(5))
        assert apart.floor(LOW) == Offset(Epoch(7), 2)
        again = apart.advance(HIGH, Offset(Epoch(7), 2))
        assert again.form is ProgressForm.ALIGNED

    def test_vnodes_never_go_back(self):
        progress = LogStoreVnodeProgress().advance(LOW, Offset(Epoch(5), 3))
        for place in (Offset(Epoch(4)), Offset(Epoch(5), 2)):
            with pytest.raises(BrokenInvariant, match="go back"):
                progress.advance(FULL, place)
        assert progress.advance(LOW, Offset(Epoch(5), 3)) == progress

    def test_vnodes_that_are_further_stay(self):
        progress = LogStoreVnodeProgress().advance(LOW, Offset(Epoch(9)))
        reached = progress.reach(FULL, Offset(Epoch(6)))
        assert (reached.of(0), reached.of(200)) == (Offset(Epoch(9)), Offset(Epoch(6)))
        assert reached.beyond(Offset(Epoch(7))) == LOW
        assert reached.beyond(Offset(Epoch(6))) == FULL

    def test_it_is_written_down_and_read_back(self):
        progress = LogStoreVnodeProgress().advance(LOW, Offset(Epoch(9), 4))
        progress = progress.advance(VnodeBitmap.of([200]), Offset(Epoch(2**63)))
        assert LogStoreVnodeProgress.decode(json.loads(json.dumps(progress.encode()))) == progress


class TestText:
    def test_it_is_written_down_and_read_back(self):
        entries = (
            logged(3, 2),
            logged(4, 0, checkpoint=False, stop=True),
            dataclasses.replace(logged(5), segments=(segment(5, 0, VnodeBitmap.of([1, 255])),)),
        )
        progress = LogStoreVnodeProgress().advance(LOW, Offset(Epoch(3), 0))
        state = dataclasses.replace(
            grown(*entries, progress=progress), indexes=(IndexFile("index-x", Epoch(2), 7),)
        )
        assert LogStoreState.decode(state.encode()) == state

    def test_an_idle_log_is_a_short_text(self):
        state = grown(*(logged(n, 0) for n in range(1, 10_000)))
        assert len(state.entries) == 1
        assert (state.entries[0].first, state.entries[0].epoch) == (1, 9_999)
        assert len(state.encode()) < 120
        done = state.grown([logged(10_000, 0)], delivered(10_000))
        assert done.entries == ()
        assert done.epoch == 10_000

    def test_barriers_that_say_something_stand_alone(self):
        state = grown(logged(1, 0), logged(2, 0, stop=True), logged(3, 0), logged(4, 1))
        assert [entry.epoch for entry in state.entries] == [1, 2, 3, 4]

    @pytest.mark.parametrize(
        "text",
        ["", "nonsense", "[]", "{}", '{"format":1}', '{"format":1,"epoch":1,"entries":[[9,1]]}'],
    )
    def test_a_damaged_text_is_refused(self, text):
        with pytest.raises(DamagedState, match="cannot be read"):
            LogStoreState.decode(text)

    def test_a_newer_text_is_refused(self):
        with pytest.raises(DamagedState, match="unknown format 3"):
            LogStoreState.decode('{"format":3,"epoch":1}')

    def test_a_text_from_before_rows_could_be_lent_is_the_same_log(self):
        state = grown(logged(1, 2), logged(2, 0), progress=delivered(1, 0))
        text = state.encode()
        assert text.startswith('{"format":2,')
        assert LogStoreState.decode(text.replace('"format":2', '"format":1')) == state

    def test_an_index_from_before_rows_could_be_lent_is_read(self):
        storage = MemoryStorage(MemoryFiles())
        old = {"format": 1, "entries": [[6, 7, 0, 0, 0, [["rows-a", 0, 3, 9, ""]]]]}
        storage.put("index-old", zlib.compress(json.dumps(old).encode()))
        (entry,) = read_index(storage, IndexFile("index-old", Epoch(7), 2))
        assert [(s.name, s.rows, s.lent) for s in entry.segments] == [("rows-a", 3, False)]

    def test_lent_segments_are_told_from_files(self):
        lent = dataclasses.replace(segment(1), name="lent:9:part-1.parquet")
        entry = dataclasses.replace(logged(1, 1), segments=(segment(1), lent))
        state = grown(entry)
        back = LogStoreState.decode(state.encode())
        assert back == state
        assert [each.lent for each in back.entries[0].segments] == [False, True]

    def test_epochs_only_grow(self):
        with pytest.raises(BrokenInvariant, match="not after"):
            grown(logged(3), logged(3))


class TestTruncation:
    def test_delivered_chunks_go_and_the_others_keep_their_numbers(self):
        state = grown(logged(3, 3), logged(4, 1)).grown([], delivered(3, 1))
        (first, _) = state.entries
        assert [place for place, _ in first.chunks()] == [Offset(Epoch(3), 2)]
        item = first.item_after(Offset(Epoch(3), 1))
        assert isinstance(item, LogChunk)
        assert (item.chunk_id, item.first_seq) == (2, 20)
        assert isinstance(first.item_after(Offset(Epoch(3), 2)), LogBarrier)
        assert first.item_after(Offset(Epoch(3))) is None

    def test_an_epoch_without_chunks_left_still_has_its_barrier(self):
        state = grown(logged(3, 2), logged(4, 0)).grown([logged(5, 0)], delivered(3, 1))
        assert [entry.epoch for entry in state.entries] == [3, 5]
        assert state.entries[0].first_chunk == 2

    def test_vnodes_that_lag_keep_what_they_need(self):
        progress = delivered(3).advance(LOW, Offset(Epoch(9)))
        state = grown(logged(3), logged(4), logged(9), progress=progress)
        assert [entry.epoch for entry in state.entries] == [4, 9]

    def test_items_are_found_by_place(self):
        entries = grown(logged(3, 1), logged(5, 1)).entries
        assert entry_after(entries, BEGIN) == entries[0]
        assert entry_after(entries, Offset(Epoch(3), 0)) == entries[0]
        assert entry_after(entries, Offset(Epoch(3))) == entries[1]
        assert entry_after(entries, Offset(Epoch(5))) is None


class TestIndex:
    def grow_far(self, storage: MemoryStorage, epochs: int) -> tuple[LogStoreState, int]:
        """A log whose target is that far behind, and its longest text."""
        state, longest = LogStoreState(), 0
        for number in range(1, epochs + 1):
            state = state.grown([logged(number, 1)], LogStoreVnodeProgress())
            if state.overfull:
                state = settle(storage, state, Origin(Term(1), Epoch(number)))
            longest = max(longest, len(state.encode()))
        return state, longest

    def all_entries(self, storage: MemoryStorage, state: LogStoreState) -> list[LoggedEpoch]:
        older = [entry for index in state.indexes for entry in read_index(storage, index)]
        return [*older, *state.entries]

    def test_the_text_stays_small_however_far_a_target_is_behind(self):
        storage = MemoryStorage(MemoryFiles(immutable=True))
        state, longest = self.grow_far(storage, 3000)
        assert longest < 5000
        assert len(state.indexes) < 12
        assert sum(entry.weight for entry in state.entries) <= INLINE
        assert self.all_entries(storage, state) == [logged(n) for n in range(1, 3001)]

    def test_each_place_is_found_in_the_file_that_has_it(self):
        storage = MemoryStorage(MemoryFiles())
        state, _ = self.grow_far(storage, 300)
        for number in range(300):
            found = state.locate(Offset(Epoch(number)))
            if isinstance(found, IndexFile):
                found = entry_after(read_index(storage, found), Offset(Epoch(number)))
            assert found == logged(number + 1)
        assert state.locate(Offset(Epoch(300))) is None

    def test_an_epoch_with_very_many_segments_moves_at_once(self):
        storage = MemoryStorage(MemoryFiles())
        state = settle(storage, grown(logged(1, 500)), Origin(Term(1), Epoch(1)))
        assert state.entries == ()
        assert len(state.encode()) < 200
        assert self.all_entries(storage, state) == [logged(1, 500)]

    def test_delivered_files_are_no_longer_named(self):
        storage = MemoryStorage(MemoryFiles())
        state, _ = self.grow_far(storage, 100)
        later = state.grown([], delivered(99))
        assert later.indexes == ()
        assert set(needed_files(storage, later)) == {segment(100).name}

    def test_a_damaged_index_is_refused(self):
        storage = MemoryStorage(MemoryFiles())
        storage.put("index-bad", b"nonsense")
        with pytest.raises(DamagedState, match="index-bad"):
            read_index(storage, IndexFile("index-bad", Epoch(1), 1))


class TestOrphans:
    def test_only_files_that_nobody_can_name_any_more_go(self):
        storage = MemoryStorage(MemoryFiles())
        state = grown(logged(5), logged(6))
        term = Term(2)
        names = {
            "needed": segment(5).name,
            "dead engine": Origin(Term(1), Epoch(9)).rows_file(2),
            "dead index": Origin(Term(1), Epoch(9)).index_file(),
            "ended epoch": Origin(term, Epoch(6)).rows_file(2),
            "coming epoch": Origin(term, Epoch(7)).rows_file(2),
            "newer engine": Origin(Term(3), Epoch(1)).rows_file(2),
            "not ours": "notes.txt",
            "spared": Origin(Term(1), Epoch(2)).rows_file(1),
        }
        for name in names.values():
            storage.put(name, b"x")
        storage.put(segment(6).name, b"x")
        assert delete_orphans(storage, state, term, spared={names["spared"]}) == 3
        left = {label for label, name in names.items() if name in set(storage.list())}
        assert left == {"needed", "coming epoch", "newer engine", "not ours", "spared"}
        assert delete_orphans(storage, state, term, alone=True) == 2

    def test_a_dropped_sink_leaves_nothing_of_its_log(self):
        storage = MemoryStorage(MemoryFiles())
        for name in (segment(5).name, Origin(Term(7), Epoch(9)).index_file(), "notes.txt"):
            storage.put(name, b"x")
        assert delete_log(storage) == 2
        assert list(storage.list()) == ["notes.txt"]

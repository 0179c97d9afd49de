"""A large delivery, divided among tasks: every row is in one share, and every key as well."""

import pickle

import pytest

from headwater.errors import BrokenInvariant
from headwater.logstore.items import LENT, LogChunk, Segment
from headwater.logstore.serde import write_segment
from headwater.logstore.state import stored_chunk
from headwater.model.change import RowOp
from headwater.model.epoch import Epoch
from headwater.model.ids import Term
from headwater.model.vnode import VnodeBitmap
from headwater.runtime.sinks import log_files
from headwater.runtime.sinks.log_files import LogFiles
from headwater.state.storage import LocalStorage
from headwater.testing.log_store_kit import log_rows

EPOCH = Epoch(5)


class Library:
    """Lends twenty rows under each number; satisfies what `LogFiles` asks of a lender."""

    def files_of(self, segments):
        return self

    def __call__(self, segment: Segment):
        return log_rows(inserts(int(segment.name.removeprefix(LENT))))


def inserts(number: int) -> list:
    return [(RowOp.INSERT, 1000 * number + n, "lent") for n in range(0, 200, 10)]


def lent(number: int, size: int = 1000) -> LogChunk:
    segment = Segment(
        name=f"{LENT}{number}", epoch=EPOCH, first_seq=0, rows=20, bytes=size,
        vnodes=VnodeBitmap.full(),
    )  # fmt: skip
    return stored_chunk(segment, number)


def ids_of(shares) -> list[list[int]]:
    # They travel to tasks, and may be read again.
    found = []
    for share in pickle.loads(pickle.dumps(shares)):
        once = [table["id"].to_pylist() for table in share]
        assert once == [table["id"].to_pylist() for table in share]
        found.append([number for table in once for number in table])
    return found


@pytest.mark.parametrize("most", [1, 2, 3, 256])
@pytest.mark.parametrize("files", [1, 2, 7])
def test_lent_rows_are_divided_once_each(tmp_path, monkeypatch, most, files):
    monkeypatch.setattr(log_files, "_RANGE_BYTES", 300)
    chunks = [lent(number) for number in range(files)]
    shares = LogFiles(LocalStorage(tmp_path), Library()).shares(chunks, most)
    assert len(shares) <= most
    found = ids_of(shares)
    wanted = [row[1] for number in range(files) for row in inserts(number)]
    assert sorted(number for share in found for number in share) == sorted(wanted)
    if files >= most:
        # Nobody reads a file that somebody else reads.
        assert sum(len(share.segments) for share in shares) == files
        assert not any(share.ranges for share in shares)


def test_files_are_held_as_far_as_there_is_room(tmp_path, monkeypatch):
    monkeypatch.setattr(log_files, "_HELD_BYTES", 2500)
    chunks = [lent(0), lent(1), lent(2, 9000), lent(3)]
    (share,) = LogFiles(LocalStorage(tmp_path), Library()).shares(chunks, 1)
    # The largest comes first, and alone.
    assert [table.num_rows for table in share] == [20, 40, 20]


@pytest.mark.parametrize("most", [1, 4])
def test_changes_of_lent_rows_stand_behind_them(tmp_path, monkeypatch, most):
    monkeypatch.setattr(log_files, "_RANGE_BYTES", 300)
    storage = LocalStorage(tmp_path)
    changed = log_rows([(RowOp.DELETE, row[1], "gone") for row in inserts(1)[:7]])
    chunks = [lent(1), stored_chunk(write_segment(storage, changed, EPOCH, term=Term(1)), 1)]
    log = LogFiles(storage, Library())
    assert not log.inserts_only(chunks)
    assert log.inserts_only(chunks[:1])
    seen: dict[int, list[int]] = {}
    for share in log.shares(chunks, most):
        for table in share:
            for number, op in zip(table["id"].to_pylist(), table["_op"].to_pylist(), strict=True):
                seen.setdefault(number, []).append(op)
    both = [int(RowOp.INSERT), int(RowOp.DELETE)]
    gone = {row[1] for row in inserts(1)[:7]}
    assert seen == {row[1]: both if row[1] in gone else both[:1] for row in inserts(1)}


def test_rows_that_are_in_no_file_cannot_travel(tmp_path):
    chunk = LogChunk(epoch=EPOCH, chunk_id=0, first_seq=0, count=1, nbytes=9)
    with pytest.raises(BrokenInvariant, match="in no file"):
        LogFiles(LocalStorage(tmp_path), Library()).shares([chunk], 1)

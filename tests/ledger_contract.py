"""What every ledger must do, whatever database it lies in.

A test module makes a subclass with a fixture `url` that gives an empty database.
"""

import threading
from typing import Any

import pytest
from sqlalchemy import delete, select, text, update

from headwater.errors import (
    BrokenInvariant,
    DamagedState,
    Fenced,
    HistoryGone,
    LedgerConflict,
    UserError,
    WorkspaceInUse,
    WorkspaceTooNew,
)
from headwater.ledger.ledger import Ledger
from headwater.ledger.migrate import MIGRATIONS
from headwater.ledger.tables import EPOCH, FACT, FENCE, MANIFEST, SCHEMA
from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.ids import TableId
from ledger_kit import OpenLedgers, elsewhere, flip, full_record, in_threads, owner, record, rows


class LedgerContract(OpenLedgers):
    """Inherit, and give the fixture `url`."""

    # -- the chain

    def test_an_empty_ledger(self, ledger):
        assert ledger.last_epoch() == NO_EPOCH
        assert list(ledger.records(NO_EPOCH)) == []
        assert ledger.manifest(TableId(1)) is None
        assert ledger.pins() == {}
        assert ledger.facts().positions == {}

    def test_a_record_comes_back_equal_also_through_another_engine(self, ledger, term, open_ledger):
        written = full_record(10, 0, term)
        ledger.append(written, manifests={TableId(1): b"list"})
        for reader in (ledger, open_ledger()):
            assert reader.last_epoch() == 10
            assert reader.record(Epoch(10)) == written
            assert list(reader.records(NO_EPOCH)) == [written]

    def test_epochs_of_64_bits(self, ledger, term):
        big = 2**63 - 1
        ledger.append(record(big, 0, term))
        assert ledger.record(Epoch(big)).epoch == big

    def test_a_record_must_follow_the_last_epoch(self, ledger, term):
        ledger.append(record(10, 0, term))
        before = rows(ledger)
        for wrong in (record(20, 0, term), record(20, 9, term), record(10, 0, term)):
            with pytest.raises(LedgerConflict):
                ledger.append(wrong, manifests={TableId(1): b"x"})
        assert rows(ledger) == before

    def test_an_epoch_must_grow(self, ledger, term):
        with pytest.raises(BrokenInvariant):
            ledger.append(record(5, 5, term))

    def test_reading_parts_of_the_chain(self, ledger, term):
        epochs = [10, 20, 30, 40]
        for after, epoch in zip([0, *epochs], epochs, strict=False):
            ledger.append(record(epoch, after, term))

        def read(after: int, upto: int | None = None) -> list[int]:
            bound = None if upto is None else Epoch(upto)
            return [found.epoch for found in ledger.records(Epoch(after), bound)]

        assert read(0) == epochs
        assert read(20) == [30, 40]
        assert read(0, 20) == [10, 20]
        assert read(10, 35) == [20, 30]
        assert read(40) == read(20, 20) == read(50) == []
        assert read(20, 99) == [30, 40]
        with pytest.raises(DamagedState):
            read(15)

    def test_a_long_chain_is_read_in_pages(self, ledger, term, monkeypatch):
        monkeypatch.setattr("headwater.ledger.ledger._PAGE", 4)
        for epoch in range(1, 13):
            ledger.append(record(epoch, epoch - 1, term))
        assert [found.epoch for found in ledger.records(NO_EPOCH)] == list(range(1, 13))
        assert [found.epoch for found in ledger.records(Epoch(2), Epoch(6))] == [3, 4, 5, 6]

    def test_an_epoch_without_a_record(self, ledger, term):
        ledger.append(record(10, 0, term))
        for epoch in (5, 11):
            with pytest.raises(HistoryGone):
                ledger.record(Epoch(epoch))

    # -- facts, manifests, the callback

    def test_facts_are_the_records_folded(self, ledger, term):
        ledger.append(
            record(
                1, 0, term, positions={"a": "1", "b": "1"}, progress={"j": "p"}, sinks={"s": "x"}
            )
        )
        ledger.append(record(2, 1, term, positions={"a": "2"}, horizons={7: Epoch(1), 8: Epoch(2)}))
        ledger.append(record(3, 2, term, positions={"b": ""}, horizons={8: NO_EPOCH}, log_ends={}))
        facts = ledger.facts()
        assert facts.positions == {"a": "2"}
        assert facts.progress == {"j": "p"}
        assert facts.sinks == {"s": "x"}
        assert facts.log_ends == {}
        assert facts.horizons == {TableId(7): Epoch(1)}

    def test_manifests(self, ledger, term):
        ledger.append(record(1, 0, term), manifests={TableId(1): b"one", TableId(2): b"two"})
        ledger.append(record(2, 1, term), manifests={TableId(1): b"\x00newer\xff"})
        newest = ledger.manifest(TableId(1))
        assert (newest.table, newest.epoch, newest.body) == (1, 2, b"\x00newer\xff")
        assert ledger.manifest(TableId(1), at=Epoch(1)).body == b"one"
        assert ledger.manifest(TableId(2)).epoch == 1
        assert ledger.manifest(TableId(1), at=Epoch(0)) is None
        ledger.append(record(3, 2, term), manifests={TableId(1): b""})
        assert ledger.manifest(TableId(1)) is None
        assert ledger.manifest(TableId(2)).body == b"two"

    def test_what_the_callback_writes_is_part_of_the_commit(self, ledger, term):
        def also(connection):
            connection.execute(text("INSERT INTO hw_counter VALUES ('mine', 7)"))

        ledger.append(record(1, 0, term), also=also)
        with ledger.reading() as connection:
            found = connection.execute(text("SELECT value FROM hw_counter WHERE name = 'mine'"))
            assert found.scalar_one() == 7

    def test_a_failing_callback_rolls_everything_back(self, ledger, term):
        ledger.append(record(1, 0, term, positions={"a": "1"}))
        before = rows(ledger)
        mine = ValueError("mine")

        def also(connection):
            connection.execute(text("INSERT INTO hw_counter VALUES ('mine', 7)"))
            raise mine

        with pytest.raises(ValueError, match="mine") as raised:
            ledger.append(full_record(2, 1, term), manifests={TableId(1): b"x"}, also=also)
        assert raised.value is mine
        assert rows(ledger) == before
        with ledger.reading() as connection:
            found = connection.execute(text("SELECT * FROM hw_counter WHERE name = 'mine'"))
            assert found.all() == []

    def test_a_callback_that_hides_a_database_error_never_half_commits(self, ledger, term):
        def also(connection):
            with pytest.raises(Exception, match="hw_nothing"):
                connection.execute(text("SELECT * FROM hw_nothing"))

        try:
            ledger.append(record(1, 0, term, positions={"a": "1"}), also=also)
        except BrokenInvariant:
            assert ledger.last_epoch() == NO_EPOCH
            assert ledger.facts().positions == {}
        else:
            assert ledger.last_epoch() == 1
            assert ledger.facts().positions == {"a": "1"}

    # -- fencing

    def test_a_living_owner_is_not_pushed_aside(self, ledger, term, open_ledger):
        with pytest.raises(WorkspaceInUse, match=rf"pid {owner().pid} on") as refused:
            open_ledger().take_over(owner())
        assert "force" in refused.value.hint
        ledger.append(record(1, 0, term))

    def test_a_zombie_writes_nothing_after_a_forced_take_over(self, ledger, term, open_ledger):
        ledger.append(record(1, 0, term))
        second = open_ledger()
        newer = second.take_over(owner(), force=True)
        assert newer == term + 1
        before = rows(ledger)
        with pytest.raises(Fenced):
            ledger.append(full_record(2, 1, term), manifests={TableId(1): b"x"})
        with pytest.raises(Fenced):
            ledger.heartbeat(term)
        ledger.release(term)
        assert rows(ledger) == before
        second.heartbeat(newer)
        second.append(record(2, 1, newer))
        assert [found.term for found in second.records(NO_EPOCH)] == [term, newer]

    def test_a_released_workspace_is_free(self, ledger, term, open_ledger):
        ledger.release(term)
        ledger.release(term)
        for attempt in (lambda: ledger.append(record(1, 0, term)), lambda: ledger.heartbeat(term)):
            with pytest.raises(Fenced):
                attempt()
        assert open_ledger().take_over(owner()) == term + 1

    def test_a_term_that_was_never_given(self, ledger, term):
        with pytest.raises(BrokenInvariant):
            ledger.append(record(1, 0, term + 1))

    def test_an_owner_takes_over_from_itself(self, ledger):
        me = owner()
        assert ledger.take_over(me) + 1 == ledger.take_over(me)

    def test_an_owner_elsewhere_is_alive_while_its_heart_beats(self, ledger, open_ledger):
        term = ledger.take_over(elsewhere())
        with pytest.raises(WorkspaceInUse, match="on other"):
            open_ledger().take_over(owner(), wait_s=15)
        self.pass_time(ledger, 10)
        ledger.heartbeat(term)
        self.pass_time(ledger, 10)
        with pytest.raises(WorkspaceInUse):
            open_ledger().take_over(owner(), wait_s=15)
        self.pass_time(ledger, 6)
        assert open_ledger().take_over(owner(), wait_s=15) == term + 1

    def test_a_commit_is_a_sign_of_life(self, ledger, open_ledger):
        term = ledger.take_over(elsewhere())
        self.pass_time(ledger, 100)
        ledger.append(record(1, 0, term))
        with pytest.raises(WorkspaceInUse):
            open_ledger().take_over(owner(), wait_s=15)

    def pass_time(self, ledger: Ledger, seconds: float) -> None:
        """Make the last sign of life older."""
        with ledger.transaction() as connection:
            older = FENCE.c.heartbeat_at - int(seconds * 1_000_000)
            connection.execute(update(FENCE).values(heartbeat_at=older))

    def test_a_process_that_is_gone_is_replaced_at_once(self, ledger):
        gone = owner(started="1")
        term = ledger.take_over(gone)
        assert ledger.take_over(owner()) == term + 1

    def test_only_one_of_many_gets_a_free_workspace(self, open_ledger):
        ledgers = [open_ledger() for _ in range(4)]
        results: list[Any] = [None] * 4
        together = threading.Barrier(4)

        def run(index: int) -> None:
            together.wait()
            try:
                results[index] = ledgers[index].take_over(owner())
            except WorkspaceInUse as error:
                results[index] = error

        in_threads(run, 4)
        assert sorted(type(result).__name__ for result in results) == [
            "WorkspaceInUse",
            "WorkspaceInUse",
            "WorkspaceInUse",
            "int",
        ]

    def test_racing_engines_make_one_chain(self, open_ledger):
        """Four engines under one term, which only compare-and-set keeps apart."""
        ledgers = [open_ledger() for _ in range(4)]
        term = ledgers[0].take_over(owner())
        won: list[list[int]] = [[] for _ in ledgers]
        conflicts = [0] * len(ledgers)
        stale = threading.Barrier(len(ledgers))

        def run(index: int) -> None:
            mine = ledgers[index]
            for turn in range(12):
                after = mine.last_epoch()
                stale.wait()
                epoch = after + 1 + index
                try:
                    mine.append(record(epoch, after, term, positions={"s": f"{turn}/{index}"}))
                    won[index].append(epoch)
                except LedgerConflict:
                    conflicts[index] += 1
                stale.wait()

        in_threads(run, len(ledgers))
        chain = [found.epoch for found in ledgers[0].records(NO_EPOCH)]
        assert chain == sorted(epoch for epochs in won for epoch in epochs)
        assert len(chain) == 12
        assert sum(conflicts) == 36

    # -- damage

    def damage(self, ledger: Ledger, statement: Any) -> None:
        with ledger.transaction() as connection:
            assert connection.execute(statement).rowcount == 1

    @pytest.mark.parametrize("column", ["body", "checksum", "term", "format"])
    def test_a_flipped_bit_is_found(self, ledger, term, column):
        for epoch in (1, 2, 3):
            ledger.append(full_record(epoch, epoch - 1, term))
        with ledger.reading() as connection:
            query = select(EPOCH.c[column]).where(EPOCH.c.epoch == 2)
            value = connection.execute(query).scalar_one()
        for byte in (0, 5, -1) if column == "body" else (0,):
            wrong = flip(value, byte) if column == "body" else value ^ 1
            self.damage(ledger, update(EPOCH).where(EPOCH.c.epoch == 2).values({column: wrong}))
            with pytest.raises(DamagedState, match="epoch 2"):
                list(ledger.records(NO_EPOCH))
            with pytest.raises(DamagedState, match="epoch 2"):
                ledger.record(Epoch(2))
            assert ledger.record(Epoch(3)).epoch == 3

    @pytest.mark.parametrize(("missing", "named"), [(1, 2), (2, 3), (3, 3)])
    def test_a_missing_record_is_found(self, ledger, term, missing, named):
        for epoch in (1, 2, 3):
            ledger.append(record(epoch, epoch - 1, term))
        self.damage(ledger, delete(EPOCH).where(EPOCH.c.epoch == missing))
        with pytest.raises(DamagedState, match=f"epoch {named}"):
            list(ledger.records(NO_EPOCH))
        if missing > 1:
            with pytest.raises(DamagedState, match=f"epoch {named}"):
                list(ledger.records(Epoch(missing - 1), Epoch(missing)))

    def test_a_record_moved_to_another_epoch_is_found(self, ledger, term):
        ledger.append(record(1, 0, term))
        self.damage(ledger, update(EPOCH).values(epoch=2))
        with pytest.raises(DamagedState, match="epoch 2"):
            ledger.record(Epoch(2))

    def test_damaged_facts_and_manifests_are_found(self, ledger, term):
        ledger.append(record(1, 0, term, positions={"a": "1"}), manifests={TableId(3): b"list"})
        self.damage(ledger, update(MANIFEST).values(body=b"lisp"))
        with pytest.raises(DamagedState, match="table 3 at epoch 1"):
            ledger.manifest(TableId(3))
        self.damage(ledger, update(FACT).values(value="2"))
        with pytest.raises(DamagedState, match='positions of "a"'):
            ledger.facts()

    def test_a_format_from_the_future_is_refused(self, ledger, term):
        ledger.append(record(1, 0, term))
        self.damage(ledger, update(EPOCH).values(format=99))
        with pytest.raises(WorkspaceTooNew, match="99"):
            ledger.record(Epoch(1))

    def test_a_schema_from_the_future_is_refused(self, ledger, url):
        known, newer = len(MIGRATIONS), len(MIGRATIONS) + 1
        with ledger.transaction() as connection:
            connection.execute(SCHEMA.insert().values(version=newer, applied_at="later"))
        with pytest.raises(WorkspaceTooNew, match=rf"version {newer}.* knows {known}") as refused:
            Ledger.open(url)
        assert "Upgrade" in refused.value.hint

    # -- pruning and pins

    def test_prune_keeps_what_is_readable(self, ledger, term):
        for epoch in range(1, 7):
            manifests = {TableId(1): b"m%d" % epoch} if epoch in (1, 3, 5) else {}
            ledger.append(record(epoch, epoch - 1, term), manifests=manifests)
        assert ledger.prune(Epoch(4)) == 3
        assert ledger.prune(Epoch(4)) == 0
        assert [found.epoch for found in ledger.records(Epoch(3))] == [4, 5, 6]
        with pytest.raises(HistoryGone, match="epoch 2"):
            list(ledger.records(Epoch(2)))
        with pytest.raises(HistoryGone):
            ledger.record(Epoch(1))
        assert ledger.manifest(TableId(1)).epoch == 5
        assert ledger.manifest(TableId(1), at=Epoch(4)).epoch == 3
        assert ledger.manifest(TableId(1), at=Epoch(2)) is None
        assert ledger.facts().positions == {}

    def test_the_last_record_is_never_pruned(self, ledger, term):
        ledger.append(record(1, 0, term), manifests={TableId(1): b"only"})
        ledger.append(record(2, 1, term))
        assert ledger.prune(Epoch(1000)) == 1
        assert ledger.last_epoch() == 2
        assert ledger.record(Epoch(2)).after == 1
        assert ledger.manifest(TableId(1)).body == b"only"
        ledger.append(record(3, 2, term))
        assert [found.epoch for found in ledger.records(Epoch(1))] == [2, 3]

    def test_a_gap_is_damage_also_after_pruning(self, ledger, term):
        for epoch in range(1, 7):
            ledger.append(record(epoch, epoch - 1, term))
        ledger.prune(Epoch(3))
        self.damage(ledger, delete(EPOCH).where(EPOCH.c.epoch == 3))
        with pytest.raises(DamagedState, match="epoch 4"):
            list(ledger.records(Epoch(2)))

    def test_pins(self, ledger, term, open_ledger):
        ledger.append(record(10, 0, term))
        ledger.append(record(20, 10, term, horizons={1: Epoch(10), 2: Epoch(15)}))
        ledger.pin("report", Epoch(15))
        ledger.pin("report", Epoch(20))
        ledger.pin("copy", Epoch(16))
        assert open_ledger().pins() == {"report": 20, "copy": 16}
        with pytest.raises(HistoryGone, match="epoch 14") as refused:
            ledger.pin("late", Epoch(14))
        assert "table 2" in refused.value.detail
        assert "table 1" not in refused.value.detail
        with pytest.raises(UserError, match="not committed"):
            ledger.pin("early", Epoch(21))
        ledger.unpin("copy")
        ledger.unpin("copy")
        assert ledger.pins() == {"report": 20}

    def test_a_pin_may_always_move_forwards(self, ledger, term):
        for epoch, after in ((10, 0), (20, 10), (30, 20), (40, 30)):
            ledger.append(record(epoch, after, term))
        ledger.pin("reader", Epoch(10))
        ledger.prune(Epoch(40))
        assert ledger.floor() > 20
        # What it has kept so far, and what is later than that, it may keep on keeping.
        ledger.pin("reader", Epoch(10))
        ledger.pin("reader", Epoch(20))
        for name, epoch in (("reader", 10), ("other", 20)):
            with pytest.raises(HistoryGone):
                ledger.pin(name, Epoch(epoch))
        assert ledger.pins() == {"reader": 20}

    def test_a_horizon_cannot_pass_a_pin(self, ledger, term):
        ledger.append(record(10, 0, term))
        ledger.append(record(20, 10, term))
        ledger.pin("report", Epoch(10))
        with pytest.raises(LedgerConflict, match="pin at epoch 10"):
            ledger.append(record(30, 20, term, horizons={1: Epoch(10), 2: Epoch(20)}))
        assert ledger.last_epoch() == 20
        ledger.append(record(30, 20, term, horizons={1: Epoch(10)}))
        ledger.unpin("report")
        ledger.append(record(40, 30, term, horizons={2: Epoch(20)}))

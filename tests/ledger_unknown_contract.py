"""What every ledger must do when a commit gets no answer."""

from typing import Any

import pytest

from headwater.errors import CommitUnknown, Fenced, LedgerConflict
from headwater.ledger.backoff import Backoff
from headwater.ledger.ledger import Ledger
from headwater.model.epoch import NO_EPOCH
from ledger_kit import OpenLedgers, full_record, owner, record

QUICK = Backoff(first_s=0.001, longest_s=0.001, total_s=0.01)


class UnknownCommitContract(OpenLedgers):
    """Inherit, and give the fixture `url`."""

    def break_commits(self, ledger: Ledger, plan: list[str]) -> None:
        """Let the next commits go as planned.

        `done` is done and answered, `mute` is done and fails, `lost` is not done and fails.
        """
        engine = ledger.database.engine
        real = engine.dialect.do_commit
        broken = engine.dialect.dbapi.OperationalError

        def commit(connection: Any) -> None:
            step = plan.pop(0) if plan else "done"
            if step != "lost":
                real(connection)
            if step != "done":
                raise broken("the line went dead")

        engine.dialect.do_commit = commit

    @pytest.mark.parametrize(("step", "expected"), [("mute", True), ("lost", False)])
    def test_an_unanswered_commit_is_resolved(self, ledger, term, step, expected):
        self.break_commits(ledger, [step])
        wanted = full_record(1, 0, term)
        with pytest.raises(CommitUnknown, match="did not answer"):
            ledger.append(wanted)
        assert ledger.resolve(wanted) is expected
        assert ledger.last_epoch() == (1 if expected else 0)
        assert ledger.facts().positions == (wanted.positions if expected else {})

    def test_resolve_tells_records_of_one_epoch_apart(self, ledger, term):
        ledger.append(record(1, 0, term, positions={"a": "1"}))
        assert ledger.resolve(record(1, 0, term, positions={"a": "1"}))
        assert not ledger.resolve(record(1, 0, term, positions={"a": "2"}))
        assert not ledger.resolve(record(2, 1, term))

    @pytest.mark.parametrize(
        "plan",
        [["mute"], ["lost"], ["lost", "lost", "done", "mute"], ["mute", "lost", "mute"]],
        ids="+".join,
    )
    def test_append_resolved_gets_the_record_in_exactly_once(self, ledger, term, plan):
        calls: list[int] = []
        self.break_commits(ledger, plan)
        wanted = full_record(1, 0, term)
        ledger.append_resolved(
            wanted, also=lambda _: calls.append(1), sleep=lambda _: None, backoff=Backoff()
        )
        assert list(ledger.records(NO_EPOCH)) == [wanted]
        assert len(calls) >= 1
        ledger.append_resolved(record(2, 1, term))

    def test_append_resolved_says_unknown_when_nobody_answers(self, ledger, term):
        self.break_commits(ledger, ["mute"] + ["lost"] * 1000)
        with pytest.raises(CommitUnknown):
            ledger.append_resolved(record(1, 0, term), backoff=QUICK)
        self.break_commits(ledger, [])

    def test_append_resolved_raises_conflicts_and_fencing_at_once(self, ledger, term, open_ledger):
        def no_sleep(_: float) -> None:
            raise AssertionError("there is nothing to wait for")

        with pytest.raises(LedgerConflict):
            ledger.append_resolved(record(9, 8, term), sleep=no_sleep)
        open_ledger().take_over(owner(), force=True)
        with pytest.raises(Fenced):
            ledger.append_resolved(record(1, 0, term), sleep=no_sleep)

    def test_a_commit_that_got_in_counts_also_after_a_take_over(self, ledger, term, open_ledger):
        self.break_commits(ledger, ["mute"])
        other = open_ledger()
        ledger.append_resolved(
            record(1, 0, term), sleep=lambda _: other.take_over(owner(), force=True)
        )
        assert other.last_epoch() == 1
        with pytest.raises(Fenced):
            ledger.append_resolved(record(2, 1, term))

"""Engines that take over from each other in any order never fork the chain."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headwater.errors import CommitUnknown, Fenced, LedgerConflict, WorkspaceInUse
from headwater.ledger.ledger import Ledger
from headwater.model.epoch import NO_EPOCH
from ledger_kit import owner, record

ENGINES = st.integers(0, 2)


class TwoAndMoreEngines(RuleBasedStateMachine):
    """Three engines with beliefs of their own, beside a model of what must be true."""

    @initialize()
    def start(self):
        self.folder = tempfile.TemporaryDirectory()
        url = f"sqlite:///{Path(self.folder.name)}/ledger.db"
        self.ledgers = [Ledger.open(url) for _ in range(3)]
        self.owners = [owner() for _ in self.ledgers]
        self.terms = [0] * 3
        self.believed = [0] * 3
        self.term = 0
        self.held_by: int | None = None
        self.chain: list[tuple[int, int, str]] = []
        self.facts: dict[str, str] = {}
        for ledger in self.ledgers:
            self.spoil_commits(ledger)
        self.plan = "done"

    def spoil_commits(self, ledger: Ledger) -> None:
        engine = ledger.database.engine
        real, broken = engine.dialect.do_commit, engine.dialect.dbapi.OperationalError

        def commit(connection):
            plan, self.plan = self.plan, "done"
            if plan != "lost":
                real(connection)
            if plan != "done":
                raise broken("no answer")

        engine.dialect.do_commit = commit

    @property
    def last(self) -> int:
        return self.chain[-1][0] if self.chain else NO_EPOCH

    @rule(engine=ENGINES, force=st.booleans())
    def take_over(self, engine, force):
        free = self.held_by in (None, engine)
        if not force and not free:
            with pytest.raises(WorkspaceInUse):
                self.ledgers[engine].take_over(self.owners[engine])
            return
        self.terms[engine] = self.ledgers[engine].take_over(self.owners[engine], force=force)
        self.term += 1
        assert self.terms[engine] == self.term
        self.held_by = engine
        self.believed[engine] = self.ledgers[engine].last_epoch()

    @rule(engine=ENGINES)
    def release(self, engine):
        self.ledgers[engine].release(self.terms[engine])
        if self.held_by == engine and self.terms[engine] == self.term:
            self.held_by = None

    @rule(engine=ENGINES)
    def beat(self, engine):
        if self.terms[engine] == self.term and self.held_by == engine:
            self.ledgers[engine].heartbeat(self.terms[engine])
        else:
            with pytest.raises(Fenced):
                self.ledgers[engine].heartbeat(self.terms[engine])

    @rule(
        engine=ENGINES,
        step=st.integers(1, 3),
        plan=st.sampled_from(["done", "done", "lost", "mute"]),
        name=st.sampled_from("ab"),
        value=st.sampled_from(["", "1", "2"]),
    )
    def append(self, engine, step, plan, name, value):
        after, term = self.believed[engine], self.terms[engine]
        said = f"{name}={value}"
        wanted = record(after + step, after, term, positions={name: value})
        may = term == self.term and self.held_by == engine
        self.plan = plan if may and after == self.last else "done"
        try:
            self.ledgers[engine].append(wanted)
            written = True
        except Fenced:
            assert not may
            return
        except LedgerConflict:
            assert may
            assert after != self.last
            return
        except CommitUnknown:
            written = self.ledgers[engine].resolve(wanted)
            assert written == (plan == "mute")
        assert may
        assert after == self.last
        if written:
            self.chain.append((after + step, term, said))
            self.facts[name] = value
            self.believed[engine] = after + step

    @rule(engine=ENGINES)
    def forget(self, engine):
        """An engine that believes the wrong thing must be refused."""
        self.believed[engine] = max(0, self.believed[engine] - 1)

    @rule(engine=ENGINES)
    def look(self, engine):
        self.believed[engine] = self.ledgers[engine].last_epoch()

    @invariant()
    def one_chain(self):
        if not hasattr(self, "chain"):
            return
        reader = self.ledgers[0]
        found = list(reader.records(NO_EPOCH))
        said = [
            (entry.epoch, entry.term, "".join(f"{k}={v}" for k, v in entry.positions.items()))
            for entry in found
        ]
        assert said == self.chain
        assert reader.last_epoch() == self.last
        assert reader.facts().positions == {k: v for k, v in self.facts.items() if v}

    def teardown(self):
        for ledger in getattr(self, "ledgers", ()):
            ledger.close()
        if hasattr(self, "folder"):
            self.folder.cleanup()


TestTwoAndMoreEngines = TwoAndMoreEngines.TestCase
TestTwoAndMoreEngines.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)

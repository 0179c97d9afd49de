"""Keep materialized views current, inside the commit of each epoch.

When an epoch is about to be committed, all tables have staged what it changes. The keeper finds
what that changes in every view, level by level (a view on a view is a level higher), and stages
the views' stores, so that tables and views are in the same record: whoever reads an epoch finds
every view equal to its query.

    a view is      when
    current        its stores are at the last epoch
    failed         its query raises an error over the present rows: division by zero, overflow, ...
                   Its stores stay where they are, and whoever reads it gets that error, as from
                   the query itself. Once its tables change again it is recomputed, and when
                   that works it is current again.

A failed view stops neither the epoch nor other views, except those that read it.
Replay: nothing here is durable. A commit that is repeated calls `discard`, and begins again.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field

from headwater.catalog.relation import TableDef
from headwater.catalog.snapshot import UNDEFINED_TABLE, relation_error
from headwater.crash_points import crash_point
from headwater.errors import HeadwaterError, RetryableError, UserError
from headwater.model.epoch import Epoch
from headwater.model.ids import TableId
from headwater.model.table_commit import TableCommit
from headwater.observe.events import EventKind
from headwater.runtime.spark_errors import SparkGone, explained
from headwater.runtime.view_fill import stage_filled
from headwater.runtime.view_succession import Successor, succeed
from headwater.runtime.view_world import KeptView, SparkSource, ViewWorld, levels_of, live_view
from headwater.state.store import StateStore
from headwater.state.table import StateTable
from headwater.views.maintain import ViewChanges, maintain

Tell = Callable[[EventKind, str, str], None]

_PREFIX = "view:"
_SPELLS = 100
"""How many past failures of a view are remembered, for readers of older epochs."""
_PATIENCE = 10.0
"""A failed view is tried again after this many times the time that the last attempt took."""


@dataclass(slots=True)
class Failure:
    """Why a view is not current."""

    epoch: Epoch
    message: str
    sqlstate: str
    not_before: float = 0.0
    due: bool = False
    """Whether its tables have changed since it was last tried."""

    def error(self, view: str) -> UserError:
        """What a reader of the view gets."""
        error = UserError(
            f'{self.message} (view "{view}" has failed)',
            detail=f"Its query cannot be computed since epoch {self.epoch}.",
            hint="It is current again once the rows that cause this are changed or deleted.",
        )
        error.sqlstate = self.sqlstate
        return error


@dataclass(frozen=True, slots=True)
class Spell:
    """The epochs in which a view had failed: from `since` on, and well again at `until`."""

    since: Epoch
    until: Epoch
    message: str
    sqlstate: str


def encoded(failure: Failure | None, past: Sequence[Spell]) -> str:
    """What the ledger keeps of a view's failures."""
    now = None if failure is None else [failure.epoch, failure.message, failure.sqlstate]
    spells = [[s.since, s.until, s.message, s.sqlstate] for s in past[-_SPELLS:]]
    return json.dumps({"now": now, "past": spells})


def decoded(text: str) -> tuple[Failure | None, list[Spell]]:
    """The same, back; whether the tables of a failed view have changed since is not known."""
    stored = json.loads(text)
    now = None
    if stored["now"] is not None:
        epoch, message, sqlstate = stored["now"]
        now = Failure(epoch, message, sqlstate, due=True)
    return now, [Spell(*each) for each in stored["past"]]


@dataclass(slots=True)
class Kept:
    """What an epoch does to the views: commits for the record, and facts."""

    epoch: Epoch
    tables: list[TableCommit] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    failed: dict[TableId, Failure] = field(default_factory=dict)
    healed: set[TableId] = field(default_factory=set)


class ViewKeeper:
    """Maintains the views of an engine; called by the committer only, one epoch at a time."""

    def __init__(self, store: StateStore, spark: "SparkSource", tell: Tell | None = None) -> None:
        self._store = store
        self._spark = spark
        self.tell: Tell = tell or (lambda kind, subject, text: None)
        self.views: dict[TableId, KeptView] = {}
        self.failures: dict[TableId, Failure] = {}
        self._past: dict[TableId, list[Spell]] = {}
        self._levels: list[list[KeptView]] = []
        self._staged: list[StateTable] = []
        self._lost: dict[TableId, TableDef] = {}

    def keep(self, view: KeptView) -> None:
        """Keep a view current from the next epoch on."""
        self.views[view.id] = view
        self._lost.pop(view.id, None)
        self._levels = levels_of(self.views.values())

    def give_up(self, table: TableDef, error: HeadwaterError, epoch: Epoch) -> None:
        """A view that this version cannot plan: it can be read by nobody, and dropped."""
        self.failures[table.id] = Failure(epoch, error.message, error.sqlstate)
        self._lost[table.id] = table

    def refuse_failed(self, id_: TableId, epoch: Epoch | None = None) -> None:
        """Raise what readers of a view get that has failed, now or as of an epoch.

        Also where it was not there yet: what it then had was a part of its rows.
        """
        view = self.views.get(id_)
        if epoch is not None and view is not None and epoch < view.table.created:
            raise relation_error(
                f'view "{view.table.name}" did not exist at epoch {epoch}',
                UNDEFINED_TABLE,
                detail=f"It is there since epoch {view.table.created}.",
            )
        failure = self.failures.get(id_)
        if failure is not None and epoch is not None and epoch < failure.epoch:
            failure = None
        for spell in self._past.get(id_, ()):
            if epoch is not None and spell.since <= epoch < spell.until:
                failure = Failure(spell.since, spell.message, spell.sqlstate)
        if failure is not None:
            table = self._lost[id_] if id_ in self._lost else self.views[id_].table
            raise failure.error(table.name)

    def reads_failed(self, view: KeptView) -> bool:
        """Whether a view reads one that has failed."""
        return not view.reads.isdisjoint(self.failures)

    def forget(self, view: TableId) -> None:
        """Let a view go."""
        self.views.pop(view, None)
        self.failures.pop(view, None)
        self._lost.pop(view, None)
        self._past.pop(view, None)
        self._levels = levels_of(self.views.values())

    def remember(self, facts: Mapping[str, str]) -> None:
        """Take over from the ledger which views have failed."""
        for name, value in facts.items():
            if name.startswith(_PREFIX) and value:
                id_ = TableId(int(name.removeprefix(_PREFIX)))
                failure, self._past[id_] = decoded(value)
                if failure is not None:
                    self.failures[id_] = failure

    def discard(self) -> None:
        """Drop what is staged. Replay: nothing staged is left."""
        for store in self._staged:
            store.discard()
        self._staged.clear()

    def maintain(
        self,
        epoch: Epoch,
        without: Set[TableId] = frozenset(),
        successors: Sequence[Successor] = (),
    ) -> Kept:
        """Stage what the epoch changes in the views, from what it changes in the tables.

        Raises what keeps the successors from taking their places; nothing is staged then.
        """
        kept = Kept(epoch)
        world = ViewWorld(self._store, epoch)
        taken = {each.view.id for each in successors}
        for level in self._levels_with(successors):
            others = [view for view in level if view.id not in without and view.id not in taken]
            self._maintain_level(others, world, kept)
            if len(others) < len(level) and any(view.id in taken for view in level):
                self._succeed(successors, world, kept)
        return kept

    def confirm(self, kept: Kept) -> None:
        """The ledger has the epoch: remember who failed and who is well again."""
        self._staged.clear()
        for id_, failure in kept.failed.items():
            if id_ not in self.failures:
                name = self.views[id_].table.name
                self.tell(EventKind.VIEW_FAILED, name, failure.message)
            self.failures[id_] = failure
        for id_ in kept.healed:
            self._past[id_] = self._spells(id_, kept.epoch)
            self.failures.pop(id_, None)
            if id_ in self.views:
                self.tell(EventKind.VIEW_HEALED, self.views[id_].table.name, "current again")

    def fill(self, view: KeptView, epoch: Epoch) -> list[TableCommit]:
        """Create a view's stores and fill them with its query over the epoch's tables."""
        for id_ in sorted(view.reads):
            self.refuse_failed(id_)
        world = ViewWorld(self._store, epoch)
        with self._whole_or_not(view.stores):
            return stage_filled(self._spark(), view, world)

    def join(self, view: KeptView, after: Epoch, epoch: Epoch) -> list[TableCommit]:
        """Bring a view in the making from one epoch to another, which is about to be committed.

        All views that it reads have staged theirs. Replay: as of `StateTable.stage`.
        """
        for id_ in sorted(view.reads):
            self.refuse_failed(id_)
        world = ViewWorld(self._store, epoch, after)
        if not world.changed(view.reads, set()):
            return []
        self._staged += view.stores
        with self._whole_or_not(view.stores):
            live = live_view(view, self._store)
            (found,) = maintain(self._spark(), [live], world.relations([view])).views
            commits = [
                view.stores[number].stage(epoch, rows)
                for number, rows in sorted(found.stores.items())
            ]
        crash_point("snapshot.in_merge")
        return [commit for commit in commits if commit is not None]

    # Inside

    def _levels_with(self, successors: Sequence[Successor]) -> list[list[KeptView]]:
        if not successors:
            return self._levels
        # They take their places together, when all that any of them reads is staged.
        reads = frozenset(id_ for each in successors for id_ in each.made.reads)
        coming = {each.view.id: each.view for each in successors}
        views = {**self.views, **coming}
        return levels_of(views.values(), dict.fromkeys(coming, reads))

    def _succeed(self, successors: Sequence[Successor], world: ViewWorld, kept: Kept) -> None:
        stores = [store for each in successors for store in each.stores]
        for each in successors:
            for id_ in (each.made.id, *sorted(each.made.reads)):
                if self._is_failed(id_, kept):
                    cause = kept.failed.get(id_) or self.failures[id_]
                    raise cause.error(self.views[id_].table.name)
        self._staged += stores
        with self._whole_or_not(stores):
            kept.tables += succeed(successors, self._store, self._spark, world)
        for id_ in (each.view.id for each in successors):
            if id_ in self.failures:
                kept.healed.add(id_)
                kept.facts[f"{_PREFIX}{id_}"] = encoded(None, self._spells(id_, world.epoch))

    @contextmanager
    def _whole_or_not(self, stores: Sequence[StateTable]) -> Iterator[None]:
        """All of a view's stores are staged, or none of them is."""
        try:
            yield
        except Exception as error:
            for store in stores:
                store.discard()
            why = explained(error)
            if isinstance(why, SparkGone):
                self._spark.lost()
            raise why from error

    def _maintain_level(self, level: Sequence[KeptView], world: ViewWorld, kept: Kept) -> None:
        well = []
        for view in level:
            failed = next((id_ for id_ in sorted(view.reads) if self._is_failed(id_, kept)), None)
            touched = world.changed(view.reads, kept.healed)
            if failed is not None:
                cause = kept.failed.get(failed) or self.failures[failed]
                self._mark(view, Failure(world.epoch, cause.message, cause.sqlstate), kept)
            elif view.id in self.failures:
                self._try_again(view, self.failures[view.id], world, kept, touched=touched)
            elif touched:
                well.append(view)
        if well:
            self._maintain_well(well, world, kept)

    def _is_failed(self, id_: TableId, kept: Kept) -> bool:
        return id_ in kept.failed or (id_ in self.failures and id_ not in kept.healed)

    def _maintain_well(self, views: Sequence[KeptView], world: ViewWorld, kept: Kept) -> None:
        try:
            live = [live_view(view, self._store) for view in views]
            found = maintain(self._spark(), live, world.relations(views))
        except Exception as error:
            if len(views) == 1:
                self._fail(views[0], error, world, kept)
                return
            # One of them has a row that its query cannot take: find out which.
            for view in views:
                self._maintain_well([view], world, kept)
            return
        for view, changes in zip(views, found.views, strict=True):
            self._stage(view, changes, world, kept)

    def _stage(self, view: KeptView, changes: ViewChanges, world: ViewWorld, kept: Kept) -> None:
        staged = []
        self._staged += view.stores
        try:
            for number, rows in sorted(changes.stores.items()):
                commit = view.stores[number].stage(world.epoch, rows)
                if commit is not None:
                    staged.append(commit)
        except Exception as error:
            # What is not brought to the driver is only computed now.
            for store in view.stores:
                store.discard()
            self._fail(view, error, world, kept)
            return
        world.staged(view)
        kept.tables += staged

    def _try_again(
        self, view: KeptView, failure: Failure, world: ViewWorld, kept: Kept, *, touched: bool
    ) -> None:
        failure.due |= touched
        started = time.monotonic()
        if not failure.due or started < failure.not_before:
            return
        try:
            live = live_view(view, self._store, stale=True)
            (changes,) = maintain(self._spark(), [live], world.relations([view])).views
        except Exception as error:
            self._fail(view, error, world, kept, took=time.monotonic() - started)
            return
        self._stage(view, changes, world, kept)
        if view.id not in kept.failed:
            kept.healed.add(view.id)
            kept.facts[f"{_PREFIX}{view.id}"] = encoded(None, self._spells(view.id, world.epoch))

    def _fail(
        self, view: KeptView, error: Exception, world: ViewWorld, kept: Kept, took: float = 0.0
    ) -> None:
        why = explained(error)
        if isinstance(why, SparkGone):
            self._spark.lost()
        if isinstance(why, RetryableError):
            raise why from error
        # A failed view is recomputed whole: one that takes long must not slow every epoch.
        wait = time.monotonic() + _PATIENCE * took if took > 1 else 0.0
        self._mark(view, Failure(world.epoch, why.message, why.sqlstate, wait), kept)

    def _mark(self, view: KeptView, failure: Failure, kept: Kept) -> None:
        if view.id in self.failures:
            failure.epoch = self.failures[view.id].epoch
        kept.failed[view.id] = failure
        kept.facts[f"{_PREFIX}{view.id}"] = encoded(failure, self._past.get(view.id, ()))

    def _spells(self, id_: TableId, until: Epoch) -> list[Spell]:
        """A view's failures up to one that ends now."""
        failure = self.failures[id_]
        last = Spell(failure.epoch, until, failure.message, failure.sqlstate)
        return [*self._past.get(id_, ()), last][-_SPELLS:]

"""Let a view take the place of another at one epoch.

The one that comes has been filled in stores of its own, or is another view. The place is the main
store of the one that goes: those who read it, and those who follow its change log, read that store
before and after. It gets the net difference between its rows and the successor's, as an
ordinary change of that epoch, so they follow as they follow any other change.

    1  the successor's stores are brought to the epoch
    2  what its main store then holds is compared with what the place holds
    3  the difference is staged in the place; the other stores move over as they are

When two views exchange their places, both are compared before either is changed.
Replay: nothing here is durable; whoever calls discards what is staged, and begins again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import DataFrame

from headwater.crash_points import crash_point
from headwater.model.epoch import Epoch
from headwater.model.table_commit import TableCommit
from headwater.runtime.view_fill import stage_filled
from headwater.runtime.view_world import KeptView, SparkSource, ViewWorld, live_view
from headwater.state.store import StateStore
from headwater.state.table import StateTable
from headwater.views.difference import net_difference
from headwater.views.layout import MAIN
from headwater.views.maintain import maintain


@dataclass(frozen=True, slots=True, kw_only=True)
class Successor:
    """A view that takes the place of another."""

    view: KeptView
    """What it will be: it has the id and the main store of the other."""
    made: KeptView
    """What it is until then, in a main store of its own."""
    since: Epoch | None = None
    """The epoch that its stores have come to; the last one if none is named."""
    empty: bool = False
    """Whether its stores are not filled at all."""

    @property
    def place(self) -> StateTable:
        """The store that changes hands."""
        return self.view.stores[MAIN]

    @property
    def origin(self) -> StateTable:
        """The store that its rows come from."""
        return self.made.stores[MAIN]

    @property
    def stores(self) -> tuple[StateTable, ...]:
        """All that is staged for it."""
        return (*self.made.stores, self.place)


def succeed(
    successors: Sequence[Successor], store: StateStore, spark: SparkSource, world: ViewWorld
) -> list[TableCommit]:
    """Stage the epoch at which these views take their places."""
    commits: list[TableCommit] = []
    for each in successors:
        commits += _brought_up(each, store, spark, world)
    places = {each.place.id for each in successors}
    found = [
        _difference(each, spark, world.epoch, at_once=each.origin.id in places)
        for each in successors
    ]
    for each in successors:
        if each.origin.id in places:
            # Its own rows were only staged to be compared.
            each.origin.discard()
    for each, rows in zip(successors, found, strict=True):
        schema = each.view.layout.schemas[MAIN]
        changed = None if each.place.schema == schema else schema
        commit = each.place.stage(world.epoch, rows, schema=changed)
        if commit is not None:
            commits.append(commit)
        world.staged(each.view)
    for each in successors:
        if each.origin.id not in places:
            each.origin.discard()
    crash_point("swap.in_commit")
    return commits


def _brought_up(
    each: Successor, store: StateStore, spark: SparkSource, world: ViewWorld
) -> list[TableCommit]:
    """Stage the successor's own stores; the commits of those that it keeps."""
    made, epoch = each.made, world.epoch
    if each.empty:
        commits = stage_filled(spark(), made, world)
    else:
        own = world if each.since is None else ViewWorld(store, epoch, each.since)
        if not own.changed(made.reads, set()):
            return []
        live = live_view(made, store)
        (changes,) = maintain(spark(), [live], own.relations([made])).views
        staged = (made.stores[n].stage(epoch, rows) for n, rows in sorted(changes.stores.items()))
        commits = [commit for commit in staged if commit is not None]
    return [commit for commit in commits if commit.table != each.origin.id]


def _difference(
    each: Successor, spark: SparkSource, epoch: Epoch, *, at_once: bool
) -> pa.Table | DataFrame:
    """What the place lacks; computed `at_once` where its source is about to change."""
    schema = each.view.layout.schemas[MAIN]
    before = replace(each.place.view(), schema=schema)
    after = each.origin.upcoming(epoch).after
    found = net_difference(
        spark(),
        each.place.frame_of(before),
        each.origin.frame_of(after),
        schema,
        rows=before.rows + after.rows,
    )
    return found.localCheckpoint() if at_once and isinstance(found, DataFrame) else found

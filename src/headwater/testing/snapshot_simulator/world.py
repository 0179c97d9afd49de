"""What is durable: the catalog, the rows of views, the progress of those in the making, the pins.

A commit checks everything that is promised of an epoch. The catalog is the real one, as a value.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from headwater.backfill.snapshot.order import encoded as encoded_order
from headwater.backfill.snapshot.state import TableProgress, decoded
from headwater.catalog.relation import (
    Detail,
    ObjectDef,
    ObjectKind,
    Query,
    Read,
    TableDef,
    TableKind,
)
from headwater.catalog.snapshot import CatalogSnapshot
from headwater.errors import HistoryGone
from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.ids import TableId
from headwater.runtime.creating.job import BACKFILL, job_key
from headwater.testing.snapshot_simulator.upstream import (
    LARGE,
    SCHEMA,
    SMALL,
    Plan,
    Rows,
    Upstream,
    View,
)

Differences = Mapping[tuple[int, ...], tuple[bool, tuple[int, ...]] | None]
"""By key: None for a row that goes; whether it is new, and the row."""


def differences(before: Rows, after: Rows) -> Differences:
    """What makes one of the other."""
    found: dict[tuple[int, ...], tuple[bool, tuple[int, ...]] | None] = {}
    found |= dict.fromkeys(before.keys() - after.keys())
    for key, row in after.items():
        if before.get(key) != row:
            found[key] = (key not in before, row)
    return found


def applied(view: View, changes: Differences) -> View:
    """The same with changes, which must fit."""
    found = dict(view)
    for key, change in changes.items():
        if change is None:
            del found[key]
            continue
        new, row = change
        assert new != (key in found), f"{key} is inserted twice, or was never there"
        found[key] = row
    return found


@dataclass(slots=True, kw_only=True)
class Making:
    """A view in the making, as the catalog and its stores have it."""

    intent: ObjectDef
    plan: Plan
    rows: View = field(default_factory=dict)
    receipts: dict[str, View] = field(default_factory=dict)
    """What slices of sweeps have brought, whether or not an epoch has it."""
    let_go: bool = False
    """Whether somebody has cancelled it, and its pin is gone before it is."""

    @property
    def id(self) -> int:
        """Its id in the catalog, which is its job's."""
        return self.intent.id

    @property
    def key(self) -> str:
        """What its progress and its pin are filed under."""
        return job_key(self.id)


@dataclass(slots=True, kw_only=True)
class Live:
    """A view that is kept current."""

    table: TableDef
    plan: Plan
    rows: View


@dataclass(frozen=True, slots=True)
class Begin:
    """A view is in the making from this epoch on."""

    making: Making


@dataclass(frozen=True, slots=True)
class Join:
    """A view joins the others with this epoch, with the changes after another."""

    making: Making
    after: Epoch


@dataclass(frozen=True, slots=True)
class Drop:
    """A relation is gone from this epoch on."""

    id: int


@dataclass(frozen=True, slots=True)
class Set:
    """What somebody has set for a view in the making."""

    id: int
    name: str
    value: int | None


Definition = Begin | Join | Drop | Set


@dataclass(slots=True)
class World:
    """What the ledger has."""

    upstream: Upstream
    last: Epoch
    making: dict[int, Making] = field(default_factory=dict)
    live: dict[TableId, Live] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    pins: dict[str, Epoch] = field(default_factory=dict)
    _ids: int = 10

    def fresh_id(self) -> int:
        """An id that nobody ever had."""
        self._ids += 1
        return self._ids

    def catalog(self) -> CatalogSnapshot:
        """All relations."""
        base = [
            TableDef(id=id_, name=name, schema=SCHEMA, folder="")
            for id_, name in ((SMALL, "small"), (LARGE, "large"))
        ]
        return CatalogSnapshot(
            tables=(*base, *(each.table for each in self.live.values())),
            objects=tuple(each.intent for each in self.making.values()),
        )

    def progress(self, making: Making) -> dict[TableId, TableProgress]:
        """How far a view is."""
        stored = self.facts.get(making.key)
        return decoded(stored) if stored else {}

    def pin(self, name: str, epoch: Epoch) -> None:
        """As the ledger does it."""
        assert epoch <= self.last, "an epoch is pinned that is not committed"
        before = self.pins.get(name)
        if epoch < self.upstream.horizon and (before is None or epoch < before):
            raise HistoryGone(f"epoch {epoch} cannot be pinned, because it is no longer kept")
        self.pins[name] = epoch

    def forget_history(self) -> None:
        """Retention is over, but for what is pinned."""
        oldest = min([self.last, *self.pins.values()])
        self.upstream.horizon = max(self.upstream.horizon, oldest)

    # A commit

    def commit(
        self,
        epoch: Epoch,
        filled: Mapping[int, tuple[View | None, str]],
        definition: Definition | None,
    ) -> None:
        """The ledger has an epoch: what jobs handed over, and what was defined."""
        before, self.last = self.last, epoch
        self.upstream.seal(epoch)
        for id_, (rows, progress) in filled.items():
            assert id_ in self.making, "something is stored for a view that is not in the making"
            self.facts[self.making[id_].key] = progress
            if rows is not None:
                self.making[id_].rows = rows
            self._check_made(self.making[id_])
        for table, live in self.live.items():
            self._keep(table, live, before, epoch)
        if definition is not None:
            self._define(definition, epoch)
        self.check_pins()

    def _define(self, definition: Definition, epoch: Epoch) -> None:
        match definition:
            case Begin(making=making):
                assert self.catalog().relation(making.intent.name) is None, "a name is taken twice"
                self.making[making.id] = making
            case Join(making=making, after=after):
                self._join(making, after, epoch)
            case Set(id=id_, name=name, value=value):
                making = self.making[id_]
                text = "" if value is None else str(value)
                settings = {**making.intent.settings, name: text}
                making.intent = replace(making.intent, settings=settings)
            case Drop(id=id_):
                if id_ in self.making:
                    self.facts[self.making.pop(id_).key] = ""
                else:
                    del self.live[TableId(id_)]

    def _join(self, making: Making, after: Epoch, epoch: Epoch) -> None:
        """A view is kept current from what it has come to, over the changes since."""
        told = self.progress(making).values()
        at = {state.epoch for each in told for state in each.states if state.finished}
        as_told = at == {after} and all(each.finished for each in told)
        assert as_told, f"the view joins after {after}, and its progress says otherwise"
        states = self.upstream.states
        then = making.plan.over(states[after])
        assert making.rows == then, f"the view that joins is not what it was at {after}"
        del self.making[making.id]
        self.facts[making.key] = ""
        assert making.intent.query is not None
        (id_,) = making.intent.query.stores
        detail = Detail(query=replace(making.intent.query, stores=()))
        table = TableDef(
            id=id_,
            name=making.intent.name,
            schema=SCHEMA,
            folder="",
            kind=TableKind.MATERIALIZED_VIEW,
            detail=detail,
            created=epoch,
        )
        self.live[id_] = Live(table=table, plan=making.plan, rows=making.rows)
        self._keep(id_, self.live[id_], after, epoch)

    def _keep(self, table: TableId, live: Live, before: Epoch, epoch: Epoch) -> None:
        """What the keeper of live views does, and what must come of it."""
        states = self.upstream.states
        wanted = live.plan.over(states[epoch])
        changes = differences(live.plan.over(states[before]), wanted)
        live.rows = applied(live.rows, changes)
        assert live.rows == wanted, f"live view {live.table.name} is not its query at {epoch}"
        self.upstream.show(table, epoch, live.rows, len(changes))

    def _check_made(self, making: Making) -> None:
        """A view in the making is its query over exactly what was read."""
        read = self.progress(making)
        state = {table: self.upstream.so_far(table, each) for table, each in read.items()}
        wanted = making.plan.over(state)
        assert making.rows == wanted, f"{read}: {making.rows} is not {wanted}"

    def check_pins(self) -> None:
        """Whatever a view in the making still needs is pinned, and kept."""
        for making in self.making.values():
            if making.let_go:
                continue
            pin = self.pins.get(making.key)
            assert pin is not None, f"nothing keeps what view {making.intent.name} needs"
            needed = min((each.epoch for each in self.progress(making).values()), default=pin)
            assert pin <= needed, f"the pin of view {making.intent.name} passes what it needs"
            assert self.upstream.horizon <= pin, "history that is pinned is gone"

    def check_nothing_left(self) -> None:
        """Of views that are not in the making any more, nothing is filed."""
        made = {each.key for each in self.making.values()}
        left = {key for key, text in self.facts.items() if text and key.startswith(BACKFILL)}
        assert left <= made, f"progress is left behind: {left - made}"
        assert self.pins.keys() <= made, f"pins are left behind: {self.pins.keys() - made}"


def intent_of(world: World, name: str, plan: Plan, limit: int | None) -> ObjectDef:
    """What the catalog will have of a view that is begun."""
    names = {int(table.id): table.name for table in world.catalog().tables}
    reads = {names[table]: Read(relation=table, columns=("k", "v")) for table in plan.tables}
    store = TableId(world.fresh_id())
    return ObjectDef(
        id=world.fresh_id(),
        kind=ObjectKind.CREATING,
        name=name,
        query=Query(text="", reads=reads, stores=(store,)),
        settings={
            "backfill_rate_limit": "" if limit is None else str(limit),
            "backfill_order": encoded_order(plan.order),
        },
        created=NO_EPOCH,
    )

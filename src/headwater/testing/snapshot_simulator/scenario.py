"""One seed: views are created while their tables change, and everything goes wrong that can.

    what happens        how often
    views               begun at any moment, over tables, live views, and ones in the making,
                        which is refused; names are used again
    a barrier           plain, or a checkpoint whose epoch the ledger gets, or never gets
    a kill              at any moment: work under way, staged, committed, between the barriers
                        of a definition
    work ends           late, early, in any order where several slices run, or with an error
    commands            pause and resume, other rate limits, other parallelism, in every phase
    cancel, drop        in every phase; nothing is left
    the join            refused at first, or the engine dies before, within or after it
    retention           whatever is not pinned is gone

At every commit each live view is its query, and each view in the making is its query over what
its progress says. Barriers wait for nobody, pins hold, and progress does not fall within a life.
"""

import asyncio
import zlib
from dataclasses import dataclass
from random import Random

from headwater.backfill.snapshot.order import parse_order
from headwater.errors import RelationError, StorageUnavailable
from headwater.model.barrier import Barrier, BarrierKind, Mutation, Pause, Resume
from headwater.model.epoch import Epoch, EpochPair
from headwater.model.ids import TableId
from headwater.runtime.names import CatalogRelations
from headwater.sql.statement import ObjectName
from headwater.testing.many_seeds import SeedFailed
from headwater.testing.snapshot_simulator.engine import Command, Life
from headwater.testing.snapshot_simulator.upstream import (
    LARGE,
    SMALL,
    Plan,
    Upstream,
    groups,
    join,
    odd,
    tally,
)
from headwater.testing.snapshot_simulator.world import Making, World, intent_of
from headwater.testing.virtual_time import run

_FIRST = Epoch(1 << 20)
_MOST_EPOCHS = 2000
_MOST_ROUNDS = 50_000
_CALM_AFTER = 5
"""Later lives are calm, so that every seed ends."""
_NAMES = ("ann", "ben", "cem")
_ORDERS = ("small -> large", "large -> small")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a seed did."""

    seed: int
    digest: int
    epochs: int
    lives: int
    joined: int
    cancelled: int
    refused: int


def replay_command(seed: int) -> str:
    """How to run a seed again."""
    return f"python -m headwater.testing.snapshot_simulator --seeds 1 --seed0 {seed} --jobs 1"


def run_seed(seed: int) -> Report:
    """Run one; raises `SeedFailed` with what it has found."""
    scenario = _Scenario(seed)
    try:
        return run(scenario.run(), seed=seed, round_limit=_MOST_ROUNDS)
    except Exception as error:
        story = "\n".join(scenario.story[-12:])
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SeedFailed(f"seed {seed}: {said}\n{story}\n{replay_command(seed)}") from error


class _Scenario:
    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._dice = Random(seed)
        self._epoch = _FIRST
        self._lives = self._joined = self._cancelled = self._refused = 0
        self._wanted = self._dice.randrange(1, 4)
        self.story: list[str] = []
        upstream = Upstream(self._dice, seed)
        upstream.begin(_FIRST)
        self._world = World(upstream, _FIRST)

    async def run(self) -> Report:
        while not await self._live():
            assert self._epoch - _FIRST < _MOST_EPOCHS, "the views never join"
        self._world.check_nothing_left()
        assert not self._world.making
        return Report(
            seed=self._seed,
            digest=zlib.crc32("\n".join(self.story).encode()),
            epochs=self._epoch - _FIRST,
            lives=self._lives,
            joined=self._joined,
            cancelled=self._cancelled,
            refused=self._refused,
        )

    async def _live(self) -> bool:
        """One life; whether everything is done that was wanted."""
        self._lives += 1
        self._tell("life", self._lives)
        calm = self._lives > _CALM_AFTER
        life = Life(self._world, self._dice, self._tell)
        life.calm = calm
        try:
            await life.start()
            if calm:
                for id_ in life.jobs:
                    life.limit(id_, None)
            await self._pass(life, BarrierKind.INITIAL)
            for _ in range(500 if calm else self._dice.randrange(3, 50)):
                if not await self._step(life):
                    return False
                if self._is_over(life):
                    return True
                if not calm and self._dice.random() < 0.03:
                    self._tell("killed")
                    return False
            return False
        finally:
            self._joined += life.joined
            self._cancelled += life.cancelled
            await life.die()
            self._world.upstream.lost(self._world.last)

    async def _step(self, life: Life) -> bool:
        """What happens between two barriers, and the second of them; False when it dies."""
        dice = self._dice
        await asyncio.sleep(dice.random())
        await self._work(life)
        self._ask(life)
        if dice.random() < 0.2:
            self._world.forget_history()
            self._world.check_pins()
        mutation: Mutation | None = None
        if life.commands or dice.random() < 0.9:
            kind = BarrierKind.BARRIER if dice.random() < 0.2 else BarrierKind.CHECKPOINT
        else:
            kind = BarrierKind.CHECKPOINT
            mutation = Resume() if life.paused or life.calm else Pause()
        return await self._pass(life, kind, mutation)

    def _is_over(self, life: Life) -> bool:
        if not life.idle or self._wanted or self._world.making:
            return False
        self._world.check_nothing_left()
        return True

    async def _work(self, life: Life) -> None:
        dice = self._dice
        running = [work for work in life.works if not work.future.done()]
        dice.shuffle(running)
        for work in running:
            if life.calm or dice.random() < 0.6:
                fails = not life.calm and dice.random() < 0.1
                work.run(StorageUnavailable("away") if fails else None)
                if dice.random() < 0.5:
                    await life.settle()
        life.works = [work for work in life.works if not work.future.done()]
        await life.settle()
        life.check()

    # What users ask for

    def _ask(self, life: Life) -> None:
        """Something new, as long as there is something to ask for."""
        dice = self._dice
        made = list(self._world.making)
        if self._wanted and (dice.random() < 0.15 or not made):
            self._create(life)
        if not made or life.calm:
            return
        id_ = dice.choice(made)
        chance = dice.random()
        if chance < 0.03:
            self._tell("cancel", id_)
            life.cancel(id_)
        elif chance < 0.09:
            limit = dice.choice((None, None, 0, 9, 200))
            self._tell("limit", id_, limit)
            life.limit(id_, limit)
        elif chance < 0.15:
            slices = dice.choice((None, 1, 2, 3))
            self._tell("scale", id_, slices)
            life.scale(id_, slices)
        elif chance < 0.17 and self._world.live:
            table = dice.choice(list(self._world.live))
            self._tell("drop", table)
            life.drop(table)

    def _create(self, life: Life) -> None:
        dice = self._dice
        self._wanted -= 1
        name = dice.choice(_NAMES)
        plan = self._plan()
        if plan is None or self._world.catalog().relation(name) is not None:
            self._refused += 1
            return
        limit = None if life.calm else dice.choice((None, None, 0, 5, 60))
        intent = intent_of(self._world, name, plan, limit)
        self._tell("create", intent.id, name, plan.query.__name__, plan.tables, plan.order, limit)
        life.begin(Making(intent=intent, plan=plan))

    def _plan(self) -> Plan | None:
        """What a view is made of; None when it is over one in the making, which is refused."""
        dice = self._dice
        above = [*(each.intent.name for each in self._world.making.values())]
        above += [each.table.name for each in self._world.live.values()]
        chance = dice.random()
        if above and chance < 0.5:
            table = self._find(dice.choice(above))
            return None if table is None else Plan(query=tally, tables=(table,))
        if chance < 0.6:
            return Plan(query=odd, tables=(LARGE,), fresh=True)
        both = (SMALL, LARGE)
        if chance < 0.7:
            ordered = parse_order(
                f"FIXED({dice.choice(_ORDERS)})", {"small": SMALL, "large": LARGE}
            )
            return Plan(query=dice.choice((join, groups)), tables=both, order=ordered)
        if chance < 0.85:
            return Plan(query=groups, tables=both)
        return Plan(query=join, tables=both, fresh=dice.random() < 0.8)

    def _find(self, name: str) -> TableId | None:
        """The table that a name means, as the planner finds it."""
        relations = CatalogRelations(self._world.catalog())
        making = any(each.intent.name == name for each in self._world.making.values())
        try:
            relations.find(ObjectName(name))
        except RelationError:
            assert making, f"{name} is there, and refused"
            return None
        assert not making, f"a view over {name} is not refused, which is in the making"
        return TableId(relations.reads[name].relation)

    # Barriers

    async def _pass(self, life: Life, kind: BarrierKind, mutation: Mutation | None = None) -> bool:
        """A barrier; False when the engine dies before the ledger has its epoch."""
        ended, self._epoch = self._epoch, Epoch(self._epoch + 1)
        command: Command | None = None
        if kind is not BarrierKind.INITIAL:
            self._world.upstream.change()
            if kind.durable and mutation is None and life.commands:
                command = life.commands.popleft()
                mutation = command.mutation
        pair = EpochPair(prev=ended, curr=self._epoch)
        filled = await life.pass_(Barrier(epoch=pair, kind=kind, mutation=mutation), command)
        self._tell(kind.value, ended, mutation, {i: text for i, (_, text) in filled.items()})
        life.check()
        if not kind.durable:
            return True
        if self._dice.random() < 0.3:
            # The ledger takes its time, and nobody waits for it who need not.
            await self._work(life)
        if not life.calm and self._dice.random() < 0.04:
            self._tell("the ledger never gets it")
            return False
        life.commit(ended, filled, command)
        await life.settle()
        life.check()
        return True

    def _tell(self, *words: object) -> None:
        self.story.append(" ".join(str(word) for word in words))

"""One seed: a view is created while its tables change, and everything goes wrong that can.

    what happens        how often
    a barrier           plain, or a checkpoint whose epoch the ledger gets, or never gets
    a kill              at any moment: work under way, staged, committed, about to join
    work ends           late, early, in any order where several slices run, or with an error
    commands            pause and resume, other rate limits, another parallelism with each life
    the join            refused at first, or the engine dies before it

In the end the view is its query over the tables of the epoch that takes it along.
"""

import asyncio
import zlib
from dataclasses import dataclass
from random import Random

from headwater.errors import StorageUnavailable
from headwater.model.barrier import Barrier, BarrierKind, Mutation, Pause, Resume, Throttle
from headwater.model.epoch import Epoch, EpochPair
from headwater.testing.many_seeds import SeedFailed
from headwater.testing.snapshot_simulator.engine import JOB, Durable, Life
from headwater.testing.snapshot_simulator.upstream import Upstream, groups, join

_FIRST = Epoch(1 << 20)
_MOST_EPOCHS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a seed did."""

    seed: int
    digest: int
    epochs: int
    lives: int


def replay_command(seed: int) -> str:
    """How to run a seed again."""
    return f"python -m headwater.testing.snapshot_simulator --seeds 1 --seed0 {seed} --jobs 1"


def run_seed(seed: int) -> Report:
    """Run one; raises `SeedFailed` with what it has found."""
    scenario = _Scenario(seed)
    try:
        return asyncio.run(scenario.run())
    except Exception as error:
        story = "\n".join(scenario.story[-12:])
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SeedFailed(f"seed {seed}: {said}\n{story}\n{replay_command(seed)}") from error


class _Scenario:
    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._dice = Random(seed)
        self._epoch = _FIRST
        self._lives = 0
        self.story: list[str] = []
        upstream = Upstream(self._dice)
        upstream.begin(_FIRST)
        fresh = self._dice.random() < 0.6
        query = join if fresh or self._dice.random() < 0.3 else groups
        self._durable = Durable(upstream, query, fresh, seed, _FIRST)

    async def run(self) -> Report:
        while not await self._live():
            assert self._epoch - _FIRST < _MOST_EPOCHS, "the view never joins"
        digest = zlib.crc32("\n".join(self.story).encode())
        epochs = self._epoch - _FIRST
        return Report(seed=self._seed, digest=digest, epochs=epochs, lives=self._lives)

    async def _live(self) -> bool:
        """One life; whether the view has joined."""
        dice = self._dice
        self._lives += 1
        # Later lives are calmer, so that every seed ends.
        calm = self._lives > 6
        life = Life(
            self._durable,
            limit=None if calm else dice.choice((None, None, 5, 60)),
            parallelism=dice.randrange(1, 4),
            slices=dice.choice((1, 2, 1000)),
        )
        self._tell("life", self._lives)
        paused = False
        try:
            await self._pass(life, BarrierKind.INITIAL)
            for _ in range(400 if calm else dice.randrange(1, 40)):
                life.now += dice.random()
                await self._work(life, calm=calm)
                if not calm and dice.random() < 0.04:
                    self._tell("killed")
                    return False
                mutation: Mutation | None = None
                if dice.random() < 0.1:
                    mutation, paused = (Resume(), False) if paused or calm else (Pause(), True)
                elif dice.random() < 0.1:
                    limit = None if calm else dice.choice((None, 0, 9, 200))
                    mutation = Throttle(limits={JOB: limit})
                kind = BarrierKind.BARRIER if dice.random() < 0.2 else BarrierKind.CHECKPOINT
                if not await self._pass(life, kind, mutation, calm=calm):
                    return False
                if life.merged is not None and await self._join(life, calm=calm):
                    return True
            return False
        finally:
            await life.die()

    async def _work(self, life: Life, *, calm: bool) -> None:
        dice = self._dice
        running = [work for work in life.works if not work.future.done()]
        dice.shuffle(running)
        for work in running:
            if calm or dice.random() < 0.6:
                fails = not calm and dice.random() < 0.1
                work.run(StorageUnavailable("away") if fails else None)
                await life.settle()
        life.works = [work for work in life.works if not work.future.done()]
        assert not life.failed, life.failed

    async def _pass(
        self,
        life: Life,
        kind: BarrierKind,
        mutation: Mutation | None = None,
        *,
        calm: bool = False,
    ) -> bool:
        """A barrier; False when the engine dies before the ledger has its epoch."""
        ended, self._epoch = self._epoch, Epoch(self._epoch + 1)
        if kind is not BarrierKind.INITIAL:
            self._durable.upstream.change(Epoch(ended - 1), ended)
        else:
            self._durable.upstream.states.setdefault(
                ended, self._durable.upstream.states[self._durable.last]
            )
        pair = EpochPair(prev=ended, curr=self._epoch)
        filled = await life.pass_(Barrier(epoch=pair, kind=kind, mutation=mutation))
        self._tell(kind.value, ended, mutation, filled.progress if filled else "")
        assert filled is None or kind.durable, "a plain barrier stores something"
        if not kind.durable:
            return True
        if self._dice.random() < 0.3:
            # The ledger takes its time, and nobody waits for it who need not.
            await self._work(life, calm=calm)
        if not calm and self._dice.random() < 0.05:
            self._tell("the ledger never gets it")
            self._lost(ended)
            return False
        life.commit(ended, filled)
        self._durable.exists = True
        await life.settle()
        return True

    def _lost(self, ended: Epoch) -> None:
        """What an epoch changed that the ledger never got, sources bring again later."""
        upstream = self._durable.upstream
        for epoch in range(self._durable.last + 1, ended + 1):
            upstream.states[Epoch(epoch)] = upstream.states[self._durable.last]
            upstream.changed.pop(Epoch(epoch), None)

    async def _join(self, life: Life, *, calm: bool) -> bool:
        """The commit that takes the view along, unless it is refused or never happens."""
        dice = self._dice
        assert life.merged is not None
        after, life.merged = life.merged, None
        if not calm and dice.random() < 0.3:
            self._tell("the join is refused")
            life.executor.merge_failed()
            life.now += 40
            return False
        if not calm and dice.random() < 0.2:
            self._tell("the join never reaches the ledger")
            life.executor.merge_failed()
            life.now += 40
            return False
        states = self._durable.upstream.states
        wanted = self._durable.query(states[after])
        assert self._durable.view == wanted, f"the view that joins is not what it was at {after}"
        read = self._durable.read
        told = all(each.finished and each.epoch == after for each in read.values())
        assert told, f"the view joins after {after}, and its progress says otherwise"
        self._tell("joined", after)
        return True

    def _tell(self, *words: object) -> None:
        self.story.append(" ".join(str(word) for word in words))

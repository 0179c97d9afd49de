"""One seed: rows are delivered while everything goes wrong that can.

    what happens        how often
    an epoch            with rows or none, a checkpoint or not, sometimes with other vnodes
    a commit            some steps later, or never: the engine dies and its epochs are rolled back,
                        and their numbers may be given again
    a kill              at any moment, with a call under way that takes effect later, or never
    a zombie            the old engine goes on for a while beside the new one
    an outage           of the target or of the ledger, for some steps
    lost parts          what was prepared disappears from the target
    commands            another interval or rate limit, a rewind to an epoch that is still kept

In the end everything is calm, and the target has each row exactly as often as it is owed.
"""

import zlib
from dataclasses import dataclass
from random import Random

from headwater.errors import HeadwaterError
from headwater.logstore.items import Offset
from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.rate_limit import RateLimit
from headwater.testing.many_seeds import SeedFailed
from headwater.testing.sink_simulator.durable import Ledger, Log, Target, Written, settled
from headwater.testing.sink_simulator.life import Life, World

_SECOND = 1000 << 16
_STEPS = 200
_CALM_STEPS = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a seed did."""

    seed: int
    digest: int
    epochs: int
    lives: int
    deliveries: int


def replay_command(seed: int) -> str:
    """How to run a seed again."""
    return f"python -m headwater.testing.sink_simulator --seeds 1 --seed0 {seed} --jobs 1"


def run_seed(seed: int) -> Report:
    """Run one; raises `SeedFailed` with what it has found."""
    scenario = _Scenario(seed)
    try:
        return scenario.run()
    except Exception as error:
        story = "\n".join(scenario.story[-25:])
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SeedFailed(f"seed {seed}: {said}\n{story}\n{replay_command(seed)}") from error


class _Scenario:
    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._dice = Random(seed)
        self._staged = self._dice.random() < 0.5
        log = Log()
        self._world = World(log, Ledger(), Target(log))
        self._epochs = 0
        self._lives = 0
        self._now = 0.0
        self.story: list[str] = []
        self._zombies: list[Life] = []
        self._life = self._born(calm=False)

    def run(self) -> Report:
        for _ in range(_STEPS):
            self._now += self._dice.random() * 0.3
            self._happens()
        self._world.target.away = self._world.ledger.away = False
        self._finish()
        digest = zlib.crc32("\n".join(self.story).encode())
        return Report(
            seed=self._seed,
            digest=digest,
            epochs=self._epochs,
            lives=self._lives,
            deliveries=self._world.target.deliveries,
        )

    def _born(self, *, calm: bool) -> Life:
        self._lives += 1
        self._tell(f"life {self._lives}")
        return Life(self._world, self._dice, staged=self._staged, calm=calm)

    def _happens(self) -> None:
        dice = self._dice.random()
        if dice < 0.70:
            self._step(self._life, "")
        elif dice < 0.80:
            self._write()
        elif dice < 0.86:
            self._world.log.commit()
        elif dice < 0.91:
            self._zombie()
        elif dice < 0.925:
            self._kill()
        elif dice < 0.965:
            self._outage()
        else:
            self._command()

    def _step(self, life: Life, who: str) -> None:
        did = life.step(self._now)
        self._tell(f"{who}{did}")
        if life.over and life is self._life:
            raise AssertionError(f"the newest engine is fenced: {life.machine.fenced}")

    def _write(self) -> None:
        log = self._world.log
        last = log.epochs[-1].epoch if log.epochs else log.committed
        chunks = tuple(
            self._dice.randrange(1, 4) for _ in range(self._dice.choice((0, 0, 0, 1, 1, 2)))
        )
        epoch = Epoch(max(last, log.committed) + _SECOND)
        checkpoint = self._dice.random() < 0.7
        log.epochs.append(Written(epoch, checkpoint, chunks, self._dice.random() < 0.05))
        self._epochs += 1
        self._tell(f"epoch {epoch // _SECOND} {chunks} {checkpoint}")

    def _kill(self) -> None:
        dying = self._life
        if self._dice.random() < 0.5:
            dying.dies()
            dying = _ended(dying)
        self._zombies.append(dying)
        self._world.log.roll_back()
        self._life = self._born(calm=False)

    def _zombie(self) -> None:
        if not self._zombies:
            return
        zombie = self._dice.choice(self._zombies)
        if zombie.late:
            try:
                zombie.late.pop()()
                self._tell("a late call takes effect")
            except HeadwaterError as error:
                self._tell(f"a late call: {type(error).__name__}")
        elif zombie.over or self._dice.random() < 0.1:
            self._zombies.remove(zombie)
        else:
            self._step(zombie, "zombie: ")

    def _outage(self) -> None:
        where = self._dice.choice((self._world.target, self._world.ledger))
        where.away = not where.away and self._dice.random() < 0.5
        parts = self._world.target.parts
        hidden = [name for name, part in parts.items() if not part.shown]
        if hidden and self._dice.random() < 0.2:
            del parts[self._dice.choice(hidden)]
            self._tell("a part is lost")

    def _command(self) -> None:
        machine = self._life.machine
        what = self._dice.random()
        if what < 0.4:
            limit = self._dice.choice((None, None, 0, 2, 50))
            machine.told(self._now, limit=RateLimit(rows_per_s=limit))
        elif what < 0.7:
            machine.told(self._now, interval=self._dice.choice((1, 2, 4)))
        else:
            self._rewind()

    def _rewind(self) -> None:
        machine, log = self._life.machine, self._world.log
        kept = [
            each.epoch
            for each in log.epochs
            if log.truncating <= Offset(each.epoch) and each.epoch <= machine.delivered
        ]
        if kept and machine.delivered > NO_EPOCH:
            epoch = self._dice.choice(kept)
            machine.rewind(epoch)
            self._tell(f"rewind to {epoch // _SECOND}")

    def _finish(self) -> None:
        """A last life in which nothing fails, with an epoch that ends whatever is open."""
        self._zombies.clear()
        self._world.log.roll_back()
        self._life = self._born(calm=True)
        log = self._world.log
        for _ in range(5):
            last = log.epochs[-1].epoch if log.epochs else log.committed
            epoch = Epoch(max(last, log.committed) + _SECOND)
            log.epochs.append(Written(epoch, True, ()))
        log.commit()
        for _ in range(_CALM_STEPS):
            self._now += 1.0
            self._step(self._life, "")
            if self._life.machine.delivered >= log.committed and self._life.machine.waiting:
                break
        settled(self._world.ledger, self._world.target)

    def _tell(self, what: str) -> None:
        self.story.append(f"{self._now:.1f} {what}")


def _ended(life: Life) -> Life:
    """A life that does nothing more by itself."""
    life.machine.stop()
    life.machine.current = None
    life.machine.trouble.error = HeadwaterError("dead")
    life.machine.next(1e9)
    return life

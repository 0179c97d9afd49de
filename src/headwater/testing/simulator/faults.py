"""What can go wrong in one seed, and how often.

Every seed draws its own mix: some kinds of fault are off, others are frequent. A mix in which
everything fails all the time would hardly ever get anywhere interesting.

    fault              what happens
    crash              the process is killed at a step that leaves it, or at a crash point
    freeze             the process stops for a while; another takes over; then it wakes up
    storage            a call to storage fails, nothing is done
    storage_unknown    a call to storage is done, and reports failure
    ledger             a transaction is refused
    commit_lost        a commit is not answered, and did not happen
    commit_unknown     a commit is not answered, and did happen
    source             an upstream cannot be reached
    actor              a job stops with a bug
    clock              the wall clock jumps, also back
"""

from dataclasses import dataclass, fields
from random import Random


@dataclass(slots=True, kw_only=True)
class Faults:
    """Probabilities per occasion."""

    crash: float = 0.0
    freeze: float = 0.0
    storage: float = 0.0
    storage_unknown: float = 0.0
    ledger: float = 0.0
    commit_lost: float = 0.0
    commit_unknown: float = 0.0
    source: float = 0.0
    actor: float = 0.0
    clock: float = 0.0

    @classmethod
    def draw(cls, random: Random) -> "Faults":
        """The mix of one seed."""
        highest = cls(
            crash=0.02,
            freeze=0.5,
            storage=0.05,
            storage_unknown=0.05,
            ledger=0.08,
            commit_lost=0.08,
            commit_unknown=0.08,
            source=0.08,
            actor=0.03,
            clock=0.3,
        )
        mix = cls()
        for each in fields(cls):
            if random.random() < 0.5:
                setattr(mix, each.name, getattr(highest, each.name) * random.random())
        return mix

"""Decide where a simulated process dies.

    plan = CrashPlan.at("epoch.after_ledger", nth=2)
    plan = CrashPlan.anywhere(seed=7, probability=0.01)

    with plan:                       # one life of the process
        run(main(), seed=7)          # raises SimulatedCrash where the plan says so

The same plan can be entered again for the next life; passes are counted over all lives.
`CrashPlan.never()` only counts, to learn which points a program passes.

A crash is a `BaseException`, so that no `except Exception` survives it. Python still runs
`finally` blocks on the way out, which a killed process would not. So once a plan has crashed,
every further crash point of that life raises again, `crashed` tells simulated storage to
refuse writes, and a virtual-time loop runs nothing more. Exact to the byte is only a real
process with `HEADWATER_CRASH` (`testing/processes.py`).
"""

import asyncio
from collections import Counter
from collections.abc import Collection
from random import Random
from types import TracebackType
from typing import Self

from headwater import crash_points
from headwater.testing.virtual_time import VirtualTimeLoop

_entered: "CrashPlan | None" = None


class SimulatedCrash(BaseException):
    """The process died at a named point."""

    def __init__(self, point: str, nth: int) -> None:
        super().__init__(f"simulated crash at pass {nth} of {point}: {crash_points.POINTS[point]}")
        self.point = point
        self.nth = nth


class CrashPlan:
    """Where to crash, what was passed, and what has crashed so far."""

    def __init__(
        self,
        *,
        points: Collection[str] | None = None,
        nth: int | None = None,
        probability: float = 0.0,
        seed: int = 0,
        most: int | None = None,
    ) -> None:
        for point in points or ():
            if point not in crash_points.POINTS:
                known = ", ".join(crash_points.POINTS)
                raise ValueError(f"{point!r} is no crash point; the crash points are: {known}")
        if not 0 <= probability <= 1:
            raise ValueError(f"a probability is between 0 and 1, not {probability}")
        if nth is not None and nth < 1:
            raise ValueError(f"passes are counted from 1, not {nth}")
        self.passed: Counter[str] = Counter()
        """How often each point was passed, over all lives."""
        self.crashes: list[SimulatedCrash] = []
        """What has crashed, over all lives."""
        self.crashed: SimulatedCrash | None = None
        """The crash of this life; simulated storage refuses writes while it is set."""
        self._points = frozenset(crash_points.POINTS if points is None else points)
        self._nth = nth
        self._probability = probability
        self._random = Random(f"{seed}/crashes")
        self._left = -1 if most is None else most

    @classmethod
    def never(cls) -> Self:
        """Only count."""
        return cls()

    @classmethod
    def at(cls, point: str, nth: int = 1) -> Self:
        """Crash once, at the nth pass of one point."""
        return cls(points=[point], nth=nth)

    @classmethod
    def anywhere(
        cls,
        *,
        seed: int,
        probability: float,
        points: Collection[str] | None = None,
        most: int | None = None,
    ) -> Self:
        """Crash with some probability at every pass of a point, at most `most` times in all."""
        return cls(points=points, probability=probability, seed=seed, most=most)

    @property
    def unpassed(self) -> frozenset[str]:
        """The points that were never passed; of interest when a test should reach all."""
        return frozenset(crash_points.POINTS) - self.passed.keys()

    def __enter__(self) -> Self:
        global _entered  # noqa: PLW0603  one process, one crash plan
        if _entered is not None:
            raise RuntimeError("a crash plan is in force already; leave it first")
        _entered = self
        self.crashed = None
        crash_points.install_hook(self._pass)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        global _entered  # noqa: PLW0603
        _entered = None
        crash_points.install_hook(None)

    def _pass(self, point: str) -> None:
        if self.crashed is not None:
            raise self.crashed
        self.passed[point] += 1
        if self._left and point in self._points and self._chosen(point):
            self._left -= 1
            self.crashed = SimulatedCrash(point, self.passed[point])
            self.crashes.append(self.crashed)
            loop = asyncio._get_running_loop()
            if isinstance(loop, VirtualTimeLoop):
                loop.die(self.crashed)
            raise self.crashed

    def _chosen(self, point: str) -> bool:
        if self._nth is not None:
            return self.passed[point] == self._nth
        return self._probability > 0 and self._random.random() < self._probability

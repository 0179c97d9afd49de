"""How fast a backfill goes and when it will be through, smoothed, with time handed in."""

import math
from datetime import timedelta

_HALF_LIFE_S = 10.0


class Meter:
    """Rows per second as a mean in which what is ten seconds old counts half."""

    def __init__(self, rows: int, at: float) -> None:
        self._rows = rows
        self._at = at
        self._rate = 0.0
        self._weight = 0.0

    def observe(self, rows: int, at: float) -> None:
        """So many rows are read in all."""
        passed = at - self._at
        if passed <= 0:
            return
        fades = math.exp(-math.log(2) * passed / _HALF_LIFE_S)
        gained = max(rows - self._rows, 0) / passed
        self._rate = self._rate * fades + gained * (1 - fades)
        # The mean of the first seconds is not held down by the time before there was anything.
        self._weight = self._weight * fades + (1 - fades)
        self._rows, self._at = rows, at

    @property
    def rows_per_second(self) -> float:
        """The smoothed rate."""
        return self._rate / self._weight if self._weight else 0.0

    def remaining(self, total_rows: int | None) -> timedelta | None:
        """How long it will still take, when that can be said."""
        rate = self.rows_per_second
        if total_rows is None or rate <= 0:
            return None
        return timedelta(seconds=max(total_rows - self._rows, 0) / rate)

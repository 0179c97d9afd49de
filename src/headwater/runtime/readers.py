"""The epochs that queries read, which must stay readable meanwhile."""

import contextlib
from collections import Counter
from collections.abc import Iterator

from headwater.model.epoch import Epoch


class Readers:
    """How many read each epoch."""

    def __init__(self) -> None:
        self._epochs: Counter[Epoch] = Counter()

    @property
    def epochs(self) -> list[Epoch]:
        """The epochs that somebody reads."""
        return list(self._epochs)

    @contextlib.contextmanager
    def reading(self, epoch: Epoch) -> Iterator[None]:
        """Keep an epoch readable while something reads it, whatever the retention."""
        self._epochs[epoch] += 1
        try:
            yield
        finally:
            self._epochs[epoch] -= 1
            if not self._epochs[epoch]:
                del self._epochs[epoch]

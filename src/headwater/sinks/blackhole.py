"""A sink that counts rows and keeps none; to measure what comes before a target."""

from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.ids import Term
from headwater.sinks.options import Option, checked_options
from headwater.sinks.sink import Batches, Delivery, SinkSpec

OPTIONS: tuple[Option, ...] = ()


class BlackholeSink:
    """Takes everything. It has no memory: what it was given, it does not know."""

    def __init__(self) -> None:
        self.rows = 0
        self.deliveries = 0

    def check(self) -> None:
        """There is nothing to check. Replay: nothing happens."""

    def begin(self, term: Term) -> Epoch:
        """It has nothing, whoever asks. Replay: the same answer."""
        return NO_EPOCH

    def drop(self) -> None:
        """There is nothing to remove. Replay: nothing happens."""

    def deliver(self, delivery: Delivery, rows: Batches) -> None:
        """Count. Replay: counts once more."""
        for batch in rows:
            self.rows += batch.num_rows
        self.deliveries += 1


def blackhole_sink(spec: SinkSpec) -> BlackholeSink:
    """Make one of what a user asked for."""
    checked_options("blackhole", spec.options, OPTIONS)
    return BlackholeSink()

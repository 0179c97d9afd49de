"""What a Spark task does for a delivery: read its share of the rows, fold it, hand it over.

Tasks import this, so it imports little: a worker that is new has to load all of it first.
"""

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from headwater.errors import HeadwaterError
from headwater.runtime.sinks.log_files import Share
from headwater.sinks.courier import deliver_part
from headwater.sinks.fold import Folding
from headwater.sinks.sink import Delivery, Receipt, Sink

Bring = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

ANSWER = "part int, receipt binary, error binary"


@dataclass(frozen=True, slots=True)
class Part:
    """What one task brings; travels to it."""

    number: int
    share: Share
    sink: Sink
    delivery: Delivery
    folding: Folding

    def bring(self) -> Receipt | None:
        """Fold and hand over, one table after the other."""
        return deliver_part(self.sink, self.delivery, self.folding, self.number, self.share)


def bringing(parts: Sequence[Part]) -> Bring:
    """Bring the parts whose places are in the first column; gives an `ANSWER` for each."""
    packed = [pickle.dumps(part) for part in parts]

    def bring(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield _answered(pickle.loads(packed[number]))

    return bring


def _answered(part: Part) -> pa.RecordBatch:
    receipt, error = None, None
    try:
        receipt = part.bring()
    except HeadwaterError as problem:
        # Spark would try again at once, and turn it into a text.
        error = pickle.dumps(problem)
    fields = [("part", pa.int32()), ("receipt", pa.binary()), ("error", pa.binary())]
    row = {"part": part.number, "receipt": receipt, "error": error}
    return pa.RecordBatch.from_pylist([row], schema=pa.schema(fields))

"""What a test source checks about whoever reads it.

    the reader must                                        or else
    read on from where it read, or from the ledger         it has made a position up
    never read from before an acknowledged position        it forgot something it had stored
    acknowledge only what it has read                      a crash would lose changes (P4)
    never acknowledge backwards while it lives             its positions are out of order

After `restarted` one position may be older than the last, because the reader begins again from
its ledger. Breaking a rule raises `ContractBroken`: a bug of the engine, not of the test.
"""

from headwater.errors import SchemaError
from headwater.model.ids import SourceName
from headwater.model.position import Ordinal

BEGINNING = Ordinal(0)


class ContractBroken(AssertionError):
    """The reader of a test source did what a reader must not do."""


class SourceContract:
    """One reader's moves over a log of numbered entries."""

    def __init__(self, source: SourceName) -> None:
        self.acknowledged = BEGINNING
        """The highest position that was ever acknowledged."""
        self._source = source
        self._last_acknowledged = BEGINNING
        self._read: Ordinal | None = None

    def restarted(self) -> None:
        """Hear that the reader crashed and begins again."""
        self._last_acknowledged = BEGINNING

    def begin_read(self, after: str | None) -> Ordinal:
        """Check where a read begins."""
        begin = BEGINNING if after is None else self._decode(after)
        if begin < self.acknowledged:
            raise ContractBroken(
                f'source "{self._source}" is read after position {begin.count}, '
                f"but {self.acknowledged.count} was acknowledged and may be gone"
            )
        if self._read is None:
            self._read = begin
        elif self._read < begin:
            raise ContractBroken(
                f'source "{self._source}" is read after position {begin.count}, '
                f"but was read up to {self._read.count} only"
            )
        return begin

    def end_read(self, end: Ordinal) -> None:
        """Note how far the reader has come."""
        assert self._read is not None
        self._read = max(self._read, end)

    def acknowledge(self, position: str) -> None:
        """Check an acknowledgement."""
        at = self._decode(position)
        read = self._read
        if read is not None and read < at:
            raise ContractBroken(
                f'position {at.count} of source "{self._source}" is acknowledged, '
                f"but it was read up to {read.count} only"
            )
        if at < self._last_acknowledged:
            raise ContractBroken(
                f'position {at.count} of source "{self._source}" is acknowledged '
                f"after {self._last_acknowledged.count} was"
            )
        self._last_acknowledged = at
        self.acknowledged = max(self.acknowledged, at)

    def _decode(self, position: str) -> Ordinal:
        try:
            return Ordinal.decode(position)
        except ValueError:
            raise SchemaError(
                f'source "{self._source}" has no position {position!r}',
                detail="Its positions are numbers of transactions.",
            ) from None

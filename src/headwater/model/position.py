"""Positions: totally ordered places in one upstream log.

A source writes its positions as text of its own; the ledger stores that text and never looks
inside. What the rest of the engine needs is only to compare two positions of the same source,
and to write one down and read it back unchanged.
"""

from dataclasses import dataclass
from typing import Protocol, Self


class Position(Protocol):
    """A place in one upstream log; later ones compare greater."""

    def __lt__(self, other: Self, /) -> bool:
        """Whether every change up to here is before `other`."""
        ...

    def encode(self) -> str:
        """Text from which `decode` of the same type makes an equal position."""
        ...


@dataclass(frozen=True, slots=True, order=True)
class Ordinal:
    """The position of a log whose entries are numbered: how many have been read."""

    count: int

    def encode(self) -> str:
        """The number in decimal."""
        return str(self.count)

    @classmethod
    def decode(cls, text: str) -> Self:
        """Read back what `encode` wrote."""
        return cls(int(text))

"""GTIDs: which transactions have been executed, as the two servers spell it.

MySQL      a set of ranges per server:  3e11fa47-...:1-77:80, 7c2d...:1-5
MariaDB    the last one per domain:     0-11-234,1-12-7
"""

from dataclasses import dataclass, field
from typing import Self

import numpy as np

from headwater.cdc.mysql.pieces import Array


@dataclass(slots=True)
class MySqlGtids:
    """A set that grows."""

    ranges: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Self:
        """A set as the server spells it; tags of MySQL 8.3 and later belong to their server."""
        found: dict[str, list[tuple[int, int]]] = {}
        for server in text.replace("\n", "").split(","):
            name, *parts = server.strip().split(":")
            tag = ""
            for part in parts:
                first, dash, last = part.partition("-")
                if not first.isdigit():
                    tag = f":{part}"
                    continue
                numbers = (int(first), int(last if dash else first))
                found.setdefault(f"{name.lower()}{tag}", []).append(numbers)
        return cls(found)

    def __str__(self) -> str:
        return ",".join(
            ":".join([name, *(f"{a}-{b}" if a != b else str(a) for a, b in self.ranges[name])])
            for name in sorted(self.ranges)
        )

    def __contains__(self, gtid: tuple[str, int]) -> bool:
        name, number = gtid
        return any(first <= number <= last for first, last in self.ranges.get(name, ()))

    def add(self, name: str, numbers: Array) -> None:
        """Add transactions of one server."""
        numbers = np.unique(numbers)
        gaps = np.flatnonzero(np.diff(numbers) > 1)
        firsts = numbers[np.concatenate([[0], gaps + 1])].tolist()
        lasts = numbers[np.concatenate([gaps, [len(numbers) - 1]])].tolist()
        ranges = sorted([*self.ranges.get(name, ()), *zip(firsts, lasts, strict=True)])
        merged: list[tuple[int, int]] = []
        for first, last in ranges:
            if merged and first <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(merged[-1][1], last))
            else:
                merged.append((first, last))
        self.ranges[name] = merged


@dataclass(slots=True)
class MariaDbGtids:
    """The last transaction of each domain."""

    last: dict[int, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Self:
        """A position as the server spells it."""
        found = {}
        for part in text.split(","):
            if part.strip():
                domain, server, number = (int(each) for each in part.split("-"))
                found[domain] = (server, number)
        return cls(found)

    def __str__(self) -> str:
        return ",".join(f"{domain}-{a}-{b}" for domain, (a, b) in sorted(self.last.items()))

    def add(self, domain: int, server: int, number: int) -> None:
        """A transaction was executed."""
        self.last[domain] = (server, number)


def uuid_of(raw: Array) -> str:
    """A server's UUID, as it is spelled."""
    text = raw.tobytes().hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))

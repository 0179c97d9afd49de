"""Where a stream is: how much of the snapshot is read, and how far the log.

A position is what Spark writes into the query's checkpoint, as JSON with a version. A batch
follows from its two positions:

    the first is                      the batch has
    the very first one                nothing; its end is the plan: splits, and where the log begins
    one with more splits left         the rows of the splits in between
    one with an earlier place         the changes in between

While the snapshot is read, the table is three kinds of ranges, in the order of the key:

    settled    its rows are read, and the log has passed everything that they hold
    read       its rows are read at a known moment; the log may still bring what they hold
    left       its splits are still to be read

Promise: "now" is never a start. Spark asks for the first position again when a query died in its
first batch; what was found then is in that batch's end.
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from headwater.cdc.external_table import Split
from headwater.cdc.offset import CdcOffset, parse_offset, serialized
from headwater.errors import DamagedState, UserError
from headwater.spark_source.external.options import Since
from headwater.spark_source.external.upstream import Start, reaches

_FORMAT = 1
Bound = tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class ReadRange:
    """A range whose rows were delivered; it begins where the one before it ends."""

    right: Bound
    """Where it ends; None at the end of the table."""
    seen: str | None = None
    """What its rows hold, as text; None once the log has passed all of it."""
    high: CdcOffset | None = None
    """Nothing that commits after it is held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """One place in a stream."""

    table: str
    begin: Since | None = None
    """What the stream begins with, at the very first position only."""
    log: CdcOffset | None = None
    server: str = ""
    columns: tuple[str, ...] = ()
    """By which the table is divided."""
    read: tuple[ReadRange, ...] = ()
    left: tuple[Bound, ...] = ()
    """Where the splits that are left end, in the order of the key."""
    to_see: tuple[int, ...] = ()
    """Transactions that the next snapshot must see, because the log will not bring them."""

    @staticmethod
    def planned(table: str, start: Start, splits: Sequence[Split]) -> "Position":
        """The first place with something to read; without splits, only changes."""
        return Position(
            table=table,
            log=start.log,
            server=start.server,
            columns=splits[0].columns if splits else (),
            left=tuple(split.right for split in splits),
            to_see=start.to_see if splits else (),
        )

    @property
    def following(self) -> bool:
        """Whether the snapshot is over and nothing of it is to be minded any more."""
        return not self.read and not self.left

    @property
    def place(self) -> CdcOffset:
        """How far the log is read."""
        if self.log is None:
            raise DamagedState("the checkpoint holds a position without a place in the log")
        return self.log

    def splits(self, count: int) -> list[Split]:
        """The next splits."""
        left = self.read[-1].right if self.read else None
        edges = itertools.pairwise([left, *self.left[:count]])
        return [
            Split(number=number, columns=self.columns, left=begin, right=end)
            for number, (begin, end) in enumerate(edges)
        ]

    def with_rows(self, count: int, seen: str | None, high: CdcOffset | None) -> "Position":
        """After the next splits; without `seen`, nothing is known of what they hold."""
        added = ReadRange(self.left[count - 1], seen, high)
        read, left = (*self.read, added), self.left[count:]
        to_see = self.to_see if left and seen is None else ()
        if not left and all(each.seen is None for each in read):
            read = ()
        return replace(self, read=_merged(read), left=left, to_see=to_see)

    def with_log(self, log: CdcOffset, to_see: Sequence[int] = ()) -> "Position":
        """After more of the log."""
        read = tuple(
            ReadRange(each.right) if each.high is not None and reaches(log, each.high) else each
            for each in self.read
        )
        if not self.left and all(each.seen is None for each in read):
            read = ()
        return replace(self, log=log, read=_merged(read), to_see=tuple(to_see))

    def to_offset(self) -> dict[str, Any]:
        """As Spark keeps it."""
        offset: dict[str, Any] = {"v": _FORMAT, "table": self.table}
        if self.begin is not None:
            return {**offset, "begin": self.begin.value}
        return {
            **offset,
            "log": json.loads(serialized(self.place)),
            "server": self.server,
            "columns": list(self.columns),
            "read": [_range_out(each) for each in self.read],
            "left": [None if bound is None else list(bound) for bound in self.left],
            "to_see": list(self.to_see),
        }

    @classmethod
    def from_offset(cls, offset: Mapping[str, Any]) -> Self:
        """Read what `to_offset` wrote."""
        try:
            if offset["v"] > _FORMAT:
                raise UserError(
                    f"the checkpoint was written in format {offset['v']}, and this version of "
                    f"Headwater knows {_FORMAT}",
                    hint="Use the version that wrote it, or a newer one.",
                )
            if "begin" in offset:
                return cls(table=offset["table"], begin=Since(offset["begin"]))
            return cls(
                table=offset["table"],
                log=parse_offset(json.dumps(offset["log"])),
                server=offset["server"],
                columns=tuple(offset["columns"]),
                read=tuple(_range_in(each) for each in offset["read"]),
                left=tuple(_bound(each) for each in offset["left"]),
                to_see=tuple(offset["to_see"]),
            )
        except (KeyError, TypeError, ValueError, DamagedState) as error:
            raise UserError(
                "the checkpoint holds a position that is not of this format",
                detail=str(dict(offset))[:500],
                hint="Use a checkpoint of its own for each query.",
            ) from error


def _merged(ranges: Sequence[ReadRange]) -> tuple[ReadRange, ...]:
    """Neighbours that are settled as one."""
    merged: list[ReadRange] = []
    for each in ranges:
        if merged and merged[-1].seen is None and each.seen is None:
            merged.pop()
        merged.append(each)
    return tuple(merged)


def _range_out(each: ReadRange) -> dict[str, Any]:
    said: dict[str, Any] = {"right": None if each.right is None else list(each.right)}
    if each.seen is not None and each.high is not None:
        said |= {"seen": each.seen, "high": json.loads(serialized(each.high))}
    return said


def _range_in(said: Mapping[str, Any]) -> ReadRange:
    high = parse_offset(json.dumps(said["high"])) if "high" in said else None
    return ReadRange(_bound(said["right"]), said.get("seen"), high)


def _bound(said: Sequence[str] | None) -> Bound:
    return None if said is None else tuple(said)

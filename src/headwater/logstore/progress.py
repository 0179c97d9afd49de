"""How far each vnode of a log is delivered.

    none        nothing is delivered
    aligned     all vnodes that were ever delivered are at the same place
    per vnode   they are not: several readers share the vnodes, or shared them before a restart

The form follows from the places: an aligned progress becomes one per vnode when some of its
vnodes move, and aligned again when the others come up with them.

Promises
    Monotone    A vnode never goes back; whoever tries has a bug.
    Small       Vnodes at one place are one group; its text grows with groups, not with vnodes.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from headwater.errors import BrokenInvariant
from headwater.logstore.items import Offset
from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.vnode import VnodeBitmap

BEGIN = Offset(NO_EPOCH)
"""Before everything."""


class ProgressForm(StrEnum):
    """How far the vnodes are apart."""

    NONE = "none"
    ALIGNED = "aligned"
    PER_VNODE = "per vnode"


@dataclass(frozen=True, slots=True)
class LogStoreVnodeProgress:
    """Groups of vnodes and the place that each has come to; the others are at the beginning."""

    groups: tuple[tuple[Offset, VnodeBitmap], ...] = ()

    @property
    def form(self) -> ProgressForm:
        """None, aligned, or per vnode."""
        if not self.groups:
            return ProgressForm.NONE
        return ProgressForm.ALIGNED if len(self.groups) == 1 else ProgressForm.PER_VNODE

    @property
    def seen(self) -> VnodeBitmap:
        """The vnodes that something was delivered of."""
        seen = VnodeBitmap.empty()
        for _, vnodes in self.groups:
            seen |= vnodes
        return seen

    def of(self, vnode: int) -> Offset:
        """The place of one vnode."""
        return next((place for place, vnodes in self.groups if vnode in vnodes), BEGIN)

    def floor(self, vnodes: VnodeBitmap | None = None) -> Offset:
        """The place that all of these vnodes, or all there are, have come to."""
        vnodes = VnodeBitmap.full() if vnodes is None else vnodes
        if vnodes - self.seen:
            return BEGIN
        places = [place for place, group in self.groups if group & vnodes]
        return min(places, default=BEGIN)

    def beyond(self, place: Offset) -> VnodeBitmap:
        """The vnodes that have this place behind them, or are at it."""
        found = VnodeBitmap.empty()
        for at, vnodes in self.groups:
            if at >= place:
                found |= vnodes
        return found

    def advance(self, vnodes: VnodeBitmap, place: Offset) -> "LogStoreVnodeProgress":
        """Everything of these vnodes up to a place is delivered."""
        moved: dict[Offset, VnodeBitmap] = {}
        for at, group in self.groups:
            if group & vnodes and at > place:
                raise BrokenInvariant(
                    "delivered vnodes of a log cannot go back",
                    story=[f"vnodes {sorted(group & vnodes)} are at {at}, not at {place}"],
                )
            if left := group - vnodes:
                moved[at] = moved.get(at, VnodeBitmap.empty()) | left
        if vnodes:
            moved[place] = moved.get(place, VnodeBitmap.empty()) | vnodes
        return LogStoreVnodeProgress(tuple(sorted(moved.items(), key=lambda group: group[0])))

    def reach(self, vnodes: VnodeBitmap, place: Offset) -> "LogStoreVnodeProgress":
        """As `advance`; vnodes that are further stay where they are."""
        return self.advance(vnodes - self.beyond(place), place)

    def encode(self) -> list[Any]:
        """As what JSON can say."""
        return [[*encode_place(place), f"{vnodes.bits:x}"] for place, vnodes in self.groups]

    @classmethod
    def decode(cls, stored: list[Any]) -> "LogStoreVnodeProgress":
        """Read back what `encode` gave."""
        groups = ((decode_place(e, c), VnodeBitmap(int(bits, 16))) for e, c, bits in stored)
        return cls(tuple(groups))


def encode_place(place: Offset) -> tuple[int, int]:
    """A place as two whole numbers."""
    return place.epoch, -1 if place.chunk_id == float("inf") else int(place.chunk_id)


def decode_place(epoch: int, chunk_id: int) -> Offset:
    """Read back what `encode_place` gave."""
    return Offset(Epoch(epoch)) if chunk_id < 0 else Offset(Epoch(epoch), chunk_id)

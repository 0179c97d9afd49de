"""Vnodes: 256 key-hash slots by which state, logs, progress and Spark tasks are divided.

    vnode(key) = crc32(canonical text of the key) mod 256

The canonical text is made so that Python and Spark SQL agree to the bit: integers in decimal,
dates as days and timestamps as microseconds since 1970 in decimal, text and bytes as they are,
booleans as `t` and `f`, decimals with all digits of their scale, floating point numbers as
the decimal of their 64 bits with one NaN and one zero. Columns of a composite key are joined
by 0x1F, a null among them is 0x00. The text only has to be the same everywhere; two keys with
the same text merely share a vnode.
"""

import itertools
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Self

VNODE_COUNT = 256

KEY_SEPARATOR = b"\x1f"
KEY_NULL = b"\x00"


def vnode_of(canonical_key: bytes) -> int:
    """The slot of one key."""
    return zlib.crc32(canonical_key) % VNODE_COUNT


@dataclass(frozen=True, slots=True)
class VnodeBitmap:
    """A set of vnodes, as the bits of one number."""

    bits: int

    @classmethod
    def full(cls) -> Self:
        """All vnodes."""
        return cls((1 << VNODE_COUNT) - 1)

    @classmethod
    def empty(cls) -> Self:
        """None."""
        return cls(0)

    @classmethod
    def of(cls, vnodes: Iterable[int]) -> Self:
        """Exactly these."""
        bits = 0
        for vnode in vnodes:
            if not 0 <= vnode < VNODE_COUNT:
                raise ValueError(f"vnode {vnode} is not between 0 and {VNODE_COUNT - 1}")
            bits |= 1 << vnode
        return cls(bits)

    @classmethod
    def split(cls, parts: int) -> tuple[Self, ...]:
        """Divide all vnodes into `parts` contiguous ranges that differ by one vnode at most."""
        if not 1 <= parts <= VNODE_COUNT:
            raise ValueError(f"parallelism must be between 1 and {VNODE_COUNT}, not {parts}")
        edges = [VNODE_COUNT * part // parts for part in range(parts + 1)]
        return tuple(cls.of(range(low, high)) for low, high in itertools.pairwise(edges))

    def __contains__(self, vnode: int) -> bool:
        return bool(self.bits >> vnode & 1)

    def __iter__(self) -> Iterator[int]:
        return (vnode for vnode in range(VNODE_COUNT) if vnode in self)

    def __len__(self) -> int:
        return self.bits.bit_count()

    def __or__(self, other: "VnodeBitmap") -> "VnodeBitmap":
        return VnodeBitmap(self.bits | other.bits)

    def __and__(self, other: "VnodeBitmap") -> "VnodeBitmap":
        return VnodeBitmap(self.bits & other.bits)

    def __sub__(self, other: "VnodeBitmap") -> "VnodeBitmap":
        return VnodeBitmap(self.bits & ~other.bits)

"""Marks of values that were not sent, when columns are put in another order."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def reordered_marks(
    bits: "np.ndarray[Any, Any]", sent: Sequence[str], wanted: Sequence[str]
) -> "np.ndarray[Any, Any]":
    """Bit i of each number is about `sent[i]`; in the result about `wanted[i]`."""
    if list(sent) == list(wanted) or not bits.any():
        return bits
    rank = {name: place for place, name in enumerate(wanted)}
    moved = np.zeros_like(bits)
    for place, name in enumerate(sent[:63]):
        if rank.get(name, 63) < 63:
            moved |= (bits >> place & 1) << rank[name]
    return moved

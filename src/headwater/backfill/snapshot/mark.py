"""Leave out of a chunk of changes what a reader already has, or is not ready for.

Vnodes are read side by side, so they may stand at different epochs: after a rescale, or while
some are still inside their snapshot. The change log is one for all of them. A change is

    kept       its vnode is done with its epoch, and the change is of a later one
    left out   its vnode has it: it was in the snapshot, or was read from the log before
    left out   its vnode is inside its snapshot, or belongs to another reader: the log is durable,
               and this stretch of it is read again when the vnode gets there

An update whose halves part, since they lie in different vnodes, becomes a plain delete or insert.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.backfill.snapshot.state import BackfillState
from headwater.model.change import ChangeType
from headwater.model.reserved import CHANGE_TYPE, COMMIT_VERSION, VNODE
from headwater.model.vnode import VNODE_COUNT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NEVER = np.iinfo(np.int64).max
_PRE, _POST = ChangeType.UPDATE_PREIMAGE.value, ChangeType.UPDATE_POSTIMAGE.value


def mark_chunk(
    changes: "pa.Table | DataFrame", states: Iterable[BackfillState]
) -> "pa.Table | DataFrame":
    """The changes that readers in these states still need, in their order.

    A chunk names the vnode and the epoch of each change; an update's preimage stands right
    before its postimage. In a DataFrame, which has no order, both halves are of one key.
    """
    covered = _covered(states)
    if not isinstance(changes, pa.Table):
        return _mark_frame(changes, covered)
    if not changes.num_rows:
        return changes
    vnodes = changes.column(VNODE).to_numpy()
    kept = changes.column(COMMIT_VERSION).to_numpy() > covered[vnodes]
    if kept.all():
        return changes
    return _with_whole_updates(changes, kept).filter(pa.array(kept))


def _covered(states: Iterable[BackfillState]) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """By vnode, the epoch up to which nothing is needed."""
    found = np.full(VNODE_COUNT, _NEVER, dtype=np.int64)
    for state in states:
        if state.finished:
            found[state.first : state.last + 1] = state.epoch
    return found


def _with_whole_updates(changes: pa.Table, kept: "np.ndarray[Any, np.dtype[np.bool_]]") -> pa.Table:
    """The same, where the half of an update that goes alone is a plain change."""
    kinds = changes.column(CHANGE_TYPE)
    pre = pc.equal(kinds, _PRE).to_numpy(zero_copy_only=False)
    post = pc.equal(kinds, _POST).to_numpy(zero_copy_only=False)
    next_kept = np.append(kept[1:], False)
    last_kept = np.insert(kept[:-1], 0, False)
    only_old, only_new = pre & kept & ~next_kept, post & kept & ~last_kept
    if not only_old.any() and not only_new.any():
        return changes
    words = pc.if_else(pa.array(only_old), ChangeType.DELETE.value, kinds)
    words = pc.if_else(pa.array(only_new), ChangeType.INSERT.value, words)
    return changes.set_column(changes.column_names.index(CHANGE_TYPE), CHANGE_TYPE, words)


def _mark_frame(
    changes: "DataFrame", covered: "np.ndarray[Any, np.dtype[np.int64]]"
) -> "DataFrame":
    from pyspark.sql import functions as F  # noqa: PLC0415  Spark only where there is a frame

    by_vnode = F.array(*[F.lit(int(epoch)) for epoch in covered])
    vnode = F.col(VNODE).cast("int")
    return changes.where(F.col(COMMIT_VERSION) > F.element_at(by_vnode, vnode + 1))

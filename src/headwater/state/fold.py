"""Fold small files into larger ones, and drop dead rows, without changing a row.

Every epoch adds a small file, and updates leave dead rows behind. Folding keeps both in
bounds, like the compaction of a log-structured store:

    files of similar size   when `fold_files` of them have gathered, they become one
    dead rows               when they are more than `fold_dead_ratio` of a file, it is rewritten
    large results           are cut by vnode range, so that lookups search fewer files

Folding runs beside the epochs. It reads the table at one epoch; when it is done, the next
checkpoint adopts it. Rows that died in between are found by key in the new files and die
there too, before anybody sees them. An adopted fold is part of an epoch's commit, and one
that is never adopted leaves garbage.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from headwater.config import Settings
from headwater.crash_points import crash_point
from headwater.errors import HeadwaterError
from headwater.model.reserved import VNODE
from headwater.model.schema import Schema
from headwater.model.table_commit import DataFile
from headwater.model.vnode import VNODE_COUNT, VnodeBitmap
from headwater.state.lookup import Lookup
from headwater.state.manifest import LiveFile, TableView
from headwater.state.parquet_file import data_schema, write_file
from headwater.state.read import read_alive
from headwater.state.stage import (
    PART_SCHEMA,
    StagedPart,
    StagePlan,
    failure_row,
    part_from_rows,
    part_rows,
)

_TIER = 8


@dataclass(frozen=True, slots=True)
class FoldPlan:
    """Files to fold, and into how many vnode ranges."""

    view: TableView
    inputs: tuple[LiveFile, ...]
    ranges: tuple[VnodeBitmap, ...]

    @property
    def bytes(self) -> int:
        """How much is read."""
        return sum(live.file.bytes for live in self.inputs)


@dataclass(frozen=True, slots=True)
class Folded:
    """A fold that is written and waits for a checkpoint."""

    plan: FoldPlan
    outputs: tuple[DataFile, ...]


def plan_fold(view: TableView, settings: Settings) -> FoldPlan | None:
    """Choose what to fold next, or nothing when it does not pay. Pure."""
    rotten = [
        live
        for live in view.files
        if live.dead and live.dead.cardinality >= settings.fold_dead_ratio * live.file.rows
    ]
    chosen = rotten or _crowded_tier(view.files, settings)
    if not chosen:
        return None
    alive = sum(live.file.bytes * live.live_rows / max(1, live.file.rows) for live in chosen)
    parts = min(VNODE_COUNT, max(1, round(alive / settings.target_file_bytes)))
    return FoldPlan(view, tuple(chosen), VnodeBitmap.split(parts))


def _crowded_tier(files: Sequence[LiveFile], settings: Settings) -> list[LiveFile]:
    tiers: dict[int, list[LiveFile]] = {}
    for live in files:
        # Above half the target the result would be as many files again, and never end.
        if live.file.bytes < settings.target_file_bytes // 2:
            tiers.setdefault(int(np.log(max(live.file.bytes, 2)) / np.log(_TIER)), []).append(live)
    crowded = [tier for tier in tiers.values() if len(tier) >= settings.fold_files]
    if crowded:
        return min(crowded, key=lambda tier: tier[0].file.bytes)
    # Many thin tiers are as bad for lookups as one full one.
    small = [live for tier in tiers.values() for live in tier]
    return small if len(small) >= 3 * settings.fold_files else []


def fold_range(stage: StagePlan, plan: FoldPlan, vnodes: VnodeBitmap) -> DataFile | None:
    """Write the live rows of one vnode range as one sorted file. Replay: writes a new name."""
    parts = [
        read_alive(stage.storage, live, data_schema(plan.view.schema), stage.dead_rows, vnodes)
        for live in plan.inputs
    ]
    rows = pa.concat_tables([part for part in parts if part.num_rows] or parts[:1])
    if not rows.num_rows:
        return None
    order = [(VNODE, "ascending"), *((name, "ascending") for name in plan.view.schema.key)]
    return write_file(stage.storage, stage.origin.data_file(), rows.sort_by(order))


def fold_here(stage: StagePlan, plan: FoldPlan) -> Folded:
    """Fold in this process, for what is small. Replay: writes new names."""
    files = [fold_range(stage, plan, vnodes) for vnodes in plan.ranges]
    crash_point("compaction.after_files")
    return Folded(plan, tuple(file for file in files if file is not None))


def fold_on_spark(spark: Any, stage: StagePlan, plan: FoldPlan) -> Folded:
    """Fold as Spark tasks, one per vnode range. Replay: writes new names."""

    def fold_share(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                try:
                    file = fold_range(stage, plan, plan.ranges[index])
                    yield part_rows(StagedPart((file,) if file is not None else ()))
                except HeadwaterError as error:
                    yield failure_row(error)

    shares = spark.range(0, len(plan.ranges), 1, len(plan.ranges))
    written = part_from_rows(shares.mapInArrow(fold_share, PART_SCHEMA).toArrow())
    crash_point("compaction.after_files")
    return Folded(plan, written.added)


def with_fold(folded: Folded, view: TableView, part: StagedPart, plan: StagePlan) -> StagedPart:
    """What an epoch writes together with a fold that it adopts."""
    extra = dict(part.dead or {})
    dead = died_since(folded, view.files, extra, plan)
    gone = {live.file.path for live in folded.plan.inputs}
    dead |= {path: positions for path, positions in extra.items() if path not in gone}
    return StagedPart((*part.added, *folded.outputs), part.changes, dead)


def died_since(
    folded: Folded, now: Sequence[LiveFile], extra: dict[str, BitMap], stage: StagePlan
) -> dict[str, BitMap]:
    """The rows of the new files that died after the fold read them.

    `now` is the table before this epoch, `extra` what this epoch kills. The rows that died in
    the old files are taken from there, and found again by key in the new ones.
    """
    schema = folded.plan.view.schema
    keys = [
        rows
        for live, positions in _newly_dead(folded, now, extra, stage)
        if (rows := _keys_at(stage, schema, live, positions)).num_rows
    ]
    outputs = tuple(LiveFile(file) for file in folded.outputs)
    dead: dict[str, BitMap] = {}
    if keys:
        lookup = Lookup(stage.storage, stage.cache, stage.dead_rows)
        found = lookup.find(pa.concat_tables(keys), schema, outputs)
        for index in np.unique(found.file[found.mask]):
            positions = found.position[found.file == index]
            dead[outputs[index].file.path] = BitMap(positions.tolist())
    return dead


def _newly_dead(
    folded: Folded, now: Sequence[LiveFile], extra: dict[str, BitMap], stage: StagePlan
) -> Iterator[tuple[LiveFile, BitMap]]:
    current = {live.file.path: live for live in now}
    for live in folded.plan.inputs:
        path = live.file.path
        dead = BitMap(stage.dead_rows.of(current[path].dead) or ()) | extra.get(path, BitMap())
        positions = dead - BitMap(stage.dead_rows.of(live.dead) or ())
        if positions:
            yield live, positions


def _keys_at(stage: StagePlan, schema: Schema, live: LiveFile, positions: BitMap) -> pa.Table:
    cached = stage.cache.open(stage.storage, live.file.path, schema, live.file.bytes)
    rows = cached.take(np.array(positions.to_array(), dtype=np.int64))
    return rows.select(list(schema.key))


def still_fits(folded: Folded, now: TableView) -> bool:
    """Whether all that was folded is still there, under the same schema."""
    paths = {live.file.path for live in now.files}
    same_schema = folded.plan.view.schema == now.schema
    return same_schema and all(live.file.path in paths for live in folded.plan.inputs)

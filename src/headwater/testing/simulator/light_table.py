"""A state table whose files are a few bytes of JSON instead of Parquet.

Everything that the protocol rests on is the real thing: `StateTable` with its staging,
confirming, publishing, discarding and adopting of folds, the manifest, deletion vectors, Delta
versions, collection. Only what lies inside a data file, and how rows are found there, is
replaced, which makes an epoch ten times cheaper. A share of the seeds runs with Parquet.
"""

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyroaring import BitMap

from headwater.crash_points import crash_point
from headwater.errors import DamagedState
from headwater.model.change import ChangeType
from headwater.model.epoch import Epoch
from headwater.model.reserved import CHANGE_TYPE
from headwater.model.schema import Schema
from headwater.model.table_commit import ChangeFile, DataFile
from headwater.model.vnode import VnodeBitmap
from headwater.state.fold import Folded, FoldPlan
from headwater.state.manifest import LiveFile
from headwater.state.row_cache import CachedFile, RowCache
from headwater.state.stage import StagedPart, StagePlan
from headwater.state.storage import Storage
from headwater.state.table import StateTable

Line = list[Any]
"""A row as [id, v], or a change as [kind, id, v]."""


def encode(lines: Sequence[Line]) -> bytes:
    """A file's content."""
    return json.dumps(lines, separators=(",", ":")).encode()


def decode(content: bytes) -> list[Line]:
    """Read back what `encode` wrote."""
    lines: list[Line] = json.loads(content)
    return lines


class LightCache(RowCache):
    """Makes light files searchable for the parts of the state room that look rows up."""

    def open(self, storage: Storage, path: str, schema: Schema, file_bytes: int) -> CachedFile:
        """The file in searchable form."""
        self.remember(path, _table(decode(_get(storage, path)), schema), schema)
        return super().open(storage, path, schema, file_bytes)


class LightTable(StateTable):
    """A state table over light files."""

    _lines: dict[str, list[Line]]

    def rows(self, epoch: Epoch | None = None, vnodes: VnodeBitmap | None = None) -> pa.Table:
        """The rows at an epoch."""
        view = self.view(epoch)
        rows = [line for live in view.files for _, line in self._alive(live)]
        return _table(rows, view.schema)

    def _write(self, plan: StagePlan, changes: Any) -> StagedPart:
        crash_point("stage.before_files")
        wanted: dict[int, str | None] = {}
        for row in changes.to_pylist():
            kind = ChangeType(row[CHANGE_TYPE])
            if kind is not ChangeType.UPDATE_PREIMAGE:
                wanted[row["id"]] = row["v"] if kind.adds else None
        stored = {
            line[0]: (live.file.path, place, line[1])
            for live in plan.files
            for place, line in self._alive(live)
        }
        rows: list[Line] = []
        exact: list[Line] = []
        dead: dict[str, BitMap] = {}
        for key, value in wanted.items():
            old = stored.get(key)
            if old is not None:
                if old[2] == value:
                    continue
                dead.setdefault(old[0], BitMap()).add(old[1])
            if value is not None:
                rows.append([key, value])
            exact += _exact(key, None if old is None else old[2], value)
        added = (self._put_rows(plan, rows),) if rows else ()
        if not dead:
            return StagedPart(added, (), {})
        path, content = plan.origin.change_file(), encode(exact)
        self._storage.put(path, content)
        return StagedPart(
            added, (ChangeFile(path=path, bytes=len(content), rows=len(exact)),), dead
        )

    def _fold_here(self, stage: StagePlan, plan: FoldPlan) -> Folded:
        rows = [line for live in plan.inputs for _, line in self._alive(live)]
        outputs = (self._put_rows(stage, rows),) if rows else ()
        crash_point("compaction.after_files")
        return Folded(plan, outputs)

    def _put_rows(self, plan: StagePlan, rows: list[Line]) -> DataFile:
        path, content = plan.origin.data_file(), encode(rows)
        self._storage.put(path, content)
        self._known()[path] = rows
        return DataFile(
            path=path, bytes=len(content), rows=len(rows), first_vnode=0, last_vnode=255
        )

    def _alive(self, live: LiveFile) -> list[tuple[int, Line]]:
        known = self._known()
        if live.file.path not in known:
            known[live.file.path] = decode(_get(self._storage, live.file.path))
        dead = self._dead_rows.of(live.dead) or ()
        return [(p, line) for p, line in enumerate(known[live.file.path]) if p not in dead]

    def _known(self) -> dict[str, list[Line]]:
        if not hasattr(self, "_lines"):
            self._lines = {}
        return self._lines


def _exact(key: int, old: str | None, new: str | None) -> list[Line]:
    if old is None:
        return [] if new is None else [[ChangeType.INSERT, key, new]]
    if new is None:
        return [[ChangeType.DELETE, key, old]]
    return [[ChangeType.UPDATE_PREIMAGE, key, old], [ChangeType.UPDATE_POSTIMAGE, key, new]]


def _table(rows: Sequence[Line], schema: Schema) -> pa.Table:
    keys, values = zip(*rows, strict=True) if rows else ((), ())
    return pa.table([pa.array(keys, pa.int64()), pa.array(values, pa.string())], schema.arrow)


def _get(storage: Storage, path: str) -> bytes:
    try:
        return storage.get(path)
    except FileNotFoundError as error:
        raise DamagedState("a file of a committed epoch is missing", detail=path) from error

"""Read deletion vectors, keeping those just used in memory."""

from collections import OrderedDict
from threading import Lock
from typing import Any

from pyroaring import BitMap

from headwater.errors import DamagedState
from headwater.model.table_commit import DeletionVector
from headwater.state.deletion_vector import unpack
from headwater.state.manifest import LiveFile
from headwater.state.storage import Storage

_KEPT_BYTES = 64 << 20


class DeadRows:
    """The dead rows of files by their vector. Instances travel to Spark tasks."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._start()

    def _start(self) -> None:
        self._lock = Lock()
        self._kept: OrderedDict[DeletionVector, BitMap] = OrderedDict()
        self._bytes = 0

    def __getstate__(self) -> dict[str, Any]:
        return {"_storage": self._storage}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def of(self, vector: DeletionVector | None) -> BitMap | None:
        """The positions of dead rows; None when there are none. Not to be changed."""
        if vector is None:
            return None
        with self._lock:
            if vector in self._kept:
                self._kept.move_to_end(vector)
                return self._kept[vector]
        try:
            content = self._storage.get(vector.path)
        except FileNotFoundError as error:
            raise DamagedState(
                "a deletion vector of a committed epoch is missing",
                detail=f"{self._storage.url}/{vector.path}",
                hint="Restore it from a backup. Nothing was skipped; the table waits for the file.",
            ) from error
        dead = unpack(content, vector)
        self.remember(vector, dead)
        return dead

    def of_file(self, live: LiveFile) -> BitMap | None:
        """The positions of rows of a file that do not count; None when all do."""
        dead = self.of(live.dead)
        if live.only is None:
            return dead
        start, stop = live.only
        outside = BitMap(range(start)) | BitMap(range(stop, live.file.rows))
        return outside if dead is None else outside | dead

    def remember(self, vector: DeletionVector, dead: BitMap) -> None:
        """Keep a vector that was just written."""
        with self._lock:
            if vector not in self._kept:
                self._bytes += vector.bytes
            self._kept[vector] = dead
            while self._bytes > _KEPT_BYTES and len(self._kept) > 1:
                gone, _ = self._kept.popitem(last=False)
                self._bytes -= gone.bytes

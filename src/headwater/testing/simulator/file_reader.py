"""Read the files of tables without any engine, for the observer."""

from typing import Any, Protocol

from pyroaring import BitMap

from headwater.errors import DamagedState
from headwater.model.change import ChangeType
from headwater.model.reserved import CHANGE_TYPE
from headwater.state.dead_rows import DeadRows
from headwater.state.deletion_vector import unpack
from headwater.state.manifest import LogEntry, TableView
from headwater.state.read import Reader
from headwater.testing.memory_storage import MemoryFiles, MemoryStorage
from headwater.testing.simulator.light_table import Line, decode
from headwater.testing.simulator.upstream import SCHEMA

Row = dict[str, Any]


class FileReader(Protocol):
    """Reads rows and changes straight from storage; a missing file is `DamagedState`."""

    def rows(self, folder: str, view: TableView) -> list[tuple[int, str]]:
        """The rows of a table at one epoch."""
        ...

    def changes(self, folder: str, entry: LogEntry) -> list[Row]:
        """The changes of one epoch, in order."""
        ...


class LightReader:
    """Reads light files; content that has been seen is not parsed again."""

    def __init__(self, files: MemoryFiles) -> None:
        self._files = files
        self._parsed: dict[str, list[Line]] = {}

    def rows(self, folder: str, view: TableView) -> list[tuple[int, str]]:
        """The rows of a table at one epoch."""
        found: list[tuple[int, str]] = []
        for live in view.files:
            dead = BitMap()
            if live.dead is not None:
                dead = unpack(self._content(f"{folder}/{live.dead.path}"), live.dead)
            for place, (key, value) in enumerate(self._lines(f"{folder}/{live.file.path}")):
                if place not in dead:
                    found.append((key, value))
        return found

    def changes(self, folder: str, entry: LogEntry) -> list[Row]:
        """The changes of one epoch, in order."""
        lines = [
            line for file in entry.changes for line in self._lines(f"{folder}/{file.path}")
        ] + [
            [ChangeType.INSERT, *line]
            for file in entry.inserts
            for line in self._lines(f"{folder}/{file.path}")
        ]
        return [{CHANGE_TYPE: kind, "id": key, "v": value} for kind, key, value in lines]

    def _lines(self, path: str) -> list[Line]:
        content = self._content(path)
        if path not in self._parsed:
            self._parsed[path] = decode(content)
        return self._parsed[path]

    def _content(self, path: str) -> bytes:
        if path not in self._files.content:
            raise DamagedState("a file of a committed epoch is missing", detail=path)
        return self._files.content[path]


class ParquetReader:
    """Reads Parquet files with the state room's own reader."""

    def __init__(self, files: MemoryFiles) -> None:
        self._storage = MemoryStorage(files)

    def rows(self, folder: str, view: TableView) -> list[tuple[int, str]]:
        """The rows of a table at one epoch."""
        table = self._reader(folder).read_table(view)
        return list(zip(table["id"].to_pylist(), table["v"].to_pylist(), strict=True))

    def changes(self, folder: str, entry: LogEntry) -> list[Row]:
        """The changes of one epoch, in order."""
        table = self._reader(folder).read_changes(SCHEMA, [entry])
        rows: list[Row] = table.select(["id", "v", CHANGE_TYPE]).to_pylist()
        return rows

    def _reader(self, folder: str) -> Reader:
        storage = self._storage.below(folder)
        return Reader(storage, DeadRows(storage))

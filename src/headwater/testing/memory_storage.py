"""Storage in memory, with a gate that every call passes.

    files = MemoryFiles()
    storage = MemoryStorage(files)                   # plain and quick
    storage = MemoryStorage(files, gate=gate)        # the gate decides what goes wrong

A gate is asked before a call and told after it. What it raises before means that nothing was
done; what it raises after means that it was done and the answer was lost. Several storages,
each with a gate of its own, may share the same files, as processes share a bucket.

Promises
    Immutable    If asked for: a file that is there is never replaced by other bytes; whoever
                 tries has a bug, and gets `FileReplaced`.
    Ordered      Listing follows the order of writing, so the same run lists the same way.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol


class FileReplaced(AssertionError):
    """A file was written again with other bytes."""


class Gate(Protocol):
    """What stands between a caller and its files."""

    def before(self, call: str, path: str) -> None:
        """Asked before `call` (put, claim, get, list, delete); raising means: not done."""
        ...

    def after(self, call: str, path: str) -> None:
        """Told after it; raising means: done, but the caller does not know."""
        ...


class OpenGate:
    """Lets everything through."""

    def before(self, call: str, path: str) -> None:
        """Nothing is in the way."""

    def after(self, call: str, path: str) -> None:
        """Every answer arrives."""


class MemoryFiles:
    """Files by path, in the order they were written."""

    def __init__(self, *, immutable: bool = False) -> None:
        self.content: dict[str, bytes] = {}
        self._immutable = immutable

    def put(self, path: str, data: bytes) -> None:
        """Write a file. Replay: the same bytes again change nothing."""
        if self._immutable and self.content.get(path, data) != data:
            raise FileReplaced(f"{path} is written again with other bytes")
        self.content[path] = data

    def below(self, folder: str) -> Iterator[str]:
        """The paths of all files in a folder, relative to it."""
        prefix = f"{folder}/" if folder else ""
        for path in list(self.content):
            if path.startswith(prefix):
                yield path[len(prefix) :]


class MemoryStorage:
    """Satisfies `headwater.state.storage.Storage`."""

    def __init__(self, files: MemoryFiles, *, root: str = "", gate: Gate | None = None) -> None:
        self._files = files
        self._root = root
        self._gate: Gate = gate or OpenGate()

    @property
    def url(self) -> str:
        """No other tool can open it."""
        return f"memory://{'/' if self._root else ''}{self._root}"

    @property
    def local_root(self) -> Path | None:
        """None: there is no folder."""
        return None

    def put(self, path: str, data: bytes) -> None:
        """Write a whole file. Replay: the same bytes again change nothing."""
        full = self._full(path)
        self._gate.before("put", full)
        self._files.put(full, bytes(data))
        self._gate.after("put", full)

    def put_file(self, path: str, source: Path) -> None:
        """Move a finished local file in. Replay: as `put`."""
        self.put(path, source.read_bytes())
        source.unlink()

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Write the file unless the name is taken. Replay: the first one wins."""
        full = self._full(path)
        self._gate.before("claim", full)
        taken = full in self._files.content
        if not taken:
            self._files.put(full, bytes(data))
            self._gate.after("claim", full)
        return not taken

    def get(self, path: str) -> bytes:
        """Read a whole file."""
        full = self._full(path)
        self._gate.before("get", full)
        if full not in self._files.content:
            raise FileNotFoundError(full)
        return self._files.content[full]

    def get_file(self, path: str, target: Path) -> None:
        """Copy a file to a local path."""
        target.write_bytes(self.get(path))

    def list(self, prefix: str = "") -> Iterator[str]:
        """The paths of all files below a folder, in the order of writing."""
        self._gate.before("list", self._full(prefix))
        inside = prefix.rstrip("/")
        for path in self._files.below(self._full(inside)):
            yield f"{inside}/{path}" if inside else path

    def delete(self, path: str) -> None:
        """Remove a file. Replay: one that is not there is fine."""
        full = self._full(path)
        self._gate.before("delete", full)
        if self._files.content.pop(full, None) is not None:
            self._gate.after("delete", full)

    def move(self, path: str, target: str) -> None:
        """Give a file another name. Replay: `FileNotFoundError` says that the old one is gone."""
        self.put(target, self.get(path))
        self.delete(path)

    def below(self, folder: str) -> "MemoryStorage":
        """The same storage with a folder as its root."""
        return MemoryStorage(self._files, root=self._full(folder), gate=self._gate)

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}".strip("/")

"""Data files of an object store, kept on this machine while several readers want them.

Views that are created at the same time read the same table, and each of their scans would fetch
every file of it. With this folder a machine fetches a file once, and whoever reads it next finds
it here: a scan is shared by all who come before it has to go.

    Disposable   Files never change under their name, so a copy is as good as the original, and
                 can be thrown away at any time.
    Once         Whoever comes while a file is being fetched waits for it, in any process of the
                 machine. A reader that dies lets the next one fetch.
    Whole        A copy gets its name when it is complete. One that cannot be read is fetched again.
    Bounded      Copies unused for longest go when the folder outgrows its limit in bytes.
"""

import contextlib
import fcntl
import os
import secrets
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from headwater.state.storage import Storage
from headwater.state.unfinished import UNFINISHED, remove_unfinished

_SUFFIX, _LOCKS = ".parquet", 64


@dataclass(frozen=True, slots=True)
class FetchedFiles:
    """The folder of one machine. Instances travel to Spark tasks."""

    folder: Path
    limit: int
    """In bytes; 0 keeps nothing."""

    def open(self, storage: Storage, path: str) -> Any:
        """A file's content, fetched if it is not here."""
        if self.limit == 0:
            return pa.BufferReader(storage.get(path))
        copy = self.folder / f"{_name(storage, path)}{_SUFFIX}"
        with contextlib.ExitStack() as stack:
            found = _opened(copy)
            if found is None:
                self._wait_for(copy, stack)
                found = _opened(copy)
            if found is None:
                content = storage.get(path)
                self._keep(copy, content)
                found = pa.BufferReader(content)
        return found

    def forget(self, storage: Storage, path: str) -> bool:
        """Throw a copy away that cannot be read; False when there is none."""
        try:
            (self.folder / f"{_name(storage, path)}{_SUFFIX}").unlink()
        except OSError:
            return False
        return True

    @property
    def size(self) -> int:
        """The bytes of all copies."""
        return sum(size for _, size, _ in self._copies())

    def _keep(self, copy: Path, content: bytes) -> None:
        """Store a copy, if this machine can. Replay: the same bytes under the same name."""
        if len(content) > self.limit:
            return
        unfinished = copy.with_suffix(f".{secrets.token_hex(4)}{UNFINISHED}")
        with contextlib.suppress(OSError):
            try:
                unfinished.write_bytes(content)
                self._make_room(len(content))
                unfinished.replace(copy)
            finally:
                unfinished.unlink(missing_ok=True)

    def _wait_for(self, copy: Path, stack: contextlib.ExitStack) -> None:
        """Be the only one who fetches a file, until the stack ends; a lock goes with its process.

        Where there can be no lock, several fetch it.
        """
        number = zlib.crc32(copy.name.encode()) % _LOCKS
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context((self.folder / f"{number:02}.lock").open("wb"))
            fcntl.flock(file, fcntl.LOCK_EX)

    def _make_room(self, wanted: int) -> None:
        remove_unfinished(self.folder)
        copies = sorted(self._copies())
        total = sum(size for _, size, _ in copies) + wanted
        for _, size, copy in copies:
            if total <= self.limit:
                return
            with contextlib.suppress(OSError):
                # Whoever reads it has it open.
                copy.unlink()
            total -= size

    def _copies(self) -> list[tuple[float, int, Path]]:
        """(last used, bytes, path) of each copy."""
        found = []
        with contextlib.suppress(OSError):
            for item in os.scandir(self.folder):
                if item.name.endswith(_SUFFIX):
                    with contextlib.suppress(OSError):
                        status = item.stat()
                        found.append((status.st_mtime, status.st_size, Path(item.path)))
        return found


def _name(storage: Storage, path: str) -> str:
    # Names of data files are unique; those of different stores need not be.
    place = zlib.crc32(f"{storage.url}/{path}".encode())
    return f"{path.rsplit('/', 1)[-1].removesuffix(_SUFFIX)}.{place:08x}"


def _opened(copy: Path) -> Any:
    """A copy as it is on disk, and noted as used; None if there is none."""
    try:
        os.utime(copy)
        return pa.memory_map(str(copy))
    except OSError:
        return None

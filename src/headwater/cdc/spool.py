"""Keep what is too large for memory in files that have no name.

A transaction may be larger than the memory of whoever reads it. What comes of it is then written
to a temporary file piece by piece and mapped: the system may drop its pages at any time and read
them again, and the file is gone with its last user, also after a crash.

The folder is the system's temporary one (`TMPDIR`).
"""

import os
import tempfile
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

SPOOL_BYTES = 64 << 20
"""What is smaller stays in memory."""


class SpooledBytes:
    """Bytes that come in pieces, read as one array."""

    def __init__(self, limit: int = SPOOL_BYTES) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []
        self._file: Any = None
        self.size = 0

    def append(self, piece: bytes) -> None:
        """Add a piece at the end."""
        self.size += len(piece)
        self._pieces.append(piece)
        if self._file is not None or self.size > self._limit:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="headwater-")
            self._file.writelines(self._pieces)
            self._pieces.clear()

    def array(self) -> "np.ndarray[Any, np.dtype[np.uint8]]":
        """All bytes so far."""
        if self._file is None:
            block = b"".join(self._pieces)
            self._pieces = [block]
            return np.frombuffer(block, dtype=np.uint8)
        self._file.flush()
        # Kernels are compiled for plain arrays.
        return np.asarray(np.memmap(self._file, dtype=np.uint8, mode="r", shape=(self.size,)))


def gathered(pieces: Iterable[pa.Table], limit: int = SPOOL_BYTES) -> pa.Table:
    """Tables of one schema as one: in memory while they are small, else mapped from a file.

    No piece is kept in memory longer than it takes to write it.
    """
    held: list[pa.Table] = []
    size = 0
    rest = iter(pieces)
    for piece in rest:
        held.append(piece)
        size += piece.nbytes
        if size > limit:
            return _mapped(held, rest)
    return held[0] if len(held) == 1 else pa.concat_tables(held)


def _mapped(held: list[pa.Table], rest: Iterable[pa.Table]) -> pa.Table:
    descriptor, path = tempfile.mkstemp(prefix="headwater-", suffix=".arrow")
    os.close(descriptor)
    try:
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, held[0].schema) as writer:
            while held:
                writer.write_table(held.pop(0))
            for piece in rest:
                writer.write_table(piece)
        return pa.ipc.open_file(pa.memory_map(path)).read_all()
    finally:
        os.unlink(path)

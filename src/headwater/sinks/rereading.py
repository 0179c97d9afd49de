"""Batches that can be read more than once, also where they come only once.

A target that refuses rows needs them again: to write them another way, or to say which of them it
was. What is handed over as a list or a table is simply read again. What flows by is kept in a
temporary file while it flows, so that memory is bounded by one batch.
"""

import tempfile
from collections.abc import Iterator
from types import TracebackType
from typing import IO, Any, Self

import pyarrow as pa

from headwater.sinks.sink import Batches

_IN_MEMORY = 8 << 20
"""Up to so many bytes no file is made."""


class Rereadable:
    """An iterable of batches; each `iter` begins at the first."""

    def __init__(self, batches: Batches) -> None:
        self._source = batches
        flowing = iter(batches)
        self._rest: Iterator[pa.RecordBatch] | None = flowing if flowing is batches else None
        self._file: IO[bytes] | None = None
        self._writer: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.close()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        if self._rest is None:
            yield from self._source
            return
        yield from self._kept()
        for batch in self._rest:
            self._keep(batch)
            yield batch

    def _keep(self, batch: pa.RecordBatch) -> None:
        if self._file is None:
            self._file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)
            self._writer = pa.ipc.new_stream(self._file, batch.schema)
        self._writer.write_batch(batch)

    def _kept(self) -> Iterator[pa.RecordBatch]:
        if self._file is None:
            return
        self._file.seek(0)
        yield from pa.ipc.open_stream(self._file)
        self._file.seek(0, 2)

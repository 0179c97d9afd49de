"""A reader of chunks that can be exchanged while a backfill runs, as when a password changes."""

from collections.abc import Sequence

import pyarrow as pa

from headwater.backfill.cdc.machine import ReadChunk
from headwater.backfill.cdc.split_reader import ReadResult, SplitReader
from headwater.cdc.external_table import SnapshotChunk, Split


class RenewableReader:
    """Reads by whichever reader there is now."""

    def __init__(self, reader: SplitReader) -> None:
        self.now = reader

    async def read_chunk(self, request: ReadChunk) -> ReadResult:
        """The next rows of a split."""
        return await self.now.read_chunk(request)

    async def read_keys(self, keys: pa.Table) -> SnapshotChunk:
        """The rows that have these keys."""
        return await self.now.read_keys(keys)

    async def divide(self, split: Split) -> Sequence[Split]:
        """Part of a table in several splits."""
        return await self.now.divide(split)

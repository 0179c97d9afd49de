"""Cut a large table into parts of bounded size, without copying it."""

from collections.abc import Iterator

import pyarrow as pa


def in_slices(table: pa.Table, most_bytes: int) -> Iterator[pa.Table]:
    """Parts of about so many bytes, in order; a table without rows is one part."""
    count = max(1, -(-table.nbytes // most_bytes))
    rows = max(1, -(-table.num_rows // count))
    for begin in range(0, max(table.num_rows, 1), rows):
        yield table.slice(begin, rows)

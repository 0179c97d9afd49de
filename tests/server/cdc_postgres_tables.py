"""Opening and reading tables of a test server."""

import pyarrow as pa
from cdc_postgres_kit import options_of

from headwater.cdc.external_table import SplitOptions
from headwater.cdc.postgres.connecting import session
from headwater.cdc.postgres.schema import read_table
from headwater.cdc.postgres.table import PostgresTable
from headwater.cdc.postgres.types import TypeCatalog

LARGE = 1 << 30


def opened(url, name, columns=None, **options):
    given = options_of(url, **options)
    with session(given) as connection:
        types = TypeCatalog(unknown_as_text=given.unknown_types_as_text)
        return PostgresTable(given, read_table(connection, types, name, columns=columns))


def read_split(table, split, *, max_rows=10**6, max_bytes=LARGE):
    """All chunks of a split, and how many there were."""
    after, pieces = None, []
    while True:
        chunk = table.read_chunk(split, after, max_rows=max_rows, max_bytes=max_bytes)
        pieces.append(chunk.rows)
        if chunk.cursor is None:
            return pa.concat_tables(pieces), len(pieces)
        after = chunk.cursor


def read_all(table, options=None, **bounds):
    splits = table.splits(options or SplitOptions())
    return pa.concat_tables([read_split(table, split, **bounds)[0] for split in splits]), splits

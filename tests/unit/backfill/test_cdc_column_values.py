"""Values of new columns go into rows as they stand, and into no others."""

import pyarrow as pa

from headwater.backfill.cdc.column_values import column_values
from headwater.model.schema import Column, Schema
from headwater.model.types import BIGINT, VARCHAR

SCHEMA = Schema((Column("id", BIGINT), Column("a", BIGINT), Column("c", VARCHAR)), ("id",))
STORED = {1: (1, 10, None), 2: (2, 20, None), 3: (3, 30, "new"), 4: (4, 40, "five")}


def keys(*ids):
    return pa.table({"id": pa.array(ids, pa.int64())})


def lookup(wanted):
    rows = [STORED[id_] for id_ in wanted["id"].to_pylist() if id_ in STORED]
    names = SCHEMA.names
    return pa.Table.from_pylist([dict(zip(names, r, strict=True)) for r in rows], SCHEMA.arrow)


def filled(newer=(), changed=()):
    chunk = keys(1, 2, 3, 4, 5).append_column("c", pa.array(["five"] * 5, pa.string()))
    found = column_values(chunk, keys(*newer), keys(*changed), lookup, SCHEMA)
    return [(row["id"], row["a"], row["c"]) for row in found.to_pylist()]


def test_rows_get_the_values_and_keep_the_rest():
    # 4 has the value already, and 5 has no row here: the log brings it, or took it away.
    assert filled() == [(1, 10, "five"), (2, 20, "five"), (3, 30, "five")]


def test_a_newer_change_has_brought_its_own_value():
    assert filled(newer=[1], changed=[3]) == [(2, 20, "five")]
    assert filled(newer=[1, 2, 3]) == []

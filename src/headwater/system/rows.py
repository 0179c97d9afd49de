"""Rows of system tables as Arrow, built by columns: what varies, what is the same in every row.

Most columns of PostgreSQL's catalogs say the same for all that Headwater has. Such a column costs
nothing per row, which keeps the first query after a change of the catalog fast.
"""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from headwater.system.relations import known


def rows_of(
    key: str,
    names: Sequence[str],
    rows: Sequence[Sequence[object]],
    constants: Mapping[str, object] | None = None,
) -> pa.Table:
    """The rows of a relation by `schema.name`; columns that are nowhere named are null."""
    schema = known()[key].arrow
    varying = dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else {}
    fixed = constants or {}
    wrong = (set(names) | fixed.keys()) - set(schema.names)
    assert not wrong, f"{key} has no columns {wrong}"
    arrays = []
    for field in schema:
        if field.name in varying:
            arrays.append(pa.array(varying[field.name], field.type))
        elif rows and fixed.get(field.name) is not None:
            arrays.append(_repeated(fixed[field.name], field.type, len(rows)))
        else:
            arrays.append(pa.nulls(len(rows), field.type))
    return pa.Table.from_arrays(arrays, schema=schema)


def _repeated(value: object, type_: pa.DataType, count: int) -> pa.Array:
    if pa.types.is_list(type_):
        return pa.array([value] * count, type_)
    return pa.repeat(pa.scalar(value, type_), count)

"""What the Delta log says about a file's values, taken from its Parquet footer.

Readers skip files by these bounds, so a bound may be too wide but never too narrow. Columns
whose order differs between readers (floats with NaN, timestamps that Delta cuts to
milliseconds, long text, nested values) get none.
"""

import json
from datetime import date
from typing import Any

import pyarrow.parquet as pq

_LONGEST_TEXT = 32


def statistics(footer: pq.FileMetaData) -> str:
    """The `stats` of an add action."""
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for place in range(footer.num_columns):
        name = footer.schema.column(place).path
        if (
            footer.schema.column(place).max_repetition_level
            or name != footer.schema.column(place).name
        ):
            continue
        groups = [
            footer.row_group(number).column(place).statistics
            for number in range(footer.num_row_groups)
        ]
        if any(group is None or not group.has_null_count for group in groups):
            continue
        nulls[name] = sum(group.null_count for group in groups)
        bounds = [
            (_bound(group.min), _bound(group.max))
            for group in groups
            if group.num_values or group.has_min_max
        ]
        if bounds and all(lower is not None and upper is not None for lower, upper in bounds):
            low[name] = min(lower for lower, _ in bounds)
            high[name] = max(upper for _, upper in bounds)
    return json.dumps(
        {"numRecords": footer.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls}
    )


def _bound(value: object) -> Any:
    match value:
        case bool():
            return None
        case int():
            return value
        case date() if type(value) is date:
            return value.isoformat()
        case str() if len(value) <= _LONGEST_TEXT:
            return value
        case _:
            return None

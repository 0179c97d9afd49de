"""Other people's readers of Delta tables, each as one function from a folder to Arrow rows."""

from collections.abc import Callable
from functools import cache
from typing import Any

import duckdb
import polars
import pyarrow as pa
from deltalake import DeltaTable
from duckdb_extensions import import_extension


@cache
def _duckdb() -> Any:
    import_extension("delta")
    connection = duckdb.connect()
    connection.execute("LOAD delta")
    return connection


def read_by_delta_rs(path: str, version: int | None = None) -> pa.Table:
    return pa.table(DeltaTable(path, version=version).scan().read_all())


def read_by_polars(path: str, version: int | None = None) -> pa.Table:
    return polars.read_delta(path, version=version).to_arrow()


def read_by_duckdb(path: str, version: int | None = None) -> pa.Table:
    at = "" if version is None else f", version => {version}"
    text = path.replace("'", "''")
    return _duckdb().cursor().execute(f"from delta_scan('{text}'{at})").to_arrow_table()


READERS: dict[str, Callable[..., pa.Table]] = {
    "delta-rs": read_by_delta_rs,
    "polars": read_by_polars,
    "duckdb": read_by_duckdb,
}


def read_changes_by_delta_rs(path: str, first: int, last: int) -> pa.Table:
    """The change data feed of some versions."""
    feed = DeltaTable(path).load_cdf(starting_version=first, ending_version=last)
    return pa.table(feed.read_all())

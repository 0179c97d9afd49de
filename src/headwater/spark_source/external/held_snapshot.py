"""Hold one moment of a PostgreSQL database, for reads of one or several tables by many tasks.

    from headwater.spark_source.external.held_snapshot import held_snapshot

    with held_snapshot(shop) as moment:
        orders = spark.read.format("headwater-postgres").options(**shop)
        orders.option("table.name", "orders").option("snapshot.name", moment).load().write...

`shop` are the options that say where the database is. The moment lasts until the block ends; all
actions on the DataFrames must be over by then. A transaction stays open upstream for as long, and
keeps the server from cleaning up rows that were deleted meanwhile.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from headwater.spark_source.external.options import divided
from headwater.spark_source.external.postgres import OPTIONS, PostgresUpstream


@contextmanager
def held_snapshot(options: Mapping[str, str]) -> Iterator[str]:
    """Keep a snapshot while the block runs; gives the value of option snapshot.name."""
    _, of_database = divided("headwater-postgres", options, OPTIONS)
    with PostgresUpstream.parse(of_database).held() as name:
        yield name

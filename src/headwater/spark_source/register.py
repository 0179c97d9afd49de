"""Make the formats `headwater`, `headwater-postgres` and `headwater-mysql` known to a session.

    from headwater.spark_source.register import register

    register(spark)
    spark.read.format("headwater").option("workspace", "shop").option("table", "orders").load()

The session is any session: it needs no engine, only the package on the driver and on the
executors, and a way to the files of the workspace, or to the database.
"""

from typing import TYPE_CHECKING

from headwater.spark_source.external.source import MySqlSource, PostgresSource
from headwater.spark_source.source import HeadwaterSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: "SparkSession") -> None:
    """Register the formats. Replay: registering again changes nothing."""
    for source in (HeadwaterSource, PostgresSource, MySqlSource):
        spark.dataSource.register(source)

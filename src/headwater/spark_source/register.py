"""Make the format `headwater` known to a Spark session.

    from headwater.spark_source.register import register

    register(spark)
    spark.read.format("headwater").option("workspace", "shop").option("table", "orders").load()

The session is any session: it needs no engine, only the package on the driver and on the
executors, and a way to the files of the workspace.
"""

from typing import TYPE_CHECKING

from headwater.spark_source.source import HeadwaterSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: "SparkSession") -> None:
    """Register the format. Replay: registering again changes nothing."""
    spark.dataSource.register(HeadwaterSource)

"""The exact changes of several epochs as if they were of one, as a DataFrame.

What `merge.net_effect` does on the driver. For each key: the row that it had before the first of
its changes, and the one that it has after the last. An epoch changes a key once, so the oldest
and the newest epoch of a key tell.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from headwater.model.change import ChangeType
from headwater.model.reserved import CHANGE_TYPE, COMMIT_VERSION
from headwater.model.schema import Schema
from headwater.model.spelling import quoted

_OLD = (ChangeType.DELETE.value, ChangeType.UPDATE_PREIMAGE.value)


def net_changes(changes: DataFrame, schema: Schema) -> DataFrame:
    """One change for each key, where something changed in the end."""
    keys = [F.col(quoted(name)) for name in schema.key]
    of_key = Window.partitionBy(*keys)
    at, kind = F.col(COMMIT_VERSION), F.col(CHANGE_TYPE)
    gone = kind.isin(*_OLD)
    placed = changes.withColumns(
        {"_hw_first": F.min(at).over(of_key), "_hw_last": F.max(at).over(of_key)}
    )
    ends = placed.where(
        (gone & (at == F.col("_hw_first"))) | (~gone & (at == F.col("_hw_last")))
    ).withColumns({"_hw_had": F.max(gone).over(of_key), "_hw_has": F.max(~gone).over(of_key)})
    word = (
        F.when(gone & F.col("_hw_has"), ChangeType.UPDATE_PREIMAGE.value)
        .when(gone, ChangeType.DELETE.value)
        .when(F.col("_hw_had"), ChangeType.UPDATE_POSTIMAGE.value)
        .otherwise(ChangeType.INSERT.value)
    )
    own = ("_hw_first", "_hw_last", "_hw_had", "_hw_has")
    return ends.withColumn(CHANGE_TYPE, word).drop(*own)

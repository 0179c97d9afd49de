"""Groups of a new view that are few: every slice brings states, which are merged in memory.

A slice is then one Spark job over its rows alone, whatever was read before, and what it brings is
a few rows. They are added to those of the slices before, which are kept here: nothing has to be
looked up, and no slice waits until an epoch has the one before it.

Groups that turn out to be many are not for here: whoever asked goes on with the rules of `views/`.
"""

from typing import TYPE_CHECKING

import pyarrow as pa

from headwater.sql.algebra import Output
from headwater.views.changes import conformed
from headwater.views.desk import Collect
from headwater.views.layout import MAIN, Layout
from headwater.views.relation import among
from headwater.views.settle import merged_sql
from headwater.views.spark_desk import SparkDesk
from headwater.views.spelling import names_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_GROUPS = 50_000
MOST_BYTES = 8 << 20
"""What may be kept here; about as much is written with an epoch."""


class MergedGroups:
    """The main store's rows after the slices that were read in this life, and before it."""

    def __init__(self, layout: Layout, stored: pa.Table) -> None:
        assert layout.top is not None, "only states can be merged"
        self._layout = layout
        self._schema = layout.schemas[MAIN]
        names = {layout.top.names[name] for name in names_of(layout.top.merging.columns)}
        self._states = [column for column in self._schema.columns if column.name in names]
        self._rows = conformed(stored, self._schema)

    def add(self, spark: "SparkSession", *brought: pa.Table) -> pa.Table | None:
        """The rows of all groups that slices have, with what was there; None if it is too much.

        Of what slices have brought only the states count.
        """
        wanted = pa.schema([self._schema.arrow.field(column.name) for column in self._states])
        new = pa.concat_tables([each.select(wanted.names).cast(wanted) for each in brought])
        both = pa.concat_tables([self._rows.select(wanted.names), new])
        most = 1 + len(brought)
        if both.num_rows > most * MOST_GROUPS or both.nbytes > most * MOST_BYTES:
            return None
        states = tuple(Output(column.name, column.type) for column in self._states)
        outputs = tuple(Output(column.name, column.type) for column in self._schema.columns)
        with SparkDesk(spark, {}) as desk:
            leaf = desk.memory(both, states)
            query = Collect(merged_sql(self._layout, leaf.name), outputs, local=True)
            (found,) = _answered(desk, query)
        if found.num_rows > MOST_GROUPS or found.nbytes > MOST_BYTES:
            return None
        self._rows = conformed(found, self._schema)
        columns = [self._schema[name] for name in self._schema.key]
        return self._rows.filter(pa.array(among(self._rows, new, columns)))


def _answered(desk: SparkDesk, query: Collect) -> list[pa.Table]:
    """On the driver, or by Spark where only that knows a function."""
    while True:
        answers = desk.answer([query])
        if isinstance(answers[0], pa.Table):
            return answers


def last_of_each(tables: "list[pa.Table]", key: tuple[str, ...]) -> pa.Table:
    """Rows of all the tables, and for a key that several have that of the last."""
    if len(tables) == 1:
        return tables[0]
    place = "_hw_place"
    both = pa.concat_tables(tables)
    numbers = pa.array(range(both.num_rows), pa.int64())
    kept = both.select(list(key)).append_column(place, numbers).group_by(list(key))
    return both.take(kept.aggregate([(place, "max")]).column(f"{place}_max"))

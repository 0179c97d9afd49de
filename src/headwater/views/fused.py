"""Many small queries as one: one Spark job, one result, cut apart afterwards.

The queries' rows travel in one table whose columns are shared by type: the third bigint of any
query lies in the third bigint column. So the table is as wide as the widest query, not as all
of them together.
"""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from headwater.model.spelling import quoted
from headwater.sql.algebra import Output

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_QUERY = "_hw_query"
_PER_TASK = 16
"""Queries that share a task at most; each holds on to its memory until the task ends."""


def collect_all(
    spark: "SparkSession",
    queries: Sequence[tuple[str, Sequence[Output]]],
    local: Sequence[bool] = (),
) -> list[pa.Table]:
    """The rows of each query, in the types that its outputs declare.

    `local` says which queries read nothing but memory: several of those share a task.
    """
    if not queries:
        return []
    slots = _slots([outputs for _, outputs in queries])
    branches = []
    for number, (sql, outputs) in enumerate(queries):
        own = dict(zip(_places(outputs), outputs, strict=True))
        terms = [f"{number} as {_QUERY}"]
        for slot, type_ in slots:
            value = quoted(own[slot].name) if slot in own else "null"
            terms.append(f"cast({value} as {type_}) as {quoted(slot)}")
        branches.append(f"select {', '.join(terms)} from ({sql})")
    shared = [branch for branch, small in zip(branches, local, strict=False) if small]
    alone = [branch for branch in branches if branch not in shared]
    if len(shared) > 1:
        tasks = max(spark.sparkContext.defaultParallelism, len(shared) // _PER_TASK)
        shared = [f"select /*+ COALESCE({tasks}) */ * from ({_united(shared)})"]
    collected = spark.sql(_united([*shared, *alone])).toArrow()
    return [_cut(collected, number, outputs) for number, (_, outputs) in enumerate(queries)]


def _united(branches: Sequence[str]) -> str:
    return " union all ".join(f"({branch})" for branch in branches)


def _places(outputs: Sequence[Output]) -> list[str]:
    seen: Counter[str] = Counter()
    places = []
    for output in outputs:
        seen[output.type.spark] += 1
        places.append(f"{output.type.spark} {seen[output.type.spark]}")
    return places


def _slots(queries: Sequence[Sequence[Output]]) -> list[tuple[str, str]]:
    found: dict[str, str] = {}
    for outputs in queries:
        for place, output in zip(_places(outputs), outputs, strict=True):
            found[place] = output.type.spark
    return sorted(found.items())


def _cut(collected: pa.Table, number: int, outputs: Sequence[Output]) -> pa.Table:
    mine = collected.filter(pc.equal(collected.column(_QUERY), number))
    schema = pa.schema([(output.name, output.type.arrow) for output in outputs])
    columns = [
        mine.column(place).cast(field.type)
        for place, field in zip(_places(outputs), schema, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema).combine_chunks()

"""Answer the rules' small queries on the driver, where Arrow can say exactly what Spark would.

An epoch that changes a thousand rows asks for a handful of queries over a few thousand rows. In
Spark each of these costs parsing, analysis, optimization, code generation and a job, tens to
hundreds of milliseconds whatever the rows; here it costs a few. Which queries those are is
decided by the query's text alone (`terms.py`, `query.py`), so one that is not taken is never
begun, and its text is looked at once, not once per epoch.

Promises
    Exact     The same rows as Spark, in the types that the outputs declare.
    Silent    What cannot be done here, an overflow for instance, is answered with None: then
              Spark is asked, and raises whatever has to be raised.
    Bounded   Tables of one epoch up to `MOST_BYTES`, joins up to `MOST_PAIRS`.
"""

import functools
import re
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
from sqlglot.errors import SqlglotError

from headwater.sql.algebra import Output
from headwater.views.on_driver.constants import Unknown, remember
from headwater.views.on_driver.query import LEAF, Step, compiled
from headwater.views.on_driver.terms import NotHere, exact

MOST_ROWS = 400_000
"""Rows of a query's leaves; beyond them Spark's tasks are worth their start."""
MOST_BYTES = 128 << 20
"""What all steps of an epoch may hold in memory together."""
_CACHED = 1_000
_CANNOT = (NotHere, pa.ArrowException, SqlglotError, ArithmeticError)

Fields = tuple[tuple[str, pa.DataType], ...]


class DriverDesk:
    """Computes queries over the leaves of one epoch; each step only once.

    `ask` gives the value of a constant expression that only Spark knows, None if it fails.
    """

    def __init__(
        self,
        leaves: Mapping[str, pa.Table],
        prefix: str,
        ask: Callable[[str], pa.Scalar | None] | None = None,
    ) -> None:
        self._leaves = leaves
        self._ask = ask
        self._name = re.compile(rf"\b{re.escape(prefix)}_\d+\b")
        self._known: dict[tuple[int, tuple[str, ...]], pa.Table] = {}
        self._bytes = 0

    def collect(self, sql: str, outputs: Sequence[Output]) -> pa.Table | None:
        """The rows of a query; None when Spark must be asked."""
        names: dict[str, str] = {}
        text = self._name.sub(lambda found: names.setdefault(found[0], f"{LEAF}{len(names)}"), sql)
        if not names.keys() <= self._leaves.keys():
            return None
        tables = [self._leaves[name] for name in names]
        if sum(table.num_rows for table in tables) > MOST_ROWS:
            return None
        step = self._step(text, tuple(_fields(table.schema) for table in tables))
        if step is None:
            return None
        try:
            rows = self._run(step, list(names))
            schema = pa.schema([(output.name, output.type.arrow) for output in outputs])
            return rows.select(schema.names).cast(schema).combine_chunks()
        except _CANNOT:
            return None

    def _step(self, text: str, leaves: tuple[Fields, ...]) -> Step | None:
        try:
            return _compiled(text, leaves)
        except Unknown as constants:
            if self._ask is None:
                return None
            for each in constants.texts:
                value = self._ask(each)
                remember(each, value if value is not None and exact(value.type) else None)
            return _compiled(text, leaves)

    def _run(self, step: Step, names: Sequence[str]) -> pa.Table:
        key = (step.shape, tuple(names[leaf] for leaf in step.leaves))
        if key not in self._known:
            if step.inputs:
                made = step.work(*(self._run(each, names) for each in step.inputs))
                self._bytes += made.nbytes
                if self._bytes > MOST_BYTES:
                    raise NotHere("an epoch of much work")
            else:
                leaf = self._leaves[names[step.leaves[0]]]
                made = pa.Table.from_arrays(leaf.columns, schema=step.schema)
            self._known[key] = made
        return self._known[key]


def _fields(schema: pa.Schema) -> Fields:
    return tuple((field.name, field.type) for field in schema)


@functools.lru_cache(maxsize=_CACHED)
def _compiled(text: str, leaves: tuple[Fields, ...]) -> Step | None:
    """A query's last step; None when it is Spark's."""
    try:
        return compiled(text, [pa.schema(list(fields)) for fields in leaves])
    except _CANNOT:
        return None

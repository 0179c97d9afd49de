"""Answer queries over tables in memory, where Arrow can say exactly what Spark would.

An epoch that changes a thousand rows asks for a handful of queries over a few thousand rows. In
Spark each of these costs parsing, analysis, optimization, code generation and a job, tens to
hundreds of milliseconds whatever the rows; here it costs a few. Which queries those are is
decided by the query's text alone (`terms.py`, `query.py`), so one that is not taken is never
begun, and its text is looked at once, not once per epoch. Tasks that fill a new view do the same
with the slices that they read (`slices.py`), where it spares the way through Spark's rows.

Promises
    Exact     The same rows as Spark, in the types that the outputs declare.
    Silent    What cannot be done here, an overflow for instance, is answered with None: then
              Spark is asked, and raises whatever has to be raised.
    Bounded   Tables of one epoch up to `MOST_BYTES`, or what else is said, and joins as `tables`.
"""

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from sqlglot.errors import SqlglotError

from headwater.sql.algebra import Output
from headwater.views.on_arrow.constants import Unknown, remember
from headwater.views.on_arrow.query import LEAF, Step, compiled
from headwater.views.on_arrow.terms import NotHere, exact

MOST_ROWS = 400_000
"""Rows of a query's leaves; beyond them Spark's tasks are worth their start."""
MOST_BYTES = 128 << 20
"""What all steps of an epoch may hold in memory together."""
_CACHED = 1_000
_CANNOT = (NotHere, pa.ArrowException, SqlglotError, ArithmeticError)

Fields = tuple[tuple[str, pa.DataType], ...]
_Work = tuple[int, tuple[str, ...]]
"""A step's shape, and the leaves that it is done to."""


class ArrowDesk:
    """Computes queries over the leaves of one epoch; each step only once.

    `ask` gives the value of a constant expression that only Spark knows, None if it fails.
    """

    def __init__(
        self,
        leaves: Mapping[str, pa.Table],
        prefix: str,
        ask: Callable[[str], pa.Scalar | None] | None = None,
        *,
        most_rows: int | None = None,
        most_bytes: int | None = None,
    ) -> None:
        self._leaves = leaves
        self._ask = ask
        self._most_rows = MOST_ROWS if most_rows is None else most_rows
        self._most_bytes = MOST_BYTES if most_bytes is None else most_bytes
        self._name = re.compile(rf"\b{re.escape(prefix)}_\d+\b")
        self._known: dict[_Work, pa.Table] = {}
        self._indexes: dict[_Work, Any] = {}
        self._bytes = 0

    def collect(self, sql: str, outputs: Sequence[Output]) -> pa.Table | None:
        """The rows of a query; None when Spark must be asked."""
        names: dict[str, str] = {}
        text = self._name.sub(lambda found: names.setdefault(found[0], f"{LEAF}{len(names)}"), sql)
        if not names.keys() <= self._leaves.keys():
            return None
        tables = [self._leaves[name] for name in names]
        if sum(table.num_rows for table in tables) > self._most_rows:
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
                made = self._made(step, names)
                self._bytes += made.nbytes
                if self._bytes > self._most_bytes:
                    raise NotHere("an epoch of much work")
            else:
                leaf = self._leaves[names[step.leaves[0]]]
                made = pa.Table.from_arrays(leaf.columns, schema=step.schema)
            self._known[key] = made
        return self._known[key]

    def _made(self, step: Step, names: Sequence[str]) -> pa.Table:
        inputs = [self._run(each, names) for each in step.inputs]
        if step.index is None:
            return step.work(*inputs)
        key = (step.shape, tuple(names[leaf] for leaf in step.inputs[-1].leaves))
        if key not in self._indexes:
            self._indexes[key] = step.index(inputs[-1])
        return step.work(*inputs, self._indexes[key])

    def forget(self, leaf: str) -> None:
        """Other rows are under this name from now on; what was made of the others is kept."""
        for made in (self._known, self._indexes):
            for key in [key for key in made if leaf in key[1]]:
                del made[key]
        self._bytes = sum(table.nbytes for table in self._known.values())


def _fields(schema: pa.Schema) -> Fields:
    return tuple((field.name, field.type) for field in schema)


@functools.lru_cache(maxsize=_CACHED)
def _compiled(text: str, leaves: tuple[Fields, ...]) -> Step | None:
    """A query's last step; None when it is Spark's."""
    try:
        return compiled(text, [pa.schema(list(fields)) for fields in leaves])
    except _CANNOT:
        return None

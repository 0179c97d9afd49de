"""Tables and views of a whole engine, written and checked by SQL text, without a session."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from headwater.catalog.relation import TableDef
from headwater.model.change import ChangeType
from headwater.model.ids import TableId
from headwater.model.reserved import CHANGE_TYPE
from headwater.model.schema import Schema
from headwater.runtime.engine import Engine
from headwater.runtime.view_plan import plan_view
from headwater.session.queries import frame_of, plan
from headwater.sql.parse import parse_one
from headwater.testing.oracle import assert_same_rows
from headwater.views.layout import RefreshPolicy


async def create(engine: Engine, name: str, schema: Schema) -> TableId:
    """A table that the test writes."""
    await engine.ddl.create_table(TableDef(id=TableId(0), name=name, schema=schema, folder=""))
    return engine.catalog.snapshot().table(name).id


async def keep(engine: Engine, name: str, query: str, policy: str = "auto") -> None:
    """A materialized view."""
    statement = parse_one(f"create materialized view {name} as {query}")
    planned = plan_view(statement, engine.catalog.snapshot(), policy=RefreshPolicy(policy))
    view = TableDef(id=TableId(0), name=name, schema=planned.layout.schemas[0], folder="")
    await engine.ddl.create_view(view, planned)


def changes(
    schema: Schema, rows: Iterable[Mapping[str, Any]], kind: ChangeType = ChangeType.INSERT
) -> pa.Table:
    """Rows as a chunk of changes."""
    table = pa.Table.from_pylist([dict(row) for row in rows], schema=schema.arrow)
    return table.append_column(CHANGE_TYPE, pa.array([kind.value] * table.num_rows, pa.string()))


async def write(
    engine: Engine, name: str, *rows: Sequence[Any], kind: ChangeType = ChangeType.INSERT
) -> None:
    """Put rows, given by place, and do not wait for an epoch."""
    table = engine.catalog.snapshot().table(name)
    named = [dict(zip(table.schema.names, row, strict=False)) for row in rows]
    await engine.dml.source.put({table.id: changes(table.schema, named, kind)})


async def gone(engine: Engine, name: str, *keys: Sequence[Any]) -> None:
    """Delete rows by key."""
    await write(engine, name, *keys, kind=ChangeType.DELETE)


def rows_at(engine: Engine, text: str, epoch: Any = None) -> list[dict[str, Any]]:
    """The rows of a query at an epoch."""
    statement = parse_one(text)
    planned = plan(statement.query, text, engine.catalog.snapshot())
    frame = frame_of(engine, planned.query, engine.visible if epoch is None else epoch)
    return frame.toArrow().to_pylist()


def check(engine: Engine, *views: str) -> None:
    """Each view, at the last epoch, is its query at that epoch, both ways."""
    epoch = engine.visible
    with engine.reading(epoch):
        snapshot = engine.catalog.snapshot()
        for name in views or [view.name for view in snapshot.materialized_views]:
            text = snapshot.table(name).detail.query.text
            query = text[text.index(" as ") + 4 :]
            assert_same_rows(
                rows_at(engine, f"select * from {name}", epoch), rows_at(engine, query, epoch)
            )

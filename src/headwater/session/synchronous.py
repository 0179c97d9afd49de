"""The engine for code without an event loop: scripts, notebooks, the Python prompt.

    hw = headwater.connect("shop")
    hw.sql("create table orders (id int primary key, amount numeric(10,2))")
    hw.sql("insert into orders values (1, 9.50)")
    hw.flush()
    hw.sql("select sum(amount) from orders")          shows the rows; is a Spark DataFrame too
    hw.table("orders").groupBy("id").count()          a Spark DataFrame
    hw.changes("orders", since=epoch)                 exact changes after an epoch

The engine runs on a loop in a thread of its own; every method here waits for the same method
there. An engine that ended by itself says why at the next call.
"""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from sqlglot import exp

from headwater.catalog.relation import TableDef
from headwater.catalog.snapshot import relation_error
from headwater.config import Settings
from headwater.model.epoch import Epoch
from headwater.model.reserved import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION
from headwater.model.schema import Schema
from headwater.model.spelling import sql_quoted
from headwater.runtime.engine import Engine
from headwater.session.context import Context
from headwater.session.definitions import find
from headwater.session.finishing import flushed
from headwater.session.interpreter import House, Interpreter
from headwater.session.moments import epoch_of
from headwater.session.queries import frame_of, plan
from headwater.session.result import Result, gathered, literal_text
from headwater.sql.data_statements import object_name
from headwater.sql.parse import parse_one
from headwater.sql.statement import Select
from headwater.state.table import StateTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_R = TypeVar("_R")


class Headwater:
    """An engine on one workspace; a context manager, running from the start."""

    def __init__(self, workspace: Path | str, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="headwater-engine", daemon=True
        )
        self._thread.start()
        self._stopped = False
        try:
            self.engine: Engine = self._wait(_made(lambda: Engine(workspace, **options)))
            self._wait(self.engine.start())
            self._interpreter: Interpreter = self._wait(self._opened())
        except BaseException:
            self._end_loop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Make one last checkpoint and end. May be called twice."""
        if self._stopped:
            return
        try:
            self._wait(self._interpreter.house.close())
            self._wait(self.engine.stop())
        finally:
            self._end_loop()

    async def _opened(self) -> Interpreter:
        house = House(self.engine)
        return Interpreter(house, Context(engine=self.engine, blocking=house.blocking))

    def create_source(
        self, name: str, kind: str, options: Mapping[str, Any], *, tables: Mapping[str, Schema]
    ) -> Epoch:
        """Create a source and its tables. Replay: done whole or not at all."""
        return self._ask(self.engine.create_source(name, kind, options, tables=tables))

    def drop_source(self, name: str) -> Epoch:
        """Drop a source with its tables. Replay: dropped whole or not at all."""
        return self._ask(self.engine.drop_source(name))

    def flush(self) -> Epoch:
        """Commit an epoch that begins now, and return it when it is visible."""
        return self._ask(flushed(self.engine))

    def pause(self) -> None:
        """Stop reading sources; barriers go on."""
        self._ask(self.engine.pause())

    def resume(self) -> None:
        """Read on."""
        self._ask(self.engine.resume())

    def throttle(self, source: str, rows_per_s: int | None) -> None:
        """Limit how fast a source is read; 0 stops it, None lifts the limit."""
        self._ask(self.engine.throttle(source, rows_per_s))

    def change_settings(self, **values: Any) -> Settings:
        """Change live settings."""
        return self._ask(self.engine.change_settings(values))

    def maintain(self) -> None:
        """Make one round of folding and collection now."""
        self._ask(self.engine.maintain())

    def stored(self, name: str) -> StateTable:
        """The state of a table: its files, rows and changes by epoch, without Spark."""
        return self.engine.table(name)

    def table(self, name: str, epoch: Epoch | None = None) -> "DataFrame":
        """The rows of a relation as a Spark DataFrame, at the last visible epoch or another."""
        at = self.engine.visible if epoch is None else epoch
        statement, text = _select(f"SELECT * FROM {_spelled(name)}")
        snapshot = self.engine.catalog.snapshot()
        planned = plan(statement.query, text, snapshot, self._interpreter.context.path)
        return frame_of(self.engine, planned.query, at)

    def changes(self, name: str, since: Epoch, upto: Epoch | None = None) -> "DataFrame":
        """The exact changes of a relation after an epoch, with `_change_type` and their epoch."""
        definition = self._definition(name)
        last = self.engine.visible if upto is None else upto
        frame = self.engine.store[definition.id].changes(since, last)
        names = [column.name for column in definition.columns]
        extra = (CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP)
        return frame.select(*[f"`{n.replace('`', '``')}`" for n in names], *extra)

    def sql(self, text: str, *parameters: object, epoch: Epoch | None = None) -> Result:
        """Run statements, and give the result of the last one.

        `parameters` are the values of `$1`, `$2`, ... A query is read at the last visible epoch,
        or at `epoch`, and runs when its rows are asked for.
        """
        values = tuple(literal_text(each) for each in parameters)
        return self._ask(self._run(text, values, epoch))

    async def _run(
        self, text: str, parameters: tuple[str | None, ...], epoch: Epoch | None
    ) -> Result:
        interpreter = self._interpreter
        result = Result(tag="", columns=())
        for statement in await interpreter.script(text):
            reads = isinstance(statement, Select) and not interpreter.house.system.answers(
                statement.query
            )
            if reads:
                assert isinstance(statement, Select)
                result = await self._query(statement, text, parameters, epoch)
                continue
            outcome = await interpreter.run(statement, text, parameters)
            result = await gathered(outcome)
        return result

    async def _query(
        self,
        statement: Select,
        text: str,
        parameters: tuple[str | None, ...],
        epoch: Epoch | None,
    ) -> Result:
        context, engine = self._interpreter.context, self.engine
        snapshot = await context.snapshot()
        planned = await context.blocking(
            plan, statement.query, text, snapshot, context.path, parameters
        )
        at = engine.visible if epoch is None else epoch
        if epoch is None and planned.query.as_of is not None:
            at = epoch_of(engine, planned.query.as_of)
        frame = await context.blocking(frame_of, engine, planned.query, at)
        return Result(tag="SELECT", columns=planned.columns, frame=frame)

    def _definition(self, name: str) -> TableDef:
        snapshot = self.engine.catalog.snapshot()
        statement, _ = _select(f"SELECT * FROM {_spelled(name)}")
        table = statement.query.find(exp.Table)
        assert table is not None
        found = find(snapshot, object_name(table), self._interpreter.context.path)
        if not isinstance(found, TableDef):
            raise relation_error(f'"{name}" has no stored rows', "42809")
        return found

    @property
    def visible(self) -> Epoch:
        """The last epoch that is committed and published."""
        return self.engine.visible

    def spark(self) -> "SparkSession":
        """The Spark session."""
        return self.engine.spark()

    def _ask(self, work: Coroutine[Any, Any, _R]) -> _R:
        failure = self.engine.failure
        if failure is not None:
            work.close()
            raise failure
        return self._wait(work)

    def _wait(self, work: Coroutine[Any, Any, _R]) -> _R:
        future: concurrent.futures.Future[_R] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result()

    def _end_loop(self) -> None:
        self._stopped = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _made(make: Callable[[], _R]) -> _R:
    """Call `make` on the loop."""
    return make()


def connect(workspace: Path | str, **options: Any) -> Headwater:
    """Run an engine on a workspace, here in this process; `stop` it, or use it in `with`."""
    return Headwater(workspace, **options)


def _select(text: str) -> tuple[Select, str]:
    statement = parse_one(text)
    assert isinstance(statement, Select)
    return statement, text


def _spelled(name: str) -> str:
    """A name as SQL: quoted where it must be, a dot between schema and relation."""
    parts = name.split(".", 1)
    return ".".join(sql_quoted(part) for part in parts)

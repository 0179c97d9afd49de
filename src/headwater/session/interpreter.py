"""From a statement to its result: one place that knows who answers what.

Statements see the engine as it is when they begin. Inside a transaction that has failed only its
end is accepted, as in PostgreSQL.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import assert_never

from headwater.catalog.relation import TableDef
from headwater.errors import ConfigError, NotSupported, UserError
from headwater.pgwire.session import (
    CopyIn,
    CopyOptions,
    CopyOut,
    ResultColumn,
    StatementResult,
)
from headwater.runtime.blocking import Blocking
from headwater.runtime.engine import Engine
from headwater.session import (
    ddl_statements,
    definitions,
    query_statements,
    show_statements,
    sink_statements,
    view_statements,
)
from headwater.session.alter_source import alter_source
from headwater.session.answers import done, of_table, texts
from headwater.session.context import Context, OpenTransaction
from headwater.session.finishing import flushed
from headwater.session.query_statements import Active, Parameters
from headwater.session.source_statements import create_source, refresh_schema, unfilled
from headwater.session.system_queries import SystemQueries
from headwater.session.writes.copy_in import copy_columns, copy_target
from headwater.session.writes.delete import delete
from headwater.session.writes.insert import insert
from headwater.session.writes.outcome import Wrote
from headwater.session.writes.update import update
from headwater.sql import statement as st
from headwater.sql.parse import parse

_QUERY_THREADS = 16


@dataclass(slots=True)
class House:
    """What all sessions of an engine share."""

    engine: Engine
    blocking: Blocking = field(default_factory=lambda: Blocking(_QUERY_THREADS))
    system: SystemQueries = field(init=False)

    def __post_init__(self) -> None:
        self.system = SystemQueries(self.engine)

    def context(self) -> Context:
        """A session of the house's own."""
        return Context(engine=self.engine, blocking=self.blocking)

    async def warm_up(self) -> None:
        """Have the first catalog query find everything in its place."""
        await self.system.warm_up(self.context())

    async def close(self) -> None:
        """Let the threads end."""
        self.blocking.close()
        self.system.close()


class Interpreter:
    """Runs the statements of one session, one at a time."""

    def __init__(self, house: House, context: Context) -> None:
        self.house = house
        self.context = context
        self.active = Active()
        self._savepoints: dict[str, int] = {}

    async def script(self, text: str) -> list[st.Statement]:
        """The statements of a text."""
        return await self.context.blocking(parse, text) if len(text) > 10_000 else parse(text)

    async def run(  # noqa: PLR0911  one arm per kind of statement
        self, statement: st.Statement, text: str, parameters: Parameters = ()
    ) -> StatementResult:
        """Run one statement; `text` is the whole that its positions count in."""
        self._refuse_failed(statement)
        match statement:
            case st.Select() | st.Explain() | st.Copy():
                return await self._query(statement, text, parameters)
            case st.Insert():
                wrote = await insert(self.context, statement, parameters, text=text)
                return _wrote("INSERT 0", wrote)
            case st.Update():
                wrote = await update(self.context, statement, parameters, text=text)
                return _wrote("UPDATE", wrote)
            case st.Delete():
                wrote = await delete(self.context, statement, parameters, text=text)
                return _wrote("DELETE", wrote)
            case st.Transaction() | st.Savepoint():
                return await self._transact(statement)
            case (
                st.SetVariable()
                | st.ShowVariable()
                | st.ResetVariable()
                | st.Show()
                | st.ShowCreate()
                | st.Describe()
                | st.Discard()
            ):
                return await self._session(statement)
            case st.Flush() | st.Wait() | st.Recover() | st.CancelJobs():
                return await self._command(statement)
            case _:
                return await self._define(statement, text)

    async def _query(
        self, statement: st.Select | st.Explain | st.Copy, text: str, parameters: Parameters
    ) -> StatementResult:
        match statement:
            case st.Select(query=query):
                if self.house.system.answers(query):
                    return await self.house.system.run(self.context, query, parameters)
                return await query_statements.select(
                    self.context, query, text, parameters, self.active
                )
            case st.Explain():
                return await query_statements.explain(self.context, statement, text)
            case st.Copy(incoming=True):
                return await self._copy_in(statement)
            case st.Copy():
                columns, batches = await query_statements.copied_out(
                    self.context, statement, text, self.active
                )
                options = _copy_options(statement.options)
                return CopyOut(columns=columns, batches=batches, options=options)

    async def _copy_in(self, statement: st.Copy) -> CopyIn:
        assert statement.table is not None
        snapshot = await self.context.snapshot()
        table = definitions.find(snapshot, statement.table, self.context.path, st.ObjectKind.TABLE)
        assert isinstance(table, TableDef)
        columns = copy_columns(table, statement.columns)
        return CopyIn(
            columns=tuple(ResultColumn(name=c.name, type=c.type) for c in columns),
            target=copy_target(self.context, table, tuple(c.name for c in columns)),
            options=_copy_options(statement.options),
        )

    async def _session(  # noqa: PLR0911  one arm per statement
        self, statement: st.Statement
    ) -> StatementResult:
        match statement:
            case st.SetVariable():
                return show_statements.set_variable(self.context, statement)
            case st.ShowVariable():
                return show_statements.show_variable(self.context, statement)
            case st.ResetVariable():
                return show_statements.reset_variable(self.context, statement)
            case st.Show():
                return await show_statements.show(self.context, statement)
            case st.ShowCreate():
                return await show_statements.show_create(self.context, statement)
            case st.Describe():
                return await show_statements.describe(self.context, statement)
            case st.Discard(verb=verb, name=name):
                return self._discard(verb, name)
            case _:
                raise NotSupported("this statement is not supported")

    def _discard(self, verb: str, name: str) -> StatementResult:
        if verb == "discard" and name == "all":
            self.context.variables.reset()
            self.context.transaction = None
        whole = " ALL" if name in ("all", "*") and verb in ("discard", "deallocate") else ""
        return done(f"{verb.upper()}{whole}")

    async def _command(
        self, statement: st.Flush | st.Wait | st.Recover | st.CancelJobs
    ) -> StatementResult:
        engine = self.context.engine
        match statement:
            case st.Flush():
                await flushed(engine)
                return done("FLUSH")
            case st.Wait(name=name):
                wanted = None if name is None else name.name
                await engine.creating.wait(wanted)
                await engine.sinks.wait(wanted)
                snapshot = engine.catalog.snapshot
                await engine.cdc.wait(lambda: unfilled(engine.cdc.jobs, snapshot(), wanted))
                upstreams = engine.upstreams
                await upstreams.wait(lambda: unfilled(upstreams.jobs, snapshot(), wanted))
                return done("WAIT")
            case st.Recover():
                await engine.flush()
                return done("RECOVER", "jobs that fail recover by themselves")
            case st.CancelJobs(jobs=ids):
                ended = [
                    id_
                    for id_ in ids
                    if await engine.creating.cancel(id_) or await engine.sinks.cancel(id_)
                ]
                return texts(["Id"], [[str(id_)] for id_ in ended], tag="CANCEL JOBS")
            case _ as never:
                assert_never(never)

    async def _define(self, statement: st.Statement, text: str) -> StatementResult:  # noqa: PLR0911, PLR0912
        context = self.context
        match statement:
            case st.CreateTable():
                return await ddl_statements.create_table(context, statement, text)
            case st.CreateMaterializedView():
                return await view_statements.create_materialized_view(context, statement, text)
            case st.SwapWith():
                return await view_statements.swap(context, statement)
            case st.CreateView():
                return await ddl_statements.create_view(context, statement, text)
            case st.CreateIndex():
                return await ddl_statements.create_index(context, statement)
            case st.CreateSchema():
                return await ddl_statements.create_schema(context, statement)
            case st.Drop():
                return await ddl_statements.drop(context, statement)
            case st.Rename() | st.SetSchema() | st.SetOwner():
                return await ddl_statements.alter(context, statement)
            case st.AddColumn() | st.DropColumn():
                return await ddl_statements.alter_columns(context, statement)
            case st.RefreshSchema():
                return await refresh_schema(context, statement)
            case st.Comment():
                return await ddl_statements.comment(context, statement)
            case st.AlterSetting():
                return await show_statements.alter_setting(context, statement)
            case st.CreateSource():
                return await create_source(context, statement, await context.snapshot())
            case st.AlterOptions(kind=st.ObjectKind.SINK):
                return await sink_statements.alter_sink(context, statement)
            case st.AlterOptions():
                return await alter_source(context, statement)
            case st.CreateSink():
                return await sink_statements.create_sink(context, statement)
            case st.RewindSink():
                return await sink_statements.rewind_sink(context, statement)
            case st.RenameColumn():
                raise ddl_statements.not_yet(statement)
            case _:
                raise NotSupported("this statement is not supported")

    # Transactions

    def _refuse_failed(self, statement: st.Statement) -> None:
        open_ = self.context.transaction
        if open_ is None or not open_.failed:
            return
        ends = isinstance(statement, st.Transaction) and statement.verb is not (
            st.TransactionVerb.BEGIN
        )
        back = isinstance(statement, st.Savepoint) and statement.verb is st.SavepointVerb.ROLLBACK
        if not ends and not back:
            error = UserError(
                "current transaction is aborted, commands ignored until end of transaction block"
            )
            error.sqlstate = "25P02"
            raise error

    async def _transact(self, statement: st.Transaction | st.Savepoint) -> StatementResult:
        if isinstance(statement, st.Savepoint):
            return self._savepoint(statement)
        open_ = self.context.transaction
        match statement.verb:
            case st.TransactionVerb.BEGIN:
                if open_ is not None:
                    return done("BEGIN", "there is already a transaction in progress")
                self.context.transaction = OpenTransaction()
                self._savepoints.clear()
                return done("BEGIN")
            case st.TransactionVerb.COMMIT:
                return await self._commit(open_)
            case st.TransactionVerb.ROLLBACK:
                self.context.transaction = None
                return done("ROLLBACK", *([] if open_ else ["there is no transaction in progress"]))

    async def _commit(self, open_: OpenTransaction | None) -> StatementResult:
        self.context.transaction = None
        if open_ is None:
            return done("COMMIT", "there is no transaction in progress")
        if open_.failed:
            return done("ROLLBACK")
        if open_.writes:
            await self.context.write_all(open_.writes)
        return done("COMMIT")

    def _savepoint(self, statement: st.Savepoint) -> StatementResult:
        open_ = self.context.transaction
        if open_ is None:
            error = UserError(f"{statement.verb} can only be used in transaction blocks")
            error.sqlstate = "25P01"
            raise error
        if statement.verb is st.SavepointVerb.SAVEPOINT:
            self._savepoints[statement.name] = len(open_.writes)
            return done("SAVEPOINT")
        if statement.name not in self._savepoints:
            error = UserError(f'savepoint "{statement.name}" does not exist')
            error.sqlstate = "3B001"
            raise error
        if statement.verb is st.SavepointVerb.RELEASE:
            del self._savepoints[statement.name]
            return done("RELEASE")
        del open_.writes[self._savepoints[statement.name] :]
        open_.failed = False
        return done("ROLLBACK")


def _wrote(tag: str, wrote: Wrote) -> StatementResult:
    if wrote.columns is None or wrote.rows is None:
        return done(f"{tag} {wrote.count}")
    return of_table(wrote.columns, wrote.rows, tag=f"{tag} ")


def _copy_options(given: Sequence[tuple[str, str]]) -> CopyOptions:
    options = dict(given)
    known = {"format", "delimiter", "null", "header", "quote", "escape", "encoding", "freeze"}
    for name in options:
        if name not in known:
            raise ConfigError(f'COPY option "{name}" is not recognized')
    form = options.get("format", "text").lower()
    if form not in ("text", "csv", "binary"):
        raise ConfigError(f'COPY format "{form}" is not recognized')
    return CopyOptions(
        format=form,  # type: ignore[arg-type]
        delimiter=options.get("delimiter", ""),
        null=options.get("null"),
        header=options.get("header", "false").lower() in ("true", "on", "1", "match"),
        quote=options.get("quote", '"'),
        escape=options.get("escape", ""),
    )

"""A session of the wire protocol: the interpreter, as `pgwire` drives it."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence

from headwater.errors import NotSupported, ParseError, UserError
from headwater.model.types import VARCHAR, DataType
from headwater.pgwire.oids import type_of
from headwater.pgwire.session import (
    Described,
    Parameter,
    ResultColumn,
    Session,
    StatementResult,
    TransactionStatus,
)
from headwater.session import query_statements
from headwater.session.context import Context
from headwater.session.interpreter import House, Interpreter
from headwater.session.parameters import parameter_count
from headwater.session.show_statements import result_names
from headwater.session.streams import cancellation
from headwater.session.variables import Variables
from headwater.session.writes.described import describe_write
from headwater.sql import statement as st

DATABASE = "dev"


class EngineSessions:
    """Opens sessions on one engine."""

    def __init__(self, house: House) -> None:
        self._house = house

    async def open(
        self, user: str, database: str, options: Mapping[str, str], peer: str
    ) -> Session:
        """Begin a session."""
        if database != DATABASE:
            error = UserError(
                f'database "{database}" does not exist', hint=f'There is one: "{DATABASE}".'
            )
            error.sqlstate = "3D000"
            raise error
        if self._house.engine.failure is not None:
            error = UserError("the engine has ended")
            error.sqlstate = "57P03"
            raise error
        variables = Variables(dict(options))
        context = Context(
            engine=self._house.engine,
            blocking=self._house.blocking,
            variables=variables,
            user=user,
            database=database,
        )
        return EngineSession(Interpreter(self._house, context))


class EngineSession:
    """One client's conversation; satisfies `pgwire.session.Session` by shape."""

    def __init__(self, interpreter: Interpreter) -> None:
        self._interpreter = interpreter
        self._context = interpreter.context
        self._task: asyncio.Task[object] | None = None

    @property
    def transaction_status(self) -> TransactionStatus:
        """Idle, inside a transaction, or inside a failed one."""
        open_ = self._context.transaction
        if open_ is None:
            return "I"
        return "E" if open_.failed else "T"

    @property
    def settings(self) -> Mapping[str, str]:
        """What clients are told of."""
        return self._context.variables.reported()

    async def simple(self, text: str) -> AsyncGenerator[StatementResult, None]:
        """Run the statements of a text, in order."""
        for statement in await self._interpreter.script(text):
            yield await self._cancellable(statement, text, ())

    async def describe(self, text: str, parameter_oids: Sequence[int]) -> Described:
        """Say what one statement takes and gives, without running it."""
        statements = await self._interpreter.script(text)
        if not statements:
            return Described()
        statement = _only(statements)
        count = max(parameter_count(statement), len(parameter_oids))
        given = [type_of(oid) if oid else None for oid in parameter_oids]
        found = await self._described(statement, text, count)
        types: list[DataType | None] = [None] * count
        for place in range(count):
            known = given[place] if place < len(given) else None
            shown = found.parameters[place] if place < len(found.parameters) else None
            types[place] = known or shown
        told = () if any(given) else found.parameter_oids
        return Described(parameters=tuple(types), columns=found.columns, parameter_oids=told)

    async def execute(self, text: str, parameters: Sequence[Parameter]) -> StatementResult | None:
        """Run one prepared statement."""
        statements = await self._interpreter.script(text)
        if not statements:
            return None
        texts = tuple(parameter.text for parameter in parameters)
        return await self._cancellable(_only(statements), text, texts)

    def fail(self) -> None:
        """An open transaction has failed now."""
        if self._context.transaction is not None:
            self._context.transaction.failed = True

    def cancel(self) -> None:
        """Stop what runs now."""
        self._interpreter.active.cancel()
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        """Forget an open transaction."""
        self._interpreter.active.cancel()
        self._context.transaction = None

    async def _cancellable(
        self, statement: st.Statement, text: str, parameters: Sequence[str | None]
    ) -> StatementResult:
        run = self._interpreter.run(statement, text, parameters)
        task = asyncio.ensure_future(run)
        self._task = task
        try:
            return await task
        except asyncio.CancelledError:
            if not task.cancelled() and not task.done():
                # The client is gone; whoever waits inside is told.
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                raise
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise
            raise cancellation() from None
        finally:
            self._task = None

    async def _described(self, statement: st.Statement, text: str, count: int) -> Described:
        context = self._context
        match statement:
            case st.Select(query=query):
                system = self._interpreter.house.system
                if system.answers(query):
                    return await system.describe(context, query)
                planned = await query_statements.describe(context, query, text, [None] * count)
                return Described(parameters=planned.parameters, columns=planned.columns)
            case st.Insert() | st.Update() | st.Delete():
                parameters, columns = await describe_write(context, statement, text=text)
                return Described(parameters=parameters, columns=columns)
            case st.Explain():
                return Described(columns=(ResultColumn(name="QUERY PLAN", type=VARCHAR),))
            case st.Copy():
                raise NotSupported("COPY cannot be prepared")
            case _:
                return Described(columns=result_names(context, statement))


def _only(statements: Sequence[st.Statement]) -> st.Statement:
    if len(statements) > 1:
        raise ParseError("cannot insert multiple commands into a prepared statement")
    return statements[0]

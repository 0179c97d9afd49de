"""Answers queries over system tables with an embedded DuckDB, in milliseconds and without Spark.

The tables are built from facts when a query names them:

    what                                     made anew
    types, operator classes, ...             never
    relations, columns, indexes, ...         when the catalog or the users changed
    settings, jobs, events, sizes, ...       for each query that names them
    views                                    never; they are queries over the others

Promises
    No job       Nothing here reads a stored row or starts a Spark job.
    Lazy         A fact that costs something is asked for only if the query shows it.
    Any thread   Queries run one after the other, from whichever thread they come.
    No crash     What cannot be answered is an error with an SQLSTATE: 42P01 for a relation, 42703
                 for a column, 42883 for a function that does not exist, 0A000 for the rest.

Why not Spark: a job costs 50 to 90 ms before it does anything, and opening a table in a client
takes a dozen catalog queries. Design: docs/design/0007-system-catalog.md.
"""

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import duckdb
import pyarrow as pa
from sqlglot import exp

from headwater.errors import BindError, HeadwaterError, NotSupported, ParseError, UserError
from headwater.model.types import DataType
from headwater.sql.dialect import parse_tokens, tokens_of
from headwater.system import functions
from headwater.system.facts import SystemFacts
from headwater.system.results import ResultShape, result_columns, shaped, told_oid
from headwater.system.rewrite import Rewritten, rewrite
from headwater.system.scene import Scene
from headwater.system.shelf import Shelf
from headwater.system.wanted import parameter_forms, parameter_type

LONGEST_S = 30
"""No query may hold up the others for longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemResultColumn:
    """A column of an answer; `oid` is PostgreSQL's number of its type where that says more.

    A column with an `oid` is spelled the same under that number as under its type's own, in text
    and in binary: `name`, `"char"` and `text` as varchar, `oid` as integer.
    """

    name: str
    type: DataType
    oid: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemRows:
    """An answer: its columns and its rows, by place."""

    columns: tuple[SystemResultColumn, ...]
    table: pa.Table
    settings: dict[str, str] = field(default_factory=dict)
    """What set_config asked to set in the session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemDescription:
    """What a query takes and gives; a parameter without a type takes any text."""

    parameters: tuple[DataType | None, ...]
    columns: tuple[SystemResultColumn, ...]
    parameter_oids: tuple[int, ...] = ()
    """PostgreSQL's numbers of the parameters' types where these say more, else 0."""


class SystemCatalog:
    """One embedded database with the system tables. Close it when the engine stops."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection = duckdb.connect(
            ":memory:",
            config={
                "threads": 1,
                "memory_limit": "512MB",
                "enable_external_access": "false",
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
            },
        )
        self._connection.execute("SET TimeZone = 'UTC'")
        self._scene: Scene | None = None
        functions.install(self._connection, self._stage)
        self._shelf = Shelf(self._connection)

    def answer(
        self, query: str | exp.Expr, facts: SystemFacts, parameters: Sequence[object] = ()
    ) -> SystemRows:
        """Run a query; `parameters` are the values of $1, $2, ... in order."""
        rewritten = _rewritten(query, parameters)
        with self._lock:
            table, scene = self._run(rewritten, facts)
            shapes = result_columns(table.schema, rewritten.outputs)
            shown = shaped(table, shapes, scene)
            return SystemRows(columns=_columns(shapes), table=shown, settings=dict(scene.changed))

    def describe(self, query: str | exp.Expr, facts: SystemFacts) -> SystemDescription:
        """Say what a query takes and gives, with every parameter null."""
        tree = _tree(query)
        rewritten = rewrite(tree)
        bare = Rewritten(
            sql=f"SELECT * FROM ({rewritten.sql}) LIMIT 0",
            needs=rewritten.needs,
            outputs=rewritten.outputs,
        )
        with self._lock:
            table, _ = self._run(bare, facts)
        names = [name for name, _ in rewritten.outputs or ()]
        if len(names) == table.num_columns:
            table = table.rename_columns(names)
        shapes = result_columns(table.schema, rewritten.outputs)
        forms = parameter_forms(tree)
        return SystemDescription(
            parameters=tuple(parameter_type(form) for form in forms),
            columns=_columns(shapes),
            parameter_oids=tuple(told_oid(form or "") for form in forms),
        )

    def warm_up(self, facts: SystemFacts) -> None:
        """Load what the first query would wait for; worth calling while nobody waits."""
        self.answer("SELECT count(*) FROM pg_catalog.pg_class, pg_catalog.pg_type", facts)

    def interrupt(self) -> None:
        """Stop the query that runs now, if any, from any thread; it raises with 57014."""
        self._connection.interrupt()

    def close(self) -> None:
        """Give back the memory."""
        with self._lock:
            self._connection.close()

    def _stage(self) -> Scene:
        assert self._scene is not None, "a catalog function is called outside of a query"
        return self._scene

    def _run(self, rewritten: Rewritten, facts: SystemFacts) -> tuple[pa.Table, Scene]:
        listing = self._shelf.listing(facts)
        scene = self._scene = Scene(facts, listing)
        watch = threading.Timer(LONGEST_S, self.interrupt)
        watch.daemon = True
        watch.start()
        try:
            self._shelf.provide(rewritten.needs, facts)
            return self._connection.execute(rewritten.sql).to_arrow_table(), scene
        except duckdb.InterruptException as problem:
            raise _stopped() from problem
        except duckdb.Error as problem:
            raise _said(problem, scene) from problem
        finally:
            watch.cancel()
            self._scene = None


def _tree(query: str | exp.Expr) -> exp.Expr:
    if isinstance(query, exp.Expr):
        return query
    text = query.strip().rstrip(";")
    tree = parse_tokens(tokens_of(text), text)
    if not isinstance(tree, exp.Query | exp.Values):
        raise ParseError("this is not a query")
    return tree


def _rewritten(query: str | exp.Expr, parameters: Sequence[object]) -> Rewritten:
    if isinstance(query, str) and not parameters:
        return _remembered(query)
    return rewrite(_tree(query), parameters)


@lru_cache(maxsize=512)
def _remembered(text: str) -> Rewritten:
    """Clients send the same few texts again and again, and half of the time goes into these."""
    return rewrite(_tree(text))


def _columns(shapes: Sequence[ResultShape]) -> tuple[SystemResultColumn, ...]:
    return tuple(SystemResultColumn(name=s.name, type=s.type, oid=s.oid) for s in shapes)


def _stopped() -> HeadwaterError:
    error = UserError(
        "canceling statement due to user request",
        detail=f"A query over system tables may take {LONGEST_S} seconds.",
    )
    error.sqlstate = "57014"
    return error


def _said(problem: duckdb.Error, scene: Scene) -> HeadwaterError:
    """The embedded database's refusal as ours."""
    if scene.problem is not None:
        return scene.problem
    message = str(problem).partition("\n\n")[0]
    first = message.partition("\n")[0]
    if isinstance(problem, duckdb.BinderException) and "column" in first.lower():
        named = re.findall(r'"([^"]*)"', first) or [""]
        missing = named[-1]
        if "not found in FROM" in first or "does not have a column" in first:
            return BindError(
                f'column "{missing}" does not exist', hint=_candidates(message), sqlstate="42703"
            )
        if "ambiguous" in first.lower():
            return BindError(f'column reference "{named[0]}" is ambiguous', sqlstate="42702")
    if isinstance(problem, duckdb.ConversionException):
        return BindError("a value does not fit its type", detail=first, sqlstate="22P02")
    return NotSupported(
        "this query over system tables is not supported",
        detail=first,
        hint="Only what clients ask of PostgreSQL's catalog is answered here.",
    )


def _candidates(message: str) -> str:
    found = message.partition("Candidate bindings:")[2].partition("\n")[0].strip()
    names = [name.strip().strip('"') for name in found.split(",") if name.strip()]
    return f'Did you mean "{names[0]}"?' if names else ""

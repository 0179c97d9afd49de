"""What a client has prepared: statements by name, and portals with their values and rows.

The unnamed statement and the unnamed portal are replaced without a word; a named one must be
closed first. Portals end with their transaction. How many a client may hold is limited, since
nothing else would stop one that never closes any.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from headwater.pgwire.answers import TEXT
from headwater.pgwire.messages import Bind, Parse
from headwater.pgwire.oids import oid_of
from headwater.pgwire.parameters import read_parameter
from headwater.pgwire.row_stream import RowStream
from headwater.pgwire.session import Described, Parameter, ResultColumn
from headwater.pgwire.violation import WireError

MOST_STATEMENTS = 10_000
MOST_PORTALS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A text, what the client said of its parameters, and what the session said of it."""

    text: str
    oids: tuple[int, ...]
    described: Described

    @property
    def parameter_oids(self) -> tuple[int, ...]:
        """The types of all parameters: the client's word first, then the session's, then text."""
        types = self.described.parameters
        types += (None,) * (len(self.oids) - len(types))
        return tuple(
            self.said_oid(place) or (25 if type_ is None else oid_of(type_))
            for place, type_ in enumerate(types)
        )

    def said_oid(self, place: int) -> int:
        """The type that the client or, failing that, the session gave by its number; or 0."""
        told = self.described.parameter_oids
        said = self.oids[place] if place < len(self.oids) else 0
        return said or (told[place] if place < len(told) else 0)


@dataclass(slots=True, kw_only=True)
class Portal:
    """A statement with values; `stream` once it runs and has rows, `ran` once it ran."""

    statement: Statement
    parameters: tuple[Parameter, ...]
    formats: tuple[int, ...]
    ran: bool = False
    stream: RowStream | None = None


class Prepared:
    """The statements and portals of one connection."""

    def __init__(self) -> None:
        self._statements: dict[str, Statement] = {}
        self._portals: dict[str, Portal] = {}

    def check_new_statement(self, name: str) -> None:
        """Refuse a name that is taken, or one too many."""
        if name and name in self._statements:
            raise WireError(f'prepared statement "{name}" already exists', "42P05")
        if len(self._statements) >= MOST_STATEMENTS and name not in self._statements:
            raise WireError("too many prepared statements", "53400", hint="Close some.")

    def add_statement(self, parse: Parse, described: Described) -> None:
        """Keep a statement."""
        self._statements[parse.name] = Statement(
            text=parse.text, oids=parse.oids, described=described
        )

    def statement(self, name: str) -> Statement:
        """The statement with this name."""
        if name not in self._statements:
            shown = f'prepared statement "{name}"' if name else "unnamed prepared statement"
            raise WireError(f"{shown} does not exist", "26000")
        return self._statements[name]

    def portal(self, name: str) -> Portal:
        """The portal with this name."""
        if name not in self._portals:
            raise WireError(f'portal "{name}" does not exist', "34000")
        return self._portals[name]

    async def bind(self, bind: Bind) -> None:
        """Make a portal."""
        if bind.portal and bind.portal in self._portals:
            raise WireError(f'portal "{bind.portal}" already exists', "42P03")
        if len(self._portals) >= MOST_PORTALS and bind.portal not in self._portals:
            raise WireError("too many open portals", "53400", hint="Close some.")
        statement = self.statement(bind.statement)
        portal = Portal(
            statement=statement,
            parameters=_parameters(statement, bind),
            formats=_result_formats(statement.described.columns, bind.result_formats),
        )
        await self.close_portal(bind.portal)
        self._portals[bind.portal] = portal

    async def close_portal(self, name: str) -> None:
        """Forget a portal, if there is one."""
        portal = self._portals.pop(name, None)
        if portal is not None and portal.stream is not None:
            await portal.stream.close()

    def close_statement(self, name: str) -> None:
        """Forget a statement, if there is one."""
        self._statements.pop(name, None)

    def forget_statements(self) -> None:
        """Forget all statements."""
        self._statements.clear()

    async def close_portals(self) -> None:
        """Forget all portals: their transaction is over."""
        for name in list(self._portals):
            await self.close_portal(name)


def _parameters(statement: Statement, bind: Bind) -> tuple[Parameter, ...]:
    oids = statement.parameter_oids
    if len(bind.values) != len(oids):
        raise WireError(
            f"bind message supplies {len(bind.values)} parameters, "
            f'but prepared statement "{bind.statement}" requires {len(oids)}',
            "08P01",
        )
    formats = _formats(bind.formats, len(oids), "parameter")
    types = statement.described.parameters
    return tuple(
        read_parameter(
            value,
            code,
            statement.said_oid(place),
            types[place] if place < len(types) else None,
        )
        for place, (value, code) in enumerate(zip(bind.values, formats, strict=True))
    )


def _result_formats(
    columns: tuple[ResultColumn, ...] | None, codes: tuple[int, ...]
) -> tuple[int, ...]:
    if columns is None:
        return ()
    return _formats(codes, len(columns), "result")


def _formats(codes: Sequence[int], count: int, what: str) -> tuple[int, ...]:
    """One format for each: none given means text, a single one is for all."""
    if not codes:
        return (TEXT,) * count
    if len(codes) == 1:
        return (codes[0],) * count
    if len(codes) != count:
        raise WireError(f"bind message has {len(codes)} {what} formats for {count} values", "08P01")
    return tuple(codes)

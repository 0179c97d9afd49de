"""An engine with an endpoint for PostgreSQL clients, as one thing that starts and stops.

The port is bound first, so that a client who comes early is told to try again (57P03) and an
address that is taken is an error before the workspace is touched. Stopping goes the other way:
clients are told, what they run is interrupted, then the engine makes its last checkpoint.
"""

import contextlib
import ssl
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from headwater.errors import UserError
from headwater.pgwire.server import PgServer
from headwater.pgwire.session import Session
from headwater.runtime.engine import Engine
from headwater.session.interpreter import House
from headwater.session.pg_session import EngineSessions

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 4566


class Serving:
    """An engine that answers on a port; an asynchronous context manager."""

    def __init__(
        self,
        engine: Engine,
        *,
        host: str = DEFAULT_HOST,
        port: int = DEFAULT_PORT,
        tls: ssl.SSLContext | None = None,
        users: Mapping[str, str | None] | None = None,
    ) -> None:
        self.engine = engine
        self.house: House | None = None
        self.address = (host, port)
        self._server = PgServer(self, host=host, port=port, tls=tls, users=users)
        self._sessions: EngineSessions | None = None

    async def open(
        self, user: str, database: str, options: Mapping[str, str], peer: str
    ) -> Session:
        """Begin a session, once the engine is ready."""
        if self._sessions is None:
            error = UserError("the database system is starting up")
            error.sqlstate = "57P03"
            raise error
        return await self._sessions.open(user, database, options, peer)

    async def __aenter__(self) -> Self:
        self.address = await self._server.start()
        try:
            await self.engine.start()
            self.house = House(self.engine)
            await self.house.warm_up()
            self._sessions = EngineSessions(self.house)
        except BaseException:
            await self._server.stop(grace_s=0)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self._server.stop()
            if self.house is not None:
                with contextlib.suppress(Exception):
                    await self.house.close()
        finally:
            await self.engine.stop()

"""The endpoint: accepts clients, gives each a connection, and ends them all when it stops."""

import asyncio
import itertools
import secrets
import ssl
import weakref
from collections.abc import Mapping

from headwater.errors import ConfigError
from headwater.pgwire.authentication import verifiers_of
from headwater.pgwire.channel import Channel
from headwater.pgwire.connection import Connection
from headwater.pgwire.framing import Frames
from headwater.pgwire.house import House, Limits
from headwater.pgwire.messages import CancelRequest
from headwater.pgwire.session import Sessions
from headwater.pgwire.violation import WireError

SERVER_VERSION = "14.0 (Headwater)"
"""The version of PostgreSQL whose catalogs and spellings clients may expect."""

_BACKLOG = 512


class PgServer:
    """Listens for clients of the PostgreSQL protocol.

    `users` maps a name to its password, to PostgreSQL's SCRAM verifier of it, or to None for a
    user who needs none but must be on this machine. Passwords are not kept.
    """

    def __init__(  # noqa: PLR0913  one argument per choice
        self,
        sessions: Sessions,
        *,
        host: str = "127.0.0.1",
        port: int = 4566,
        tls: ssl.SSLContext | None = None,
        users: Mapping[str, str | None] | None = None,
        limits: Limits | None = None,
        server_version: str = SERVER_VERSION,
    ) -> None:
        self._house = House(
            sessions=sessions,
            users=verifiers_of({"root": None} if users is None else users),
            tls=tls,
            limits=limits or Limits(),
            server_version=server_version,
        )
        self._host, self._port = host, port
        self._server: asyncio.Server | None = None
        self._connections: dict[int, Connection] = {}
        self._channels: weakref.WeakSet[Channel] = weakref.WeakSet()
        self._tasks: set[asyncio.Task[None]] = set()
        self._processes = itertools.count(secrets.randbelow(1 << 20) + 1)
        self._stopping = False

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._connections)

    async def start(self) -> tuple[str, int]:
        """Listen; gives the address that is bound (port 0 asks for a free one)."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: Channel(Frames(self._house.limits.message_bytes), self._welcome),
                self._host,
                self._port,
                backlog=_BACKLOG,
                reuse_address=True,
            )
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {self._host}:{self._port}",
                detail=error.strerror or str(error),
                hint="Choose another address, or port 0 for a free one.",
            ) from error
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    async def stop(self, grace_s: float = 5.0) -> None:
        """Accept nobody, tell all clients, and hang up; may be called again."""
        self._stopping = True
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections.values()):
            connection.stop()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace_s)
        for connection in list(self._connections.values()):
            connection.abort()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace_s)
        # Closed lines end in the loop's next turn; only those that cannot be flushed are left.
        await asyncio.sleep(0)
        for channel in list(self._channels):
            channel.abort()

    def _welcome(self, channel: Channel) -> None:
        process = next(self._processes) & 0x7FFFFFFF
        while process in self._connections:
            process = next(self._processes) & 0x7FFFFFFF
        self._channels.add(channel)
        connection = Connection(channel, self._house, process, secrets.token_bytes(4))
        if self._stopping:
            channel.abort()
            return
        if len(self._connections) >= self._house.limits.connections:
            connection.refusal = WireError("sorry, too many clients already", "53300")
        self._connections[process] = connection
        task = asyncio.get_running_loop().create_task(self._serve(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, connection: Connection) -> None:
        try:
            await connection.run()
        finally:
            del self._connections[connection.process]
        if connection.cancel_request is not None:
            self._cancel(connection.cancel_request)

    def _cancel(self, request: CancelRequest) -> None:
        target = self._connections.get(request.process)
        if target is not None and secrets.compare_digest(target.secret, request.secret):
            target.cancel()

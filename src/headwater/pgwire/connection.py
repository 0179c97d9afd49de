"""One client's conversation, from its first byte to its last.

    state          what the client may say                    what an error does
    starting       encryption, cancel, start-up, password     ends the connection
    idle           anything                                   Query: told, then ready again;
                                                              others: told, then skipping
    skipping       Sync ends it, all else is ignored          -
    copying        CopyData, CopyDone, CopyFail               as for the statement that copies

Bytes that make no sense end the connection, with a last word that says why. A client that is
gone ends it too: the session is told to cancel and the waiting task is cancelled, whatever it
does, so that nobody works for nobody.
"""

import asyncio
import functools
import logging
import traceback
from contextlib import aclosing
from typing import assert_never

from headwater.errors import HeadwaterError
from headwater.pgwire import answers
from headwater.pgwire.authentication import authenticate
from headwater.pgwire.channel import Channel, ClientGone
from headwater.pgwire.copying import send_copy, take_copy
from headwater.pgwire.house import House
from headwater.pgwire.messages import (
    Bind,
    CancelRequest,
    Close,
    CopyData,
    CopyDone,
    CopyFail,
    Describe,
    Execute,
    Flush,
    FunctionCall,
    Message,
    Parse,
    Password,
    Query,
    Startup,
    Sync,
    Terminate,
    read_message,
)
from headwater.pgwire.oids import oid_of
from headwater.pgwire.portals import Portal, Prepared
from headwater.pgwire.row_stream import RowStream
from headwater.pgwire.session import (
    CopyIn,
    CopyOut,
    Done,
    ResultColumn,
    Rows,
    Session,
    StatementResult,
)
from headwater.pgwire.start_up import (
    ReportedSettings,
    negotiation,
    read_opening,
    refuse_unknown_wishes,
    settings_of,
)
from headwater.pgwire.text import known_zone
from headwater.pgwire.violation import ProtocolViolation, WireError

_log = logging.getLogger(__name__)
_zone = functools.lru_cache(known_zone)
_SYNC, _TERMINATE = ord("S"), ord("X")
_QUERY_LIKE = frozenset(b"QF")
_FORGETTING = frozenset({"DEALLOCATE ALL", "DISCARD ALL"})


class Connection:
    """One client."""

    def __init__(self, channel: Channel, house: House, process: int, secret: bytes) -> None:
        self.process = process
        self.secret = secret
        self.cancel_request: CancelRequest | None = None
        self.refusal: WireError | None = None
        self._channel = channel
        self._house = house
        self._session: Session | None = None
        self._reported: ReportedSettings | None = None
        self._prepared = Prepared()
        self._skipping = False
        self._copying = False
        self._task: asyncio.Task[None] | None = None
        self._ending = False
        self._stopped = False
        channel.on_gone = self._gone

    async def run(self) -> None:
        """Talk until the client leaves, is cut off, or the server stops."""
        self._task = asyncio.current_task()
        try:
            if await self._begin():
                await self._converse()
        except ClientGone:
            pass
        except asyncio.CancelledError:
            if self._stopped:
                reason = WireError("terminating connection due to administrator command", "57P01")
                self._channel.write(answers.error(reason, fatal=True))
        except Exception as error:
            self._note(error)
            self._channel.write(answers.error(error, fatal=True))
        finally:
            self._ending = True
            await self._end()

    def cancel(self) -> None:
        """Stop the running statement: another connection with our secret asks for it."""
        if self._session is not None:
            self._session.cancel()
        if self._copying:
            error = WireError("canceling statement due to user request", "57014")
            self._channel.interrupt(error)

    def stop(self) -> None:
        """End soon; the client is told."""
        self._stopped = True
        self._interrupt()

    def abort(self) -> None:
        """End now."""
        self._channel.abort()
        if self._task is not None:
            self._task.cancel()

    def _gone(self) -> None:
        self._interrupt()

    def _interrupt(self) -> None:
        if self._ending:
            return
        self._ending = True
        if self._session is not None:
            self._session.cancel()
        if self._task is not None:
            self._task.cancel()

    async def _end(self) -> None:
        try:
            await self._prepared.close_portals()
        except Exception as error:
            self._note(error)
        session, self._session = self._session, None
        try:
            if session is not None:
                await session.close()
        except Exception as error:
            self._note(error)
        finally:
            self._channel.close()

    async def _begin(self) -> bool:
        """Whether a conversation follows."""
        channel, house = self._channel, self._house
        try:
            async with asyncio.timeout(house.limits.start_up_s):
                opening = await read_opening(channel, house.tls, house.limits.start_up_s)
                if isinstance(opening, CancelRequest):
                    self.cancel_request = opening
                    return False
                user = await self._admit(opening)
        except TimeoutError:
            raise ProtocolViolation("the client took too long to start", "08P01") from None
        database = opening.options.get("database") or user
        options = settings_of(opening)
        self._session = await house.sessions.open(user, database, options, channel.peer)
        self._reported = ReportedSettings(user, house.server_version)
        channel.write(self._reported.news(self._session))
        channel.write(answers.key_data(self.process, self.secret))
        self._ready()
        channel.frames.allow_large()
        return True

    async def _admit(self, opening: Startup) -> str:
        self._channel.frames.begin_messages()
        self._channel.write(negotiation(opening))
        refuse_unknown_wishes(opening)
        if self.refusal is not None:
            raise self.refusal
        user = opening.options["user"]
        await authenticate(self._channel, user, self._house.users)
        return user

    async def _converse(self) -> None:
        while True:
            kind, body = await self._channel.read()
            if self._skipping and kind not in (_SYNC, _TERMINATE):
                continue
            try:
                message = read_message(kind, body)
                del body
                if isinstance(message, Terminate):
                    return
                await self._answer(message)
            except (ProtocolViolation, ClientGone):
                raise
            except Exception as error:
                self._tell(error)
                if kind in _QUERY_LIKE:
                    await self._sync()
                else:
                    self._skipping = True
                    self._channel.flush()

    async def _answer(self, message: Message) -> None:  # noqa: PLR0912  one per message
        match message:
            case Query():
                await self._query(message.text)
            case Parse():
                await self._parse(message)
            case Bind():
                await self._prepared.bind(message)
                self._channel.write(answers.BIND_COMPLETE)
            case Describe():
                self._describe(message)
            case Execute():
                await self._execute(self._prepared.portal(message.portal), message.max_rows)
            case Close():
                if message.portal:
                    await self._prepared.close_portal(message.name)
                else:
                    self._prepared.close_statement(message.name)
                self._channel.write(answers.CLOSE_COMPLETE)
            case Flush():
                await self._channel.drain()
            case Sync():
                self._skipping = False
                await self._sync()
            case CopyData() | CopyDone() | CopyFail():
                # What a client sends after a COPY failed, before it has read that it did.
                pass
            case FunctionCall():
                raise WireError("function calls by message are not supported", "0A000")
            case Password():
                raise ProtocolViolation("unexpected password message")
            case Terminate():
                return
            case _:
                assert_never(message)
        # A client that only ever pipelines must not keep the others from their turn.
        await self._channel.drain() if self._channel.crowded else await asyncio.sleep(0)

    async def _query(self, text: str) -> None:
        await self._prepared.close_portal("")
        self._prepared.close_statement("")
        nothing = True
        async with aclosing(self._live.simple(text)) as results:
            async for result in results:
                nothing = False
                await self._send(result)
        if nothing:
            self._channel.write(answers.EMPTY_QUERY)
        await self._sync()

    async def _parse(self, message: Parse) -> None:
        self._prepared.check_new_statement(message.name)
        described = await self._live.describe(message.text, message.oids)
        self._prepared.add_statement(message, described)
        self._channel.write(answers.PARSE_COMPLETE)

    def _describe(self, message: Describe) -> None:
        if message.portal:
            portal = self._prepared.portal(message.name)
            columns, formats = portal.statement.described.columns, portal.formats
        else:
            statement = self._prepared.statement(message.name)
            self._channel.write(answers.parameter_description(statement.parameter_oids))
            columns = statement.described.columns
            formats = (answers.TEXT,) * len(columns or ())
        if columns is None:
            self._channel.write(answers.NO_DATA)
        else:
            self._channel.write(answers.row_description(columns, formats))

    async def _execute(self, portal: Portal, max_rows: int) -> None:
        if portal.stream is not None:
            await self._continue(portal, portal.stream, max_rows)
            return
        if portal.ran:
            raise WireError("portal cannot be run again", "55000")
        portal.ran = True
        result = await self._live.execute(portal.statement.text, portal.parameters)
        if result is None:
            self._channel.write(answers.EMPTY_QUERY)
            return
        if not isinstance(result, Rows):
            if portal.statement.described.columns is not None:
                raise _changed()
            await self._send(result)
            return
        portal.stream = RowStream(result, portal.formats, self._zone)
        if not _same_row(result.columns, portal.statement.described.columns):
            raise _changed()
        self._notices(result)
        await self._continue(portal, portal.stream, max_rows)

    async def _continue(self, portal: Portal, stream: RowStream, max_rows: int) -> None:
        sent = await stream.send(self._channel, max_rows)
        if not stream.exhausted:
            self._channel.write(answers.PORTAL_SUSPENDED)
            return
        assert isinstance(stream.result, Rows)
        self._complete(stream.result.tag, sent)

    async def _send(self, result: StatementResult) -> None:
        self._notices(result)
        match result:
            case Done():
                self._complete(result.tag, 0)
            case Rows():
                formats = (answers.TEXT,) * len(result.columns)
                self._channel.write(answers.row_description(result.columns, formats))
                stream = RowStream(result, formats, self._zone)
                try:
                    self._complete(result.tag, await stream.send(self._channel))
                finally:
                    await stream.close()
            case CopyIn():
                self._copying = True
                try:
                    rows = await take_copy(self._channel, result)
                finally:
                    self._copying = False
                self._complete("COPY ", rows)
            case CopyOut():
                self._complete("COPY ", await send_copy(self._channel, result, self._zone))
            case _:
                assert_never(result)

    def _complete(self, tag: str, rows: int) -> None:
        if tag in _FORGETTING:
            self._prepared.forget_statements()
        self._channel.write(answers.complete(f"{tag}{rows}" if tag.endswith(" ") else tag))

    def _notices(self, result: StatementResult) -> None:
        for notice in result.notices:
            self._channel.write(answers.notice(notice))

    async def _sync(self) -> None:
        if self._live.transaction_status == "I":
            await self._prepared.close_portals()
        self._ready()
        await self._channel.drain()

    def _ready(self) -> None:
        assert self._reported is not None
        self._channel.write(self._reported.news(self._live))
        self._channel.write(answers.ready(self._live.transaction_status))
        self._channel.flush()

    def _tell(self, error: Exception) -> None:
        self._note(error)
        self._channel.write(answers.error(error))
        self._live.fail()

    @property
    def _live(self) -> Session:
        assert self._session is not None
        return self._session

    @property
    def _zone(self) -> str:
        return _zone(self._live.settings.get("TimeZone", "UTC"))

    def _note(self, error: Exception) -> None:
        """Log where an error that is not ours came from; its text may hold a secret."""
        if isinstance(error, HeadwaterError):
            return
        frames = traceback.extract_tb(error.__traceback__)
        where = " < ".join(f"{frame.filename}:{frame.lineno}" for frame in reversed(frames))
        _log.error("connection %d: %s at %s", self.process, type(error).__name__, where)


def _same_row(now: tuple[ResultColumn, ...], described: tuple[ResultColumn, ...] | None) -> bool:
    """Whether rows still are what the client was told."""
    return described is not None and [oid_of(column.type) for column in now] == [
        oid_of(column.type) for column in described
    ]


def _changed() -> WireError:
    return WireError(
        "cached plan must not change result type", "0A000", hint="Prepare the statement again."
    )

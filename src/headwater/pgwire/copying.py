"""COPY between a session and its client."""

import asyncio

from headwater.pgwire import answers
from headwater.pgwire.channel import Channel, ClientGone
from headwater.pgwire.copy_rows import CopyWriter
from headwater.pgwire.copy_stream import CopyReader, Row, as_batch, reader_of
from headwater.pgwire.messages import (
    CopyData,
    CopyDone,
    CopyFail,
    Flush,
    Sync,
    Terminate,
    read_message,
)
from headwater.pgwire.row_stream import RowStream
from headwater.pgwire.session import CopyIn, CopyOut
from headwater.pgwire.violation import WireError

BATCH_ROWS = 8192
BATCH_BYTES = 4 << 20


async def take_copy(channel: Channel, copy: CopyIn) -> int:
    """Ask the client for its rows and hand them on; gives how many took effect."""
    binary = copy.options.format == "binary"
    code = answers.BINARY if binary else answers.TEXT
    finished = False
    try:
        channel.write(answers.copy_in(len(copy.columns), code))
        await channel.drain()
        await _hand_over(channel, copy, reader_of(copy.options, [c.type for c in copy.columns]))
        rows = await copy.target.finish()
        finished = True
        return rows
    finally:
        if not finished:
            await copy.target.abort()


async def _hand_over(channel: Channel, copy: CopyIn, reader: CopyReader) -> None:
    names = [column.name for column in copy.columns]
    held: list[Row] = []
    held_bytes = 0
    while True:
        message = read_message(*await channel.read())
        match message:
            case CopyData():
                held += reader.feed(message.data)
                held_bytes += len(message.data)
                if held and (len(held) >= BATCH_ROWS or held_bytes >= BATCH_BYTES):
                    await copy.target.write(as_batch(held, names))
                    held, held_bytes = [], 0
                    await asyncio.sleep(0)
            case CopyDone():
                held += reader.finish()
                if held:
                    await copy.target.write(as_batch(held, names))
                return
            case CopyFail():
                raise WireError(f"COPY from stdin failed: {message.reason}", "57014")
            case Flush() | Sync():
                # Clients may send these ahead, not knowing that the statement was a COPY.
                pass
            case Terminate():
                raise ClientGone
            case _:
                kind = type(message).__name__
                raise WireError(f"unexpected message {kind} during COPY from stdin", "08P01")


async def send_copy(channel: Channel, copy: CopyOut, zone: str) -> int:
    """Send the rows; gives how many."""
    writer = CopyWriter(copy.options, copy.columns, zone)
    stream = RowStream(copy, (), zone)
    sent = 0
    try:
        channel.write(answers.copy_out(len(copy.columns), writer.code))
        channel.write(writer.head())
        while (piece := await stream.next_piece()) is not None:
            channel.write(writer.rows(piece))
            sent += piece.num_rows
            await channel.drain()
            await asyncio.sleep(0)
        channel.write(writer.end())
        channel.write(answers.COPY_DONE)
        return sent
    finally:
        await stream.close()

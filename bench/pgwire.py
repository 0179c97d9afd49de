"""How fast results go to clients: encoding alone, and through a socket.

    python bench/pgwire.py [--rows 400000]

Five columns (bigint, double, varchar, timestamptz, boolean) in text and in binary format. The
aim is 300,000 rows a second in text format on one core. Through the socket, the client is
another process that only reads, so the figure is the server's.
"""

import argparse
import asyncio
import multiprocessing
import socket
import struct
import time
from collections.abc import AsyncIterator, Sequence

import numpy as np
import pyarrow as pa

from headwater.model.types import BIGINT, BOOLEAN, DOUBLE, TIMESTAMPTZ, VARCHAR
from headwater.pgwire.rows import cells, data_rows, slices
from headwater.pgwire.server import PgServer
from headwater.pgwire.session import Described, ResultColumn, Rows

AIM = 300_000
COLUMNS = tuple(
    ResultColumn(name=name, type=type_)
    for name, type_ in (
        ("id", BIGINT),
        ("score", DOUBLE),
        ("name", VARCHAR),
        ("at", TIMESTAMPTZ),
        ("good", BOOLEAN),
    )
)


def batch_of(rows: int) -> pa.RecordBatch:
    random = np.random.default_rng(7)
    at = pa.array(random.integers(0, 10**15, rows)).cast(pa.timestamp("us", tz="UTC"))
    return pa.record_batch(
        [
            pa.array(np.arange(rows)),
            pa.array(random.random(rows)),
            pa.array([f"name {i}" for i in range(rows)]),
            at,
            pa.array(random.integers(0, 2, rows) == 1),
        ],
        names=[column.name for column in COLUMNS],
    )


def encoding(batch: pa.RecordBatch, code: int) -> float:
    started = time.perf_counter()
    for piece in slices(batch):
        data_rows(cells(piece, COLUMNS, [code] * len(COLUMNS)), piece.num_rows)
    return float(batch.num_rows / (time.perf_counter() - started))


class OneAnswer:
    """A session that answers everything with the same rows."""

    transaction_status = "I"
    settings: dict[str, str] = {}  # noqa: RUF012  never changed

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch

    async def open(self, *_: object) -> "OneAnswer":
        """Everybody gets this one."""
        return self

    async def simple(self, text: str) -> AsyncIterator[Rows]:
        """The rows."""
        del text
        yield Rows(columns=COLUMNS, batches=self._batches())

    async def describe(self, text: str, parameter_oids: Sequence[int]) -> Described:
        """The columns."""
        del text, parameter_oids
        return Described(columns=COLUMNS)

    async def execute(self, text: str, parameters: object) -> Rows:
        """The rows."""
        del text, parameters
        return Rows(columns=COLUMNS, batches=self._batches())

    def fail(self) -> None:
        """Nothing can fail."""
        return

    cancel = fail

    async def close(self) -> None:
        """Nothing to give back."""
        return

    async def _batches(self) -> AsyncIterator[pa.RecordBatch]:
        yield self.batch


def read_all(port: int, times: int, pipe: "multiprocessing.connection.Connection") -> None:
    with socket.create_connection(("127.0.0.1", port)) as client:
        body = struct.pack(">i", 196608) + b"user\0root\0\0"
        client.sendall(struct.pack(">i", len(body) + 4) + body)
        ready = b"Z\0\0\0\5I"
        for turn in range(times + 1):
            started, tail = time.perf_counter(), b""
            while not tail.endswith(ready):
                tail = (tail + client.recv(1 << 18))[-6:]
            if turn:
                pipe.send(time.perf_counter() - started)
            client.sendall(b"Q\0\0\0\6x\0")


async def through_socket(batch: pa.RecordBatch, times: int) -> float:
    server = PgServer(OneAnswer(batch), port=0)  # type: ignore[arg-type]
    _, port = await server.start()
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    reader = context.Process(target=read_all, args=(port, times, there))
    reader.start()
    seconds = [await asyncio.to_thread(here.recv) for _ in range(times)]
    reader.join()
    await server.stop()
    return float(batch.num_rows / sorted(seconds)[times // 2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000)
    batch = batch_of(parser.parse_args().rows)
    for code, name in ((0, "text"), (1, "binary")):
        speeds = sorted(encoding(batch, code) for _ in range(3))
        print(f"encoding, {name:6}: {speeds[1]:>12,.0f} rows/s")
    speed = asyncio.run(through_socket(batch, 3))
    verdict = "reached" if speed >= AIM else "MISSED"
    print(f"through a socket, text: {speed:>7,.0f} rows/s (aim {AIM:,}: {verdict})")


if __name__ == "__main__":
    main()

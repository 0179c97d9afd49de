"""Events of the binlog, found in the packets of a stream by a kernel.

An event has a header of 19 bytes (time, type, server, size, where it ends in the file, flags),
a body, and a checksum where the file has them. The kernel finds the bodies, checks the
checksums, and says where transactions end:

    MySQL      GTID, then BEGIN ... XID or COMMIT; or GTID and one statement of DDL
    MariaDB    GTID that says whether one event follows, or several up to XID or COMMIT

What lies between transactions (checkpoints, heartbeats, the end of a file) counts as passed, so
that a place behind it can be reached on an idle server.

A compressed transaction (MySQL), statement or row event (MariaDB) is unpacked behind the other
bytes, and stands in the list as if it had come so.
"""

import zlib
from dataclasses import dataclass, replace
from typing import Any

import numba
import numpy as np
import pyarrow as pa

from headwater.cdc.mysql.pieces import Array
from headwater.errors import DamagedState, SourceUnavailable, UserError

HEADER = 19
QUERY, ROTATE, FORMAT, XID, TABLE_MAP = 2, 4, 15, 16, 19
INTVAR, RAND, USER_VAR, LOAD_QUERY, INCIDENT = 5, 13, 14, 18, 26
WRITE_V1, UPDATE_V1, DELETE_V1, WRITE_V2, UPDATE_V2, DELETE_V2 = 23, 24, 25, 30, 31, 32
GTID, ANONYMOUS_GTID, GTID_TAGGED, PREVIOUS_GTIDS = 33, 34, 42, 35
XA_PREPARE, PARTIAL_UPDATE, PAYLOAD = 38, 39, 40
MARIADB_GTID, MARIADB_QUERY_COMPRESSED, MARIADB_START_ENCRYPTION = 162, 165, 164
_COMPRESSED_ROWS = {
    166: WRITE_V1, 167: UPDATE_V1, 168: DELETE_V1, 169: WRITE_V2, 170: UPDATE_V2, 171: DELETE_V2
}  # fmt: skip
_COMPRESSED = frozenset({PAYLOAD, MARIADB_QUERY_COMPRESSED, *_COMPRESSED_ROWS})

OPEN, COMMITTED, ROLLED_BACK, PREPARED, PASSED = 0, 1, 2, 3, 4
PLAIN, BEGIN, COMMIT, ROLLBACK = 0, 1, 2, 3
_MARIADB_STANDALONE = 1
_OUTSIDE, _ONE, _MANY = 0, 1, 2


def _crc_tables() -> Array:
    """Tables for a checksum of eight bytes at a time."""
    tables = np.zeros((8, 256), dtype=np.uint32)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xEDB88320 if crc & 1 else 0)
        tables[0, byte] = crc
    for level in range(1, 8):
        before = tables[level - 1]
        tables[level] = before >> 8 ^ tables[0][before & 0xFF]
    return tables


_CRC = _crc_tables()


@numba.njit(cache=True, nogil=True)
def _crc32(data, start, end):  # type: ignore[no-untyped-def]
    crc = np.uint32(0xFFFFFFFF)
    at = start
    while end - at >= 8:
        low = np.uint32(data[at]) | np.uint32(data[at + 1]) << np.uint32(8)
        low |= np.uint32(data[at + 2]) << np.uint32(16) | np.uint32(data[at + 3]) << np.uint32(24)
        low ^= crc
        crc = _CRC[7, low & 0xFF] ^ _CRC[6, low >> 8 & 0xFF] ^ _CRC[5, low >> 16 & 0xFF]
        crc ^= _CRC[4, low >> 24] ^ _CRC[3, data[at + 4]] ^ _CRC[2, data[at + 5]]
        crc ^= _CRC[1, data[at + 6]] ^ _CRC[0, data[at + 7]]
        at += 8
    while at < end:
        crc = crc >> np.uint32(8) ^ _CRC[0, (crc ^ data[at]) & np.uint32(0xFF)]
        at += 1
    return crc ^ np.uint32(0xFFFFFFFF)


@numba.njit(cache=True, nogil=True)
def _u32(data, at):  # type: ignore[no-untyped-def]
    value = np.int64(0)
    for place in range(4):
        value |= np.int64(data[at + place]) << (8 * place)
    return value


@numba.njit(cache=True, nogil=True)
def _read_headers(data, starts, sizes, checksum, out):  # type: ignore[no-untyped-def]
    """Fill `Events.table` up to the end of the file; gives how many, and whether one is damaged."""
    for number in range(starts.size):
        at = starts[number]
        end = at + sizes[number]
        kind = data[at + 4]
        out[number, 0] = kind
        out[number, 1] = at + HEADER
        out[number, 3] = _u32(data, at + 13)
        out[number, 4] = _u32(data, at)
        out[number, 5] = np.int64(data[at + 17]) | np.int64(data[at + 18]) << 8
        out[number, 6] = number
        if kind == ROTATE:
            # What follows is of another file, and may have another form.
            out[number, 2] = end
            return number + 1, False
        if checksum:
            end -= 4
            if _crc32(data, at, end) != np.uint32(_u32(data, end)):
                return number, True
        out[number, 2] = end
    return starts.size, False


@numba.njit(cache=True, nogil=True)
def _says(data, start, end, word):  # type: ignore[no-untyped-def]
    if end - start != word.size:
        return False
    for place in range(word.size):
        if data[start + place] | 0x20 != word[place]:
            return False
    return True


_BEGIN = np.frombuffer(b"begin", dtype=np.uint8)
_COMMIT = np.frombuffer(b"commit", dtype=np.uint8)
_ROLLBACK = np.frombuffer(b"rollback", dtype=np.uint8)
_START = np.frombuffer(b"start transaction", dtype=np.uint8)
_XA_START = np.frombuffer(b"xa start", dtype=np.uint8)


@numba.njit(cache=True, nogil=True)
def _begins(data, start, end, word):  # type: ignore[no-untyped-def]
    return end - start > word.size and _says(data, start, start + word.size, word)


@numba.njit(cache=True, nogil=True)
def _statement_start(data, body):  # type: ignore[no-untyped-def]
    status = np.int64(data[body + 11]) | np.int64(data[body + 12]) << 8
    return body + 13 + status + np.int64(data[body + 8]) + 1


@numba.njit(cache=True, nogil=True)
def _read_statement(data, start, end, state):  # type: ignore[no-untyped-def]
    """What a statement says, whether it ends a transaction, and what is open afterwards."""
    if _says(data, start, end, _BEGIN):
        return BEGIN, OPEN, _MANY
    if _says(data, start, end, _COMMIT):
        return COMMIT, COMMITTED, state
    if _says(data, start, end, _ROLLBACK):
        return ROLLBACK, ROLLED_BACK, state
    if state == _MANY:
        return PLAIN, OPEN, state
    opens = end - start > _START.size and _says(data, end - _START.size, end, _START)
    if opens or _begins(data, start, end, _XA_START):
        return PLAIN, OPEN, _MANY
    return PLAIN, COMMITTED, state


@numba.njit(cache=True, nogil=True)
def _find_ends(data, events, ends, words):  # type: ignore[no-untyped-def]
    """For each event whether a transaction ends with it and how, and what a statement says."""
    state = _OUTSIDE
    for number in range(ends.size):
        kind, body, end = events[number, 0], events[number, 1], events[number, 2]
        ends[number] = OPEN
        words[number] = PLAIN
        if kind in (GTID, ANONYMOUS_GTID, GTID_TAGGED):
            state = _ONE
        elif kind == MARIADB_GTID:
            state = _ONE if data[body + 12] & _MARIADB_STANDALONE else _MANY
        elif kind == XID:
            ends[number] = COMMITTED
        elif kind == XA_PREPARE:
            # Its first byte says whether it is committed at the same time.
            ends[number] = COMMITTED if data[body] else PREPARED
        elif kind == QUERY:
            words[number], ends[number], state = _read_statement(
                data, _statement_start(data, body), end, state
            )
        elif state == _OUTSIDE and events[number, 3] > 0:
            ends[number] = PASSED
        if ends[number] != OPEN:
            state = _OUTSIDE


@dataclass(frozen=True, slots=True)
class Events:
    """Events of one file, in order.

    Columns of `table`: type, where the body begins and ends, the place in the file, time, flags,
    and the number of the packet.
    """

    data: Array
    table: Array
    ends: Array
    words: Array

    def __len__(self) -> int:
        return int(self.ends.size)

    @property
    def types(self) -> Array:
        """The type of each."""
        return self.table[:, 0]

    def body(self, number: int) -> bytes:
        """The body of one, for slow paths."""
        return self.data[int(self.table[number, 1]) : int(self.table[number, 2])].tobytes()

    def first(self, count: int) -> "Events":
        """The first ones."""
        return replace(
            self, table=self.table[:count], ends=self.ends[:count], words=self.words[:count]
        )

    def statement(self, number: int) -> tuple[str, str]:
        """The default database and the text of a QUERY event."""
        body = self.body(number)
        status = int.from_bytes(body[11:13], "little")
        name = 13 + status
        text = name + body[8] + 1
        return body[name : text - 1].decode("utf-8", "replace"), body[text:].decode(
            "utf-8", "replace"
        )


def read_events(data: Array, starts: Array, sizes: Array, *, checksum: bool) -> Events:
    """The events of some packets."""
    table = np.zeros((starts.size, 7), dtype=np.int64)
    # Each packet begins with a byte that says that it is no error.
    count, damaged = _read_headers(data, starts + 1, sizes - 1, checksum, table)
    if damaged:
        raise SourceUnavailable(
            "an event of the binlog has a wrong checksum",
            detail=f"Type {table[count, 0]}, before position {table[count, 3]}.",
            hint="If it comes again, the server's binlog file is damaged.",
        )
    table = table[:count]
    if np.isin(table[:, 0], list(_COMPRESSED)).any():
        data, table = _unpacked(data, table)
    ends = np.empty(len(table), dtype=np.int64)
    words = np.empty(len(table), dtype=np.int64)
    _find_ends(data, table, ends, words)
    return Events(data, table, ends, words)


def file_has_checksums(body: bytes) -> bool:
    """What a FORMAT event says of the events that follow; its own checksum is still at the end."""
    return body[-5] == 1


def next_file(body: bytes, current: int) -> str:
    """The file that a ROTATE event names.

    The server makes some of these up, with a checksum behind the name or without; files are
    numbered one after another, which tells.
    """
    names = [raw.decode("utf-8", "replace") for raw in (body[8:-4], body[8:])]
    for name in names:
        digits = name.rpartition(".")[2]
        if digits.isdecimal() and int(digits) == current + 1:
            return name
    return names[1]


def _unpacked(data: Array, table: Array) -> tuple[Array, Array]:
    parts: list[Array] = [data]
    rows: list[Array] = []
    size = data.size
    for row in table:
        kind = int(row[0])
        if kind not in _COMPRESSED:
            rows.append(row)
            continue
        body = data[int(row[1]) : int(row[2])].tobytes()
        unpacked = _unpack_payload(body) if kind == PAYLOAD else _unpack_mariadb(kind, body)
        parts.append(np.frombuffer(unpacked, dtype=np.uint8))
        if kind == PAYLOAD:
            rows.extend(_inner_events(unpacked, size, row))
        else:
            plain = row.copy()
            plain[0] = _COMPRESSED_ROWS.get(kind, QUERY)
            plain[1], plain[2] = size, size + len(unpacked)
            rows.append(plain)
        size += len(unpacked)
    return np.concatenate(parts), np.array(rows, dtype=np.int64).reshape(-1, 7)


def _inner_events(unpacked: bytes, base: int, outer: Array) -> list[Array]:
    rows, at = [], 0
    while at < len(unpacked):
        size = int.from_bytes(unpacked[at + 9 : at + 13], "little")
        row = outer.copy()
        row[0], row[1], row[2] = unpacked[at + 4], base + at + HEADER, base + at + size
        rows.append(row)
        at += size
    return rows


def length_encoded(body: bytes, at: int) -> tuple[int, int]:
    """A number of one to nine bytes, and where the next thing begins."""
    first = body[at]
    if first < 251:
        return first, at + 1
    width = {252: 2, 253: 3, 254: 8}[first]
    return int.from_bytes(body[at + 1 : at + 1 + width], "little"), at + 1 + width


def _unpack_payload(body: bytes) -> bytes:
    """The events in a compressed transaction of MySQL: fields, then the packed bytes."""
    at, packing, size, packed = 0, 0, 0, 0
    while True:
        field, at = length_encoded(body, at)
        if field == 0:
            break
        length, at = length_encoded(body, at)
        value, _ = length_encoded(body, at)
        at += length
        if field == 1:
            packed = value
        elif field == 2:
            packing = value
        elif field == 3:
            size = value
    content = body[at : at + packed] if packed else body[at:]
    if packing == 255:
        return content
    if packing != 0:
        raise UserError(f"a transaction in the binlog is packed in an unknown way ({packing})")
    unpacked: Any = pa.Codec("zstd").decompress(content, size, asbytes=True)
    return bytes(unpacked)


def _unpack_mariadb(kind: int, body: bytes) -> bytes:
    """A compressed event of MariaDB: its fixed part as it is, then the packed rest."""
    if kind == MARIADB_QUERY_COMPRESSED:
        fixed = 13 + int.from_bytes(body[11:13], "little") + body[8] + 1
    else:
        fixed = _rows_at(kind, body)
    head, rest = body[:fixed], body[fixed:]
    if rest[0] & 0xE0 != 0x80:
        raise UserError(f"an event in the binlog is packed in an unknown way ({rest[0]})")
    width = rest[0] & 7
    unpacked = zlib.decompress(rest[1 + width :])
    if len(unpacked) != int.from_bytes(rest[1 : 1 + width], "big"):
        raise DamagedState("a compressed event of the binlog has another length than it says")
    return head + unpacked


def _rows_at(kind: int, body: bytes) -> int:
    plain = _COMPRESSED_ROWS[kind]
    at = 8
    if plain >= WRITE_V2:
        at += int.from_bytes(body[8:10], "little")
    columns, at = length_encoded(body, at)
    bitmaps = 2 if plain in (UPDATE_V1, UPDATE_V2) else 1
    return at + bitmaps * ((columns + 7) // 8)

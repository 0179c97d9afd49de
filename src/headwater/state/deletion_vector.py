"""Deletion vectors: which rows of an immutable file are dead.

The format is Delta's, so that every Delta reader skips the same rows: a 64-bit Roaring bitmap
behind a magic number, many of them in one file, each with its length before and its checksum
after it. One file holds all vectors that an epoch changes. A vector replaces the one before it
and holds every dead row of its data file, not only the new ones.
"""

import re
import struct
import zlib
from collections.abc import Mapping

from pyroaring import BitMap, BitMap64

from headwater.errors import DamagedState
from headwater.model.table_commit import DeletionVector

_MAGIC = struct.pack("<i", 1681511377)
_FORMAT = b"\x01"
_PREFIX = "deletion_vector_"
_SUFFIX = ".bin"
_UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def file_name(token: bytes) -> str:
    """The name of a vector file; Delta derives it from 16 bytes written as a UUID."""
    digits = token.hex()
    uuid = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
    return f"{_PREFIX}{uuid}{_SUFFIX}"


def token_of(name: str) -> bytes | None:
    """The 16 bytes a vector file is named by, or None for another kind of file."""
    if not (name.startswith(_PREFIX) and name.endswith(_SUFFIX)):
        return None
    digits = name.removeprefix(_PREFIX).removesuffix(_SUFFIX)
    return bytes.fromhex(digits.replace("-", "")) if _UUID.fullmatch(digits) else None


def pack(path: str, dead: Mapping[str, BitMap]) -> tuple[bytes, dict[str, DeletionVector]]:
    """Lay out the vectors of several data files in one vector file called `path`."""
    content = bytearray(_FORMAT)
    vectors: dict[str, DeletionVector] = {}
    for file in sorted(dead):
        data = _MAGIC + BitMap64(dead[file]).serialize()
        vectors[file] = DeletionVector(
            path=path, offset=len(content), bytes=len(data), cardinality=len(dead[file])
        )
        content += struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))
    return bytes(content), vectors


def unpack(content: bytes, vector: DeletionVector) -> BitMap:
    """Read one vector out of its file's content, and verify it."""
    start = vector.offset + 4
    data = content[start : start + vector.bytes]
    whole = len(content) >= start + vector.bytes + 4
    size = struct.unpack_from(">i", content, vector.offset)[0] if whole else -1
    checksum = struct.unpack_from(">I", content, start + vector.bytes)[0] if whole else -1
    if size != vector.bytes or checksum != zlib.crc32(data) or data[:4] != _MAGIC:
        raise DamagedState(
            "a deletion vector is corrupt",
            detail=f"{vector.path} at {vector.offset}.",
            hint="Restore the file from a backup; Headwater does not guess which rows are dead.",
        )
    dead = BitMap(BitMap64.deserialize(data[4:]))
    if len(dead) != vector.cardinality:
        raise DamagedState(
            "a deletion vector does not hold what the ledger says",
            detail=f"{vector.path} at {vector.offset}: {len(dead)} rows, "
            f"the ledger has {vector.cardinality}.",
        )
    return dead


def descriptor(vector: DeletionVector) -> dict[str, object]:
    """The vector as a Delta `add` or `remove` action names it."""
    token = token_of(vector.path)
    assert token is not None
    return {
        "storageType": "u",
        "pathOrInlineDv": _encode_z85(token),
        "offset": vector.offset,
        "sizeInBytes": vector.bytes,
        "cardinality": vector.cardinality,
    }


def _encode_z85(data: bytes) -> str:
    letters: list[str] = []
    for start in range(0, len(data), 4):
        value = int.from_bytes(data[start : start + 4], "big")
        letters += [_Z85[value // 85**power % 85] for power in range(4, -1, -1)]
    return "".join(letters)

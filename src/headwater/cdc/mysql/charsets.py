"""Character sets of columns: in the log, text has the bytes of its column.

In snapshots the server converts to UTF-8. In the log it does not, so the common character sets
are decoded here, with the meaning that the server gives them: its latin1 is Windows' code page
1252, in which five bytes without a character stand for themselves.
"""

import codecs
from collections.abc import Callable

import pyarrow as pa

from headwater.errors import SchemaError

UTF8 = frozenset({"utf8mb4", "utf8mb3", "utf8", "ascii"})
_CODECS = {
    "ucs2": "utf-16-be", "utf16": "utf-16-be", "utf16le": "utf-16-le", "utf32": "utf-32-be",
    "gbk": "gbk", "gb2312": "gb2312", "gb18030": "gb18030", "big5": "big5", "sjis": "shift_jis",
    "cp932": "cp932", "ujis": "euc_jp", "eucjpms": "euc_jp", "euckr": "euc_kr",
    "cp1250": "cp1250", "cp1251": "cp1251", "cp1256": "cp1256", "cp1257": "cp1257",
    "cp850": "cp850", "cp852": "cp852", "cp866": "cp866", "latin2": "iso8859-2",
    "latin5": "iso8859-9", "latin7": "iso8859-13", "greek": "iso8859-7", "hebrew": "iso8859-8",
    "koi8r": "koi8-r", "koi8u": "koi8-u", "tis620": "tis-620", "macroman": "mac_roman",
    "macce": "mac_latin2",
}  # fmt: skip
_LATIN1 = "".join(bytes([byte]).decode("cp1252", "ignore") or chr(byte) for byte in range(256))


def decoder_of(charset: str) -> Callable[[bytes], str]:
    """How bytes of a character set become text."""
    if charset in UTF8:
        return lambda raw: raw.decode("utf-8")
    if charset == "latin1":
        return lambda raw: codecs.charmap_decode(raw, "strict", _LATIN1)[0]
    name = _CODECS.get(charset)
    if name is None:
        raise SchemaError(
            f'text in the character set "{charset}" cannot be read from the log',
            hint="Convert the column: ALTER TABLE ... MODIFY ... CHARACTER SET utf8mb4;",
        )
    return lambda raw: raw.decode(name)


def text_of(raw: pa.Array, charset: str) -> pa.Array:
    """A column of bytes as text; each distinct value is decoded once."""
    if charset in UTF8:
        text = pa.Array.from_buffers(pa.string(), len(raw), raw.buffers(), raw.null_count)
        text.validate(full=True)
        return text
    decode = decoder_of(charset)
    encoded = raw.dictionary_encode()
    texts = pa.array([decode(each) for each in encoded.dictionary.to_pylist()], pa.string())
    return texts.take(encoded.indices)

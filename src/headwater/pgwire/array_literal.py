"""Arrays in text format, read and written: `{1,NULL,"a b"}`."""

import re
from typing import Any

from headwater.pgwire.violation import WireError

MOST_DIMENSIONS = 6

_BLANK = "[ \\t\\n\\r\\v\\f]"
_BARE = r'(?:[^{}",\\ \t\n\r\v\f]|\\.)'
_BOUNDS = re.compile(rf"{_BLANK}*(?:\[[+-]?[0-9]+(?::[+-]?[0-9]+)?\])+{_BLANK}*=")
_TOKEN = re.compile(
    rf'{_BLANK}*(?:([{{}},])|"((?:[^"\\]|\\.)*)"|({_BARE}(?:(?:[^{{}}",\\]|\\.)*{_BARE})?)){_BLANK}*',
    re.DOTALL,
)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_QUOTED = re.compile(r'^$|^null$|["\\{}, \t\n\r\v\f]', re.IGNORECASE)


def read_array(text: str) -> list[Any]:  # noqa: PLR0912  one branch per sign
    """The elements as texts, in lists as deep as there are dimensions; None for null."""
    bounds = _BOUNDS.match(text)
    at = bounds.end() if bounds else 0
    stack: list[list[Any]] = []
    result: list[Any] | None = None
    expects_value = True
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or result is not None:
            raise _malformed(text)
        at = match.end()
        sign, quoted, bare = match.groups()
        if sign == "{":
            if not expects_value or len(stack) == MOST_DIMENSIONS:
                raise _malformed(text)
            stack.append([])
        elif not stack:
            raise _malformed(text)
        elif sign == "}":
            if expects_value and stack[-1]:
                raise _malformed(text)
            done = stack.pop()
            if stack:
                stack[-1].append(done)
            else:
                result = done
            expects_value = False
        elif sign == ",":
            if expects_value:
                raise _malformed(text)
            expects_value = True
        else:
            if not expects_value:
                raise _malformed(text)
            stack[-1].append(_value(quoted, bare))
            expects_value = False
    if result is None:
        raise _malformed(text)
    return result


def write_array(values: list[Any]) -> str:
    """The literal of texts in lists; None becomes NULL."""
    return "{" + ",".join(_write(value) for value in values) + "}"


def _write(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, list):
        return write_array(value)
    if _QUOTED.search(value):
        return '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'
    return str(value)


def _value(quoted: str | None, bare: str) -> str | None:
    if quoted is not None:
        return _ESCAPED.sub(r"\1", quoted)
    if bare.upper() == "NULL":
        return None
    return _ESCAPED.sub(r"\1", bare)


def _malformed(text: str) -> WireError:
    shown = text if len(text) <= 100 else text[:100] + "..."
    return WireError(f'malformed array literal: "{shown}"', "22P02")

"""The first words of a connection: encryption, who the client is, and what it is told.

A connection begins with at most one request each for TLS and GSS, then either asks to cancel
what another one does, or names its user. Whoever speaks before TLS is in place, after asking
for it, is cut off: those bytes could have been put there by somebody else.
"""

import ssl
from collections.abc import Mapping

from headwater.pgwire import answers
from headwater.pgwire.channel import Channel
from headwater.pgwire.messages import CancelRequest, EncryptionRequest, Startup, read_start_up
from headwater.pgwire.session import Session
from headwater.pgwire.violation import ProtocolViolation, WireError

_ENCODINGS = frozenset({"utf8", "unicode"})
_NOT_SETTINGS = frozenset({"user", "database", "options", "replication"})


async def read_opening(
    channel: Channel, tls: ssl.SSLContext | None, limit_s: float
) -> Startup | CancelRequest:
    """What the client wants, after encryption was settled."""
    asked: set[bool] = set()
    while True:
        opening = read_start_up(await channel.read_start_up())
        if not isinstance(opening, EncryptionRequest):
            return opening
        if opening.tls in asked:
            raise ProtocolViolation("encryption was asked for twice")
        asked.add(opening.tls)
        if channel.frames.held:
            raise ProtocolViolation("received unencrypted data after encryption request")
        if opening.tls and tls is not None:
            channel.write(b"S")
            channel.flush()
            await channel.start_tls(tls, limit_s)
            tls = None
            asked.add(False)
        else:
            channel.write(b"N")
            channel.flush()


def settings_of(startup: Startup) -> dict[str, str]:
    """The settings that a client begins with: named ones, and those inside `options`."""
    settings: dict[str, str] = {}
    words = iter(_words(startup.options.get("options", "")))
    for word in words:
        setting = next(words, "") if word == "-c" else word.removeprefix("-c")
        setting = setting.removeprefix("--") if word.startswith("--") else setting
        name, _, value = setting.partition("=")
        if not name or name.startswith("-") or "=" not in setting:
            raise WireError(f"invalid command-line argument for server process: {word}", "42601")
        settings[name.replace("-", "_")] = value
    for name, value in startup.options.items():
        if name not in _NOT_SETTINGS and not name.startswith("_pq_."):
            settings[name] = value
    return settings


def _words(text: str) -> list[str]:
    """The words of `options`, in which a backslash keeps a blank."""
    words, current, escaped = [], "", False
    for char in text:
        if escaped:
            current, escaped = current + char, False
        elif char == "\\":
            escaped = True
        elif char.isspace():
            words.append(current)
            current = ""
        else:
            current += char
    return [word for word in (*words, current) if word]


def refuse_unknown_wishes(startup: Startup) -> None:
    """Refuse what would make the client misread everything that follows."""
    if startup.options.get("replication", "false").lower() not in ("false", "off", "no", "0"):
        raise WireError("replication connections are not supported", "0A000")
    if not startup.options.get("user"):
        raise ProtocolViolation("no PostgreSQL user name specified in startup packet", "28000")


def negotiation(startup: Startup) -> bytes:
    """What to tell a client that speaks a later protocol; nothing to one that does not."""
    unknown = [name for name in startup.options if name.startswith("_pq_.")]
    return answers.negotiate(unknown) if startup.minor or unknown else b""


class ReportedSettings:
    """The settings that clients are told of, and what they were told last."""

    def __init__(self, user: str, server_version: str) -> None:
        self._told: dict[str, str] = {}
        self._defaults = {
            "server_version": server_version,
            "server_encoding": "UTF8",
            "client_encoding": "UTF8",
            "application_name": "",
            "is_superuser": "on",
            "session_authorization": user,
            "DateStyle": "ISO, MDY",
            "IntervalStyle": "postgres",
            "TimeZone": "UTC",
            "integer_datetimes": "on",
            "standard_conforming_strings": "on",
            "default_transaction_read_only": "off",
            "in_hot_standby": "off",
        }

    def news(self, session: Session) -> bytes:
        """What the client does not know yet."""
        current = self._current(session.settings)
        changed = {name: value for name, value in current.items() if self._told.get(name) != value}
        self._told.update(changed)
        return b"".join(answers.parameter_status(*setting) for setting in changed.items())

    def _current(self, settings: Mapping[str, str]) -> dict[str, str]:
        lowered = {name.lower(): value for name, value in settings.items()}
        current = {
            name: lowered.get(name.lower(), default) for name, default in self._defaults.items()
        }
        if current["client_encoding"].lower().replace("-", "") not in _ENCODINGS:
            current["client_encoding"] = "UTF8"
        return current

"""The options of a PostgreSQL source, by the names that users write.

Unknown options are refused with the nearest known one: a misspelt `slot.name` that is silently
ignored costs a day. The password may stand in an environment variable or a file
(`password.env`, `password.file`); it is read when the options are parsed, travels inside the
value to Spark tasks, and appears in no repr and in no error.
"""

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headwater.errors import ConfigError

SSL_MODES = ("disable", "prefer", "require", "verify-ca", "verify-full")
_SSL_SPELLINGS = {"disabled": "disable", "preferred": "prefer", "required": "require"}
_SECRETS = ("password", "password.env", "password.file")
_MOST_NAME_BYTES = 63
_SLOT = re.compile(r"[a-z0-9_]{1,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresOptions:
    """Where a source is, who we are there, and what is ours."""

    hostname: str
    port: int
    username: str
    password: str | None = field(repr=False)
    database: str
    schema: str
    table: str | None
    slot: str
    publication: str
    publication_create: bool
    ssl_mode: str
    ssl_root_cert: str | None
    unknown_types_as_text: bool
    """Whether a type of an unknown extension arrives as text instead of being refused."""
    unrepresentable_as_null: bool
    """Whether a value that has no place here (an infinite date, NaN in a decimal) becomes null
    instead of an error."""
    connect_timeout_s: int
    server: str | None = None
    """The server that is followed, once it is known: `ServerIdentity` as text."""

    def without_secret(self, text: str) -> str:
        """A text that others wrote, fit to be shown."""
        return text.replace(self.password, "***") if self.password else text


_DEFAULTS: dict[str, str | None] = {
    "hostname": None,
    "port": "5432",
    "username": None,
    "password": "",
    "password.env": "",
    "password.file": "",
    "database.name": None,
    "schema.name": "public",
    "table.name": "",
    "slot.name": "",
    "publication.name": "",
    "publication.create.enable": "true",
    "ssl.mode": "prefer",
    "ssl.root.cert": "",
    "unknown.types": "refuse",
    "unrepresentable.values": "error",
    "connect.timeout": "10",
}
KNOWN = tuple(_DEFAULTS)


def parse_options(
    options: Mapping[str, Any],
    *,
    source: str = "source",
    environment: Mapping[str, str] | None = None,
) -> PostgresOptions:
    """The options of a source; `source` names the slot and the publication where none is given."""
    values = _checked_names(options)
    own_name = "headwater_" + re.sub(r"[^a-z0-9_]", "_", source.lower())
    slot = values["slot.name"] or own_name[:_MOST_NAME_BYTES]
    if not _SLOT.fullmatch(slot):
        raise ConfigError(
            f'option "slot.name" cannot be "{slot}"',
            detail="A slot's name has lower case letters, digits and underscores, 63 at most.",
        )
    return PostgresOptions(
        hostname=values["hostname"],
        port=_number("port", values["port"], 1, 65_535),
        username=values["username"],
        password=_secret(values, os.environ if environment is None else environment),
        database=values["database.name"],
        schema=values["schema.name"],
        table=values["table.name"] or None,
        slot=slot,
        publication=values["publication.name"] or own_name[:_MOST_NAME_BYTES],
        publication_create=_choice(
            "publication.create.enable", values, {"true": True, "false": False}
        ),
        ssl_mode=_ssl_mode(values),
        ssl_root_cert=values["ssl.root.cert"] or None,
        unknown_types_as_text=_choice("unknown.types", values, {"refuse": False, "text": True}),
        unrepresentable_as_null=_choice(
            "unrepresentable.values", values, {"error": False, "null": True}
        ),
        connect_timeout_s=_number("connect.timeout", values["connect.timeout"], 1, 600),
    )


def _checked_names(options: Mapping[str, Any]) -> dict[str, str]:
    for name in options:
        if name not in _DEFAULTS:
            near = difflib.get_close_matches(name, KNOWN, n=1)
            raise ConfigError(
                f'there is no option "{name}" for a PostgreSQL source',
                detail=f"Options: {', '.join(KNOWN)}.",
                hint=f'Did you mean "{near[0]}"?' if near else "",
            )
    values: dict[str, str] = {}
    for name, default in _DEFAULTS.items():
        given = options.get(name)
        value = default if given is None else str(given)
        if value is None or (default is None and not value):
            raise ConfigError(f'option "{name}" is missing')
        values[name] = value
    return values


def _secret(values: Mapping[str, str], environment: Mapping[str, str]) -> str | None:
    given = [name for name in _SECRETS if values[name]]
    if len(given) > 1:
        raise ConfigError(
            f'options "{given[0]}" and "{given[1]}" are both given', hint="Give one of them."
        )
    if values["password.env"]:
        variable = values["password.env"]
        if variable not in environment:
            raise ConfigError(f'option "password.env" names "{variable}", which is not set')
        return environment[variable]
    if values["password.file"]:
        try:
            return Path(values["password.file"]).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            # The error is not chained: a decoding error would carry the file's bytes.
            raise ConfigError(
                'the file of option "password.file" cannot be read',
                detail=str(error.strerror) if isinstance(error, OSError) else "It is not UTF-8.",
            ) from None
    return values["password"] or None


def _ssl_mode(values: Mapping[str, str]) -> str:
    spelled = values["ssl.mode"].lower().replace("_", "-")
    mode = _SSL_SPELLINGS.get(spelled, spelled)
    if mode not in SSL_MODES:
        raise ConfigError(
            f'option "ssl.mode" cannot be "{values["ssl.mode"]}"',
            detail=f"It is one of {', '.join(SSL_MODES)}.",
        )
    return mode


def _number(name: str, text: str, low: int, high: int) -> int:
    if not text.strip().isdecimal() or not low <= int(text) <= high:
        raise ConfigError(
            f'option "{name}" cannot be "{text}"', detail=f"It is between {low} and {high}."
        )
    return int(text)


def _choice(name: str, values: Mapping[str, str], choices: Mapping[str, bool]) -> bool:
    spelled = values[name].lower()
    if spelled not in choices:
        raise ConfigError(
            f'option "{name}" cannot be "{values[name]}"',
            detail=f"It is one of {', '.join(choices)}.",
        )
    return choices[spelled]

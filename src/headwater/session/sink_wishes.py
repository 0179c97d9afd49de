"""What stands in the WITH clause of a sink for us, not for its connector."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from headwater.errors import ConfigError, UserError
from headwater.runtime.sinks.definition import EVOLVES

OWN = (
    "connector", "type", "primary_key", "ignore_delete", "force_append_only", "snapshot",
    "commit_checkpoint_interval", "sink_rate_limit", "backfill_rate_limit", EVOLVES,
    "sink_decouple",
)  # fmt: skip
"""The names of these options."""

_MOST_CHECKPOINTS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What stands in WITH for us, not for the connector."""

    connector: str
    type: str
    key: tuple[str, ...]
    ignore_delete: bool
    snapshot: bool
    checkpoints: int
    rate_limit: int | None
    backfill_limit: int | None
    evolves: bool


def read_wishes(given: Mapping[str, str], session_limit: str) -> Wishes:
    """Read them; raises 22023 where a value makes no sense."""
    connector = given.get("connector", "").lower()
    key = tuple(name.strip() for name in given.get("primary_key", "").split(",") if name.strip())
    if len(set(key)) != len(key):
        raise wrong("a column of primary_key is named twice")
    limit = given.get("sink_rate_limit", session_limit)
    return Wishes(
        connector=connector,
        type=given.get("type", "").lower(),
        key=key,
        ignore_delete=flag(given, "ignore_delete") or flag(given, "force_append_only"),
        snapshot=flag(given, "snapshot", default=True),
        checkpoints=checkpoints_of(given),
        rate_limit=limit_of("sink_rate_limit", limit),
        backfill_limit=limit_of("backfill_rate_limit", given.get("backfill_rate_limit", "default")),
        evolves=flag(given, EVOLVES),
    )


def flag(given: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    """An option that is true or false."""
    value = given.get(name, "true" if default else "false").lower()
    if value not in ("true", "false"):
        raise wrong(f'{name} must be true or false, not "{value}"')
    return value == "true"


def checkpoints_of(given: Mapping[str, str]) -> int:
    """How many checkpoints go into one delivery."""
    name = "commit_checkpoint_interval"
    value = given.get(name, "1")
    if not value.isdigit() or not 1 <= int(value) <= _MOST_CHECKPOINTS:
        raise wrong(f'{name} must be a number from 1 to {_MOST_CHECKPOINTS}, not "{value}"')
    return int(value)


def limit_of(name: str, value: str) -> int | None:
    """Rows a second; None for no limit."""
    if value.lower() == "default":
        return None
    if not re.fullmatch(r"-?\d+", value):
        raise wrong(f'{name} cannot be "{value}"', hint="Give rows per second, or default.")
    return None if int(value) < 0 else int(value)


def wrong(message: str, *, detail: str = "", hint: str = "") -> UserError:
    """A value that makes no sense, 22023."""
    error = ConfigError(message, detail=detail, hint=hint)
    error.sqlstate = "22023"
    return error

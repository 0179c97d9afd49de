"""How much log a source's server may keep for us, and what happens when it is more.

    kept for us              max_wal_retained is set         it is not set
    below 80 %               nothing                         nothing
    80 % to 100 %            an event                        an event
    above, 'warn'            the event again and again       the event again and again
    above, 'drop'            the slot is dropped             (needs max_wal_retained)

A slot that nobody reads fills the disk of the server, which then stops for everybody. Whether
that is worse than reading all tables again is for the user to say; we never drop unasked.
Pausing would be senseless: what is not read is kept.

Where nothing is set the warning is measured against the server's own limit
(`max_slot_wal_keep_size`), and else against 10 GB: a healthy server has about `max_wal_size` of log
anyhow, which is 1 GB unless set, so ten times that is nobody's intention, and still leaves time
on most disks.

Pure: no clock but the one that is handed in, no I/O.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from headwater.errors import ConfigError

MAX_RETAINED = "max_wal_retained"
ON_RETAINED = "on_wal_retained"
OPTIONS = (MAX_RETAINED, ON_RETAINED)
DEFAULT_BYTES = 10 << 30
_NEAR = 0.8
_REPEAT_S = 300.0
_UNITS = {"": 1, "B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?b?)", re.IGNORECASE)


class OnRetained(StrEnum):
    """What happens when the server keeps more for us than it may."""

    WARN = "warn"
    DROP = "drop"


class Verdict(StrEnum):
    """What to do now."""

    FINE = "fine"
    WARN = "warn"
    DROP = "drop"


@dataclass(frozen=True, slots=True, kw_only=True)
class WalBudget:
    """What a user allows."""

    max_bytes: int | None = None
    action: OnRetained = OnRetained.WARN

    def limit(self, allowed_bytes: int | None) -> int:
        """The bytes that count as all; `allowed_bytes` is the server's own limit, if it has one."""
        if self.max_bytes is not None:
            return self.max_bytes
        return DEFAULT_BYTES if allowed_bytes is None else min(DEFAULT_BYTES, allowed_bytes)


def parse_budget(options: Mapping[str, str], *, slots: bool) -> WalBudget:
    """The budget among a source's options; `slots` says whether its server keeps log for us."""
    given = [name for name in OPTIONS if name in options]
    if given and not slots:
        raise ConfigError(
            f'option "{given[0]}" has no meaning here: the server keeps its binlogs for as long as '
            "it is set to, whoever reads them",
            hint="Set binlog_expire_logs_seconds at the server.",
        )
    action = options.get(ON_RETAINED, OnRetained.WARN).lower()
    if action not in tuple(OnRetained):
        raise ConfigError(
            f'option "{ON_RETAINED}" cannot be "{action}"',
            detail="It is one of warn, drop.",
            hint="A pause would not help: the server keeps what is not read."
            if action == "pause"
            else "",
        )
    text = options.get(MAX_RETAINED)
    if text is None and action == OnRetained.DROP:
        raise ConfigError(
            f"{ON_RETAINED} = 'drop' needs {MAX_RETAINED}", hint=f"{MAX_RETAINED} = '50GB'"
        )
    size = None if text is None else parse_bytes(MAX_RETAINED, text)
    return WalBudget(max_bytes=size, action=OnRetained(action))


def parse_bytes(name: str, text: str) -> int:
    """A size as people write it: 10GB, 512 MB, 1073741824; units are powers of 1024."""
    found = _SIZE.fullmatch(text.strip())
    unit = found[2].upper() if found else "?"
    unit = unit if unit in _UNITS else f"{unit}B"
    if found is None or unit not in _UNITS or float(found[1]) <= 0:
        raise ConfigError(
            f'option "{name}" cannot be "{text}"', hint="Give a size, such as '10GB' or '512MB'."
        )
    return int(float(found[1]) * _UNITS[unit])


def spelled(size: int) -> str:
    """A size for people."""
    for unit in ("TB", "GB", "MB", "KB"):
        if size >= _UNITS[unit]:
            return f"{size / _UNITS[unit]:.1f} {unit}"
    return f"{size} bytes"


class BudgetWatch:
    """Says when to speak: once on the way up, again every five minutes while it is too much."""

    def __init__(self) -> None:
        self._told_at: float | None = None
        self._was_over = False

    def judge(
        self, budget: WalBudget, retained: int | None, allowed: int | None, at: float
    ) -> Verdict:
        """What a measurement calls for."""
        limit = budget.limit(allowed)
        if retained is None or retained < _NEAR * limit:
            self._told_at, self._was_over = None, False
            return Verdict.FINE
        over = retained >= limit
        if over and budget.action is OnRetained.DROP:
            return Verdict.DROP
        again = self._told_at is not None and over and at - self._told_at >= _REPEAT_S
        if self._told_at is None or again or (over and not self._was_over):
            self._told_at, self._was_over = at, over
            return Verdict.WARN
        return Verdict.FINE

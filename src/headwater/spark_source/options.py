"""What a user may say about a read: the options of the format.

    option             batch   stream   meaning
    workspace          yes     yes      the workspace's folder
    table              yes     yes      `orders`, or `sales.orders` outside of schema public
    epoch              yes              read as of this epoch instead of the last one
    since                      needed   where the changes begin: see below
    maxRowsPerBatch            yes      most changes in one micro-batch; an epoch stays whole

    since         the stream gives
    snapshot      the rows at its first epoch, as inserts, then the changes after it
    beginning     every change since the table was created
    latest        the changes after its first epoch
    an epoch      the changes after that one

Spark asks for the columns before it says whether it wants rows or a stream, and a stream has
three columns more. So `since` is what makes a read a stream, and cannot be left out of one.

An option that does not exist is refused, because a misspelled `epoch` would otherwise read
another epoch without a word.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from headwater.errors import ConfigError
from headwater.model.epoch import Epoch

_BATCH = frozenset({"workspace", "table", "epoch"})
_STREAM = frozenset({"workspace", "table", "since", "maxrowsperbatch"})
_SHOWN = {"maxrowsperbatch": "maxRowsPerBatch"}


class Since(StrEnum):
    """Where a stream begins, in words."""

    SNAPSHOT = "snapshot"
    BEGINNING = "beginning"
    LATEST = "latest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of one read, checked."""

    workspace: str
    table: str
    epoch: Epoch | None = None
    since: Since | Epoch | None = None
    max_rows: int | None = None
    given: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Read the options of a format, whose names have no case."""
        said = {name.lower(): value for name, value in options.items()}
        _refuse_unknown(said)
        return cls(
            workspace=_needed(said, "workspace"),
            table=_needed(said, "table"),
            epoch=Epoch(_number(said, "epoch")) if "epoch" in said else None,
            since=_since(said),
            max_rows=_number(said, "maxrowsperbatch", low=1) if "maxrowsperbatch" in said else None,
            given=frozenset(said),
        )

    @property
    def begin(self) -> Since | Epoch:
        """Where the stream begins; refuses what only a batch knows."""
        self._require(_STREAM, "spark.readStream", "spark.read")
        if self.since is None:
            raise ConfigError(
                "a stream needs the option since",
                hint='Add .option("since", "snapshot") for the rows and then their changes, '
                "or beginning, latest, or an epoch.",
            )
        return self.since

    def require_batch(self) -> None:
        """Refuse what only a stream knows."""
        self._require(_BATCH, "spark.read", "spark.readStream")

    def _require(self, known: frozenset[str], here: str, there: str) -> None:
        for name in sorted(self.given - known):
            raise ConfigError(
                f"{here} has no option {_SHOWN.get(name, name)}",
                hint=f"It is an option of {there}.",
            )


def _refuse_unknown(said: Mapping[str, str]) -> None:
    known = _BATCH | _STREAM
    for name in said:
        if name == "path":
            raise ConfigError(
                "load() takes no path here",
                hint='Name the folder with .option("workspace", "/path").',
            )
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            spelled = f"Did you mean {_SHOWN.get(near[0], near[0])}?" if near else ""
            names = ", ".join(sorted(_SHOWN.get(each, each) for each in known))
            raise ConfigError(
                f"format headwater has no option {name}", detail=f"Options: {names}.", hint=spelled
            )


def _needed(said: Mapping[str, str], name: str) -> str:
    if said.get(name):
        return said[name]
    raise ConfigError(f"option {name} is missing", hint=f'Add .option("{name}", ...).')


def _number(said: Mapping[str, str], name: str, low: int = 0) -> int:
    text = said[name].strip()
    if text.isascii() and text.isdecimal() and int(text) >= low:
        return int(text)
    raise ConfigError(
        f"option {_SHOWN.get(name, name)} is {text!r}",
        detail=f"It must be a whole number that is not below {low}.",
    )


def _since(said: Mapping[str, str]) -> Since | Epoch | None:
    if "since" not in said:
        return None
    text = said["since"].strip().lower()
    if text in list(Since):
        return Since(text)
    if text.isascii() and text.isdecimal():
        return Epoch(int(text))
    raise ConfigError(f"option since is {text!r}", detail=f"It is {', '.join(Since)}, or an epoch.")

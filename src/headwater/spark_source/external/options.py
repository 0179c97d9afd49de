"""What a user may say about a read of an external table, beside how to reach its database.

    option             batch   stream   meaning
    table.name         needed  needed   the table, as CREATE TABLE ... FROM ... TABLE writes it
    columns            yes     yes      only these, with commas between
    rows_per_split     yes     yes      about how many rows a task reads (500000)
    bytes_per_split    yes     yes      about how many bytes a task reads (64 MiB)
    consistent         yes              true: all rows of one moment, read by one task
    snapshot.name      yes              all rows of a snapshot that somebody holds (PostgreSQL)
    since                      needed   snapshot: rows, then changes; latest: changes from now on
    splits_per_batch           yes      how many splits of the snapshot a micro-batch has (4)
    bytes_per_batch            yes      about how many bytes of the log it has (16 MiB)
    truncate                   yes      what a TRUNCATE upstream does: error (the default), skip

All other options are those of CREATE SOURCE, checked by the database's own module. Spark asks for
the columns before it says whether it wants rows or a stream, and a stream has more of them. So
`since` is what makes a read a stream, and cannot be left out of one.

An option that does not exist is refused, because a misspelled one would otherwise be ignored.
"""

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from headwater.cdc.external_table import SplitOptions
from headwater.errors import ConfigError

_BATCH = frozenset({"consistent", "snapshot.name"})
_STREAM = frozenset({"since", "splits_per_batch", "bytes_per_batch", "truncate"})
_BOTH = frozenset({"table.name", "columns", "rows_per_split", "bytes_per_split"})
_OF_THE_LOG = frozenset({"slot.name", "publication.name", "publication.create.enable", "server.id"})
"""Options of the databases that only a stream uses."""
_LARGEST = 1 << 40


class Since(StrEnum):
    """Where a stream begins."""

    SNAPSHOT = "snapshot"
    LATEST = "latest"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of one read that are ours, checked."""

    table: str
    columns: tuple[str, ...] | None
    splits: SplitOptions
    consistent: bool = False
    snapshot: str | None = None
    since: Since | None = None
    splits_per_batch: int = 4
    bytes_per_batch: int = 16 << 20
    skip_truncate: bool = False
    given: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, said: Mapping[str, str]) -> Self:
        """From names in lower case that `own` has picked."""
        standard = SplitOptions()
        return cls(
            table=_needed(said, "table.name"),
            columns=_columns(said.get("columns")),
            splits=SplitOptions(
                rows_per_split=_number(said, "rows_per_split", standard.rows_per_split),
                bytes_per_split=_number(said, "bytes_per_split", standard.bytes_per_split),
            ),
            consistent=_choice(said, "consistent", ("false", "true")) == "true",
            snapshot=said.get("snapshot.name") or None,
            since=Since(_choice(said, "since", tuple(Since))) if "since" in said else None,
            splits_per_batch=_number(said, "splits_per_batch", 4),
            bytes_per_batch=_number(said, "bytes_per_batch", 16 << 20),
            skip_truncate=_choice(said, "truncate", ("error", "skip")) == "skip",
            given=frozenset(said),
        )

    def require_batch(self, given: Collection[str]) -> None:
        """Refuse what only a stream knows; `given` are the options of the database."""
        for name in sorted((self.given & _STREAM) | (set(given) & _OF_THE_LOG)):
            raise ConfigError(
                f"spark.read has no option {name}", hint="It is an option of spark.readStream."
            )
        if self.consistent and self.snapshot:
            raise ConfigError(
                "options consistent and snapshot.name are both given",
                hint="A snapshot that is held is one moment already. Leave consistent out.",
            )

    @property
    def begin(self) -> Since:
        """Where the stream begins; refuses what only a batch knows."""
        for name in sorted(self.given & _BATCH):
            raise ConfigError(
                f"spark.readStream has no option {name}", hint="It is an option of spark.read."
            )
        if self.since is None:
            raise ConfigError(
                "a stream needs the option since",
                hint='Add .option("since", "snapshot") for the rows and then their changes, '
                "or latest for the changes from now on.",
            )
        return self.since


def divided(
    format_: str, options: Mapping[str, str], of_database: Collection[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Our options and the database's, by their names in lower case; others are refused."""
    said = {name.lower(): value for name, value in options.items()}
    ours = _BATCH | _STREAM | _BOTH
    known = sorted(ours | set(of_database))
    for name in said:
        if name == "path":
            raise ConfigError(
                "load() takes no path here", hint='Name the table with .option("table.name", ...).'
            )
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise ConfigError(
                f"format {format_} has no option {name}",
                detail=f"Options: {', '.join(known)}.",
                hint=f"Did you mean {near[0]}?" if near else "",
            )
    own = {name: value for name, value in said.items() if name in ours}
    return own, {name: value for name, value in said.items() if name not in ours}


def _needed(said: Mapping[str, str], name: str) -> str:
    if said.get(name, "").strip():
        return said[name].strip()
    raise ConfigError(f"option {name} is missing", hint=f'Add .option("{name}", ...).')


def _columns(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(set(names)) != len(names):
        raise ConfigError(
            f"option columns is {text!r}",
            detail="It names each column once, with commas between.",
            hint="A column with a comma in its name can be chosen by .schema(...) instead.",
        )
    return names


def _number(said: Mapping[str, str], name: str, default: int) -> int:
    text = said.get(name, str(default)).strip()
    if text.isascii() and text.isdecimal() and 1 <= int(text) <= _LARGEST:
        return int(text)
    raise ConfigError(
        f"option {name} is {text!r}", detail=f"It is a whole number from 1 to {_LARGEST}."
    )


def _choice(said: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    text = said.get(name, choices[0]).strip().lower()
    if text not in choices:
        raise ConfigError(f"option {name} is {text!r}", detail=f"It is {' or '.join(choices)}.")
    return text

"""Where the files of a log live, as much of a storage as the log needs.

`headwater.state.storage.Storage` satisfies it by shape; instances travel to Spark tasks.
"""

import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from headwater.model.epoch import Epoch
from headwater.model.ids import Term

_NAME = re.compile(r"(?:rows|index)-(\d+)-([0-9a-f]{16})-[0-9a-f]{16}\.(?:v1|v2|json)\.(?:arrow|z)")


class LogStorage(Protocol):
    """Whole immutable files by relative path; what `put` has written survives a crash."""

    @property
    def local_root(self) -> Path | None:
        """The folder itself when files can be opened in place, else None."""
        ...

    def put(self, path: str, data: bytes) -> None:
        """Write a whole file. Replay: the same bytes under the same name again change nothing."""
        ...

    def get(self, path: str) -> bytes:
        """Read a whole file; `FileNotFoundError` if there is none."""
        ...

    def list(self, prefix: str = "") -> Iterator[str]:
        """The paths of all files below a folder, in no particular order."""
        ...

    def delete(self, path: str) -> None:
        """Remove a file; one that is not there is fine. Replay: nothing left to do."""
        ...


@dataclass(frozen=True, slots=True)
class Origin:
    """Which engine wrote a file, and in which epoch; part of its name, so that garbage is known."""

    term: Term
    epoch: Epoch

    def rows_file(self, layout: int) -> str:
        """A new name for rows; names sort by epoch within a term."""
        return f"rows-{self._middle()}.v{layout}.arrow"

    def index_file(self) -> str:
        """A new name for a list of older epochs."""
        return f"index-{self._middle()}.json.z"

    def _middle(self) -> str:
        return f"{self.term:06d}-{self.epoch:016x}-{secrets.token_hex(8)}"


def origin_of(path: str) -> Origin | None:
    """Who wrote this file; None when it is not one of a log."""
    match = _NAME.fullmatch(path)
    return Origin(Term(int(match[1])), Epoch(int(match[2], 16))) if match else None

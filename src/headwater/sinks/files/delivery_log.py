"""Which deliveries a folder of files has: a log of small files whose names are taken once.

    _headwater/IDENT/log/00000000000000000007.json
    {"format": 1, "term": 3, "epoch": 99, "moves": {staged path: final path, ...}}

An entry is written by `put_if_absent` under the number after the last one, so it is written on
top of the log that its writer has read, or not at all. That makes the checks of epoch and term
and the commit one step, on a local disk and on S3 alike. Every entry holds the newest epoch and
term, so only the last one has to be read; the names of all files are in all of them together.
"""

import json
import re
from dataclasses import asdict, dataclass, field

from headwater.errors import DamagedState
from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.ids import Term
from headwater.state.storage import Storage

_FORMAT = 1
_NO_TERM = Term(0)
_NAME = re.compile(r"(\d{20})\.json$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One step of a sink at its target."""

    term: Term = _NO_TERM
    epoch: Epoch = NO_EPOCH
    moves: dict[str, str] = field(default_factory=dict)
    """Files of this step, from where they were staged to where readers find them."""


class DeliveryLog:
    """The log of one sink."""

    def __init__(self, storage: Storage, folder: str) -> None:
        self._storage = storage
        self._folder = folder

    def last(self, after: int = -1) -> tuple[int, Entry]:
        """The last entry and its number; -1 and an empty one before the first.

        `after` is a number that was seen before; the search begins there.
        """
        number = after if after >= 0 else self._listed()
        if number < 0:
            return -1, Entry()
        entry = self._read(number)
        while True:
            try:
                entry, number = self._read(number + 1), number + 1
            except FileNotFoundError:
                return number, entry

    def append(self, entry: Entry, after: int) -> bool:
        """Write the entry after the one with that number; False where somebody else has."""
        content = json.dumps({"format": _FORMAT, **asdict(entry)}).encode()
        return self._storage.put_if_absent(self._path(after + 1), content)

    def _listed(self) -> int:
        found = (_NAME.search(path) for path in self._storage.list(self._folder))
        return max((int(match[1]) for match in found if match), default=-1)

    def _read(self, number: int) -> Entry:
        path = self._path(number)
        content = self._storage.get(path)
        try:
            fields = json.loads(content)
            if fields.pop("format") != _FORMAT:
                raise ValueError("written by another version of Headwater")
            return Entry(**fields)
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedState(
                "the log of a file sink cannot be read",
                detail=f"{self._storage.url}/{path}: {error}",
                hint="Restore the file; without it nobody knows what was delivered.",
            ) from error

    def _path(self, number: int) -> str:
        return f"{self._folder}/{number:020d}.json"

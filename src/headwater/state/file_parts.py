"""Parts of a table's files, for whoever reads a table bit by bit.

Files never change, so a part of one is named by two places in it, dead rows counted.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from headwater.errors import BrokenInvariant
from headwater.state.manifest import LiveFile, TableView


@dataclass(frozen=True, slots=True)
class FilePart:
    """The rows of a file from one place up to another."""

    path: str
    start: int
    stop: int


def only(view: TableView, parts: Iterable[FilePart]) -> TableView:
    """A table at an epoch as if it had these rows alone; no file may be named twice."""
    by_path = {live.file.path: live for live in view.files}
    files: list[LiveFile] = []
    for part in parts:
        live = by_path.pop(part.path, None)
        if live is None:
            raise BrokenInvariant(f"{part.path} is no file of epoch {view.epoch}, or named twice")
        all_ = part.start == 0 and part.stop == live.file.rows
        files.append(live if all_ else replace(live, only=(part.start, part.stop)))
    return replace(view, files=tuple(files))

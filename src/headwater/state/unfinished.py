"""Files of a local cache whose writer was killed before they got their name."""

import contextlib
import time
from pathlib import Path

UNFINISHED = ".tmp"
_LONGEST_WRITE_S = 3600.0


def remove_unfinished(folder: Path) -> None:
    """Remove what nobody can be writing any more. Replay: nothing is left to remove."""
    for left in folder.glob(f"*{UNFINISHED}"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _LONGEST_WRITE_S:
                left.unlink()

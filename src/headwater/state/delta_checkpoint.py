"""Keep the Delta log short: checkpoints, and the removal of versions nobody can ask for.

Readers of a Delta table start from the newest checkpoint and replay the versions after it.
delta-rs writes the checkpoints. A version's commit file goes when it is older than a checkpoint
that itself is not newer than the oldest epoch that can be read.
"""

import os
import re

from deltalake import DeltaTable

from headwater.crash_points import crash_point
from headwater.errors import StorageUnavailable
from headwater.state.file_name import LOG_FOLDER
from headwater.state.storage import Storage

_CHECKPOINT = re.compile(rf"{LOG_FOLDER}/(\d{{20}})\.checkpoint.*\.parquet$")
_COMMIT = re.compile(rf"{LOG_FOLDER}/(\d{{20}})\.json$")


def checkpoint(storage: Storage) -> None:
    """Write a checkpoint of the newest version. Replay: writes the same checkpoint again."""
    options = {}
    if os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://"):
        options["AWS_ALLOW_HTTP"] = "true"
    try:
        DeltaTable(storage.url, storage_options=options or None).create_checkpoint()
    except Exception as error:  # delta-rs raises its own errors and OSError alike
        raise StorageUnavailable(
            "a Delta checkpoint cannot be written",
            detail=f"{storage.url}: {error}",
            hint="It is tried again later; the table itself is complete without it.",
        ) from error
    crash_point("checkpoint.after_delta_checkpoint")


def trim(storage: Storage, oldest: int) -> int:
    """Delete commit files that no version from `oldest` on needs; returns how many.

    Replay: what is gone is gone.
    """
    paths = list(storage.list(LOG_FOLDER))
    checkpoints = sorted(int(m[1]) for path in paths if (m := _CHECKPOINT.search(path)))
    usable = [version for version in checkpoints if version <= oldest]
    if not usable:
        return 0
    removed = 0
    for path in paths:
        found = _COMMIT.search(path) or _CHECKPOINT.search(path)
        if found and int(found[1]) < usable[-1]:
            storage.delete(path)
            removed += 1
    return removed

"""Files at a target: where they are, how they are reached, and how a part becomes durable.

Sinks into Delta, Iceberg and plain files share the options of S3 and the way in which a Spark
task writes: batch by batch, with memory bounded by one row group, into a file that no reader
looks for. On a local disk the file is written in place and forced to disk; for an object store
it is written to the local temporary folder and moved in when it is whole.
"""

import contextlib
import os
import re
import secrets
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from headwater.errors import SchemaError, SinkUnavailable, StorageUnavailable
from headwater.model.ids import Term
from headwater.sinks.options import Option, Options
from headwater.sinks.sink import Delivery
from headwater.state.storage import Storage, open_storage

S3_OPTIONS = (
    Option(
        "s3.access.key",
        "The access key; AWS_ACCESS_KEY_ID where it is not given.",
        default="",
        secret=True,
        also=("s3.credentials.access",),
    ),
    Option(
        "s3.secret.key",
        "The secret key; AWS_SECRET_ACCESS_KEY where it is not given.",
        default="",
        secret=True,
        also=("s3.credentials.secret",),
    ),
    Option(
        "s3.endpoint",
        "The address of a store that is not Amazon's, as http://host:port.",
        default="",
        also=("s3.endpoint_url",),
    ),
    Option("s3.region", "The region of the bucket.", default="", also=("s3.region_name",)),
)
"""What a target on S3 needs; every one may also come from the usual AWS_* variable."""

_GROUP_ROWS = 1 << 17
_GROUP_BYTES = 64 << 20
_KEY_ID = re.compile(r"AKIA[0-9A-Z]{12,}")


def open_target(location: str, options: Options) -> Storage:
    """The storage at a location; a local folder is made if it is not there."""
    return open_storage(location, credentials=s3_settings(options) or None)


def s3_settings(options: Options) -> dict[str, str]:
    """The options of S3 as obstore names them; what the user has left out is not among them."""
    named = {
        "access_key_id": options["s3.access.key"],
        "secret_access_key": options["s3.secret.key"],
        "endpoint": options["s3.endpoint"],
        "region": options["s3.region"],
    }
    return {name: value for name, value in named.items() if value}


def is_insecure(options: Options) -> bool:
    """Whether the store is reached without encryption, as one on the own machine is."""
    endpoint = options["s3.endpoint"] or os.environ.get("AWS_ENDPOINT_URL", "")
    return endpoint.startswith("http://")


def unavailable(sink: str, options: Options, error: BaseException) -> SinkUnavailable:
    """What went wrong at a target, in words that show no secret."""
    told = error.detail or error.message if isinstance(error, StorageUnavailable) else str(error)
    shown = _KEY_ID.sub("***", options.without_secrets(f"{type(error).__name__}: {told}"))
    return SinkUnavailable(
        f'the target of sink "{sink}" cannot be used',
        detail=shown[:500],
        hint="Check that it can be reached, its credentials, and that it is neither full nor "
        "read-only. The delivery is tried again by itself.",
    )


@contextlib.contextmanager
def storage_errors(sink: str, options: Options) -> Iterator[None]:
    """Let errors of files be errors of this sink's target."""
    try:
        yield
    except (StorageUnavailable, OSError) as error:
        raise unavailable(sink, options, error) from error


@contextlib.contextmanager
def part_file(storage: Storage, path: str) -> Iterator[BinaryIO]:
    """A file to write; it is durable when the block ends, and gone when the block fails.

    Replay: the file is written from its beginning.
    """
    target, temporary = _place(storage, path)
    try:
        with target.open("wb") as file:
            yield file
        if temporary:
            storage.put_file(path, target)
        else:
            force_to_disk(target)
    except BaseException:
        target.unlink(missing_ok=True)
        raise


def grouped(rows: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """Batches joined until they make a decent row group; columns as the schema has them."""
    held: list[pa.RecordBatch] = []
    count = size = 0
    for batch in rows:
        if batch.num_rows == 0:
            continue
        held.append(batch.select(schema.names))
        count += batch.num_rows
        size += batch.nbytes
        if count >= _GROUP_ROWS or size >= _GROUP_BYTES:
            yield _fitted(held, schema)
            held, count, size = [], 0, 0
    if held:
        yield _fitted(held, schema)


def _fitted(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    try:
        return pa.Table.from_batches(batches).cast(schema)
    except ValueError as error:  # also Arrow's own; both name the column
        raise SchemaError("a value does not fit its column at the target", detail=str(error)) from (
            error
        )


def part_name(delivery: Delivery, label: str, ending: str) -> str:
    """A name for a file of a delivery that nobody else takes; it begins with the term."""
    return f"{delivery.term}-{label}-{secrets.token_hex(8)}.{ending}"


def remove_parts(storage: Storage, folder: str, term: Term) -> None:
    """Remove what engines up to a term have prepared in a folder; a newer one's stays.

    Replay: nothing left to do.
    """
    for path in list(storage.list(folder)):
        lead = path.rsplit("/", 1)[-1].partition("-")[0]
        if lead.isdigit() and int(lead) <= term:
            storage.delete(path)
    if storage.local_root is not None:
        _remove_empty(storage.local_root / folder)


def remove_below(storage: Storage, folder: str) -> None:
    """Remove all files of a folder. Replay: nothing left to do."""
    for path in list(storage.list(folder)):
        storage.delete(path)
    if storage.local_root is not None:
        _remove_empty(storage.local_root / folder)


def force_to_disk(path: Path) -> None:
    """Let a file and its name survive a crash of the machine; one that is gone is fine."""
    for place in (path, path.parent):
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(place, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _place(storage: Storage, path: str) -> tuple[Path, bool]:
    if storage.local_root is not None:
        target = storage.local_root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        return target, False
    descriptor, name = tempfile.mkstemp(prefix="headwater-part-")
    os.close(descriptor)
    return Path(name), True


def _remove_empty(folder: Path) -> None:
    """Remove a folder and those inside it; one that got a file in the meantime stays."""
    for inside, _, _ in os.walk(folder, topdown=False):
        with contextlib.suppress(OSError):
            Path(inside).rmdir()

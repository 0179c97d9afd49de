"""Receipts: what a slice of a new view has brought, said by the task that read it.

A view is filled by Spark jobs of many slices each. A job says what its tasks have done when all of
them are done, and an engine that dies before has nothing. So each task leaves a receipt in storage
once its files are there. The engine looks for them while the job runs, and an engine that comes
after one that was killed finds what that one had got, though no epoch has it.

    a slice that brings     its receipt has
    rows                    the files that they are in
    groups                  their states, which are few
    neither                 why it has to be read in another way

Promises
    After      A receipt is written when all that it names is durable.
    The same   Its key says which rows of which snapshot went through which query. Whoever wants
               just that can take it, whoever wrote it; tasks that ran twice leave two of them.
    Kept       Files that a receipt names are not garbage while their table is being filled
               (`collect.py`). Until an epoch has them, nobody sees them.
"""

import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass

import pyarrow as pa

from headwater.errors import DamagedState
from headwater.model.table_commit import DataFile
from headwater.state.file_name import RECEIPT_FOLDER, Origin, is_receipt
from headwater.state.storage import Storage

_VERSION = "1"
_ABOUT = b"headwater"


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What became of one slice."""

    key: str
    files: tuple[DataFile, ...] = ()
    groups: pa.Table | None = None
    refused: str = ""
    """Why there is nothing: the slice has to be read in another way."""


def leave(storage: Storage, origin: Origin, receipt: Receipt) -> None:
    """Write a receipt for files that are there. Replay: writes a new name, for the same slice."""
    storage.put(origin.receipt_file(), _encoded(receipt))


def receipts(storage: Storage, seen: Collection[str] = ()) -> Iterator[tuple[str, Receipt]]:
    """The receipts that are there, with their paths, without those that were `seen` before."""
    for path in sorted(storage.list(RECEIPT_FOLDER)):
        if is_receipt(path) and path.endswith(".arrow") and path not in seen:
            try:
                yield path, decoded(storage.get(path))
            except (FileNotFoundError, DamagedState):
                # Without its receipt a slice is read again: that is all that is lost.
                continue


def found_before(storage: Storage) -> dict[str, Receipt]:
    """What was left by those who are gone, as far as its files are still there, by key."""
    there = {path for path in storage.list() if not is_receipt(path)}
    return {
        receipt.key: receipt
        for _, receipt in receipts(storage)
        if not receipt.refused and all(file.path in there for file in receipt.files)
    }


def receipted_paths(storage: Storage, paths: Iterable[str]) -> set[str]:
    """Of these paths the receipts, and all that they name."""
    found: set[str] = set()
    for path in paths:
        if is_receipt(path):
            found.add(path)
            try:
                found |= {file.path for file in decoded(storage.get(path)).files}
            except (FileNotFoundError, DamagedState):
                continue
    return found


def _encoded(receipt: Receipt) -> bytes:
    about = {
        "version": _VERSION,
        "key": receipt.key,
        "files": [asdict(file) for file in receipt.files],
        "refused": receipt.refused,
        "groups": receipt.groups is not None,
    }
    rows = receipt.groups if receipt.groups is not None else pa.table({})
    marked = rows.replace_schema_metadata({_ABOUT: json.dumps(about).encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, marked.schema) as writer:
        writer.write_table(marked)
    return bytes(sink.getvalue())


def decoded(content: bytes) -> Receipt:
    """A receipt, back."""
    try:
        rows = pa.ipc.open_stream(content).read_all()
        about = json.loads((rows.schema.metadata or {})[_ABOUT])
        if about["version"] != _VERSION:
            raise DamagedState(
                f"the receipt of a slice has version {about['version']}, which is not known here",
                hint="It was written by a newer version. Start that version again.",
            )
        return Receipt(
            key=about["key"],
            files=tuple(DataFile(**file) for file in about["files"]),
            groups=rows.replace_schema_metadata(None) if about["groups"] else None,
            refused=about["refused"],
        )
    except (pa.ArrowInvalid, KeyError, ValueError, TypeError) as error:
        raise DamagedState("the receipt of a slice is corrupt", detail=str(error)) from error

"""Publish table commits as versions of a Delta table.

A version is rendered from the ledger's commit and nothing else, and is written under a name
that can be taken once. So publishing can be repeated at any time by anyone: the first one
wins, and every later one finds the same epoch there.

Other tools see a plain Delta table with deletion vectors and a change data feed. They never
see an epoch that the ledger does not have, because nothing is published before it is there.
"""

import json
import re
import uuid
from collections.abc import Iterator
from typing import Any

from headwater.errors import DamagedState
from headwater.model.epoch import Epoch, epoch_millis
from headwater.model.reserved import APP_ID
from headwater.model.schema import Schema
from headwater.model.table_commit import DataFile, DeletionVector, TableCommit
from headwater.model.types import DataType, Kind
from headwater.state.deletion_vector import descriptor
from headwater.state.file_name import LOG_FOLDER
from headwater.state.manifest import TableView
from headwater.state.storage import Storage

Action = dict[str, Any]

_VERSION = re.compile(rf"{LOG_FOLDER}/\d{{20}}\.json$")


def version_path(version: int) -> str:
    """The name of a version's commit file."""
    return f"{LOG_FOLDER}/{version:020d}.json"


def render(epoch: Epoch, commit: TableCommit, before: TableView, name: str) -> bytes:
    """The commit file of one version; `before` is the table as the epoch found it."""
    actions: list[Action] = [
        {
            "commitInfo": {
                "timestamp": epoch_millis(epoch),
                "operation": "EPOCH",
                "operationParameters": {"epoch": str(epoch)},
                "engineInfo": "Headwater",
            }
        },
        {"txn": {"appId": APP_ID, "version": int(epoch), "lastUpdated": epoch_millis(epoch)}},
    ]
    if commit.version == 0 or commit.schema is not None:
        schema = commit.schema or before.schema
        actions += [_protocol(schema), _metadata(schema, commit, name)]
    actions.extend(_file_actions(epoch, commit, before))
    return b"".join(
        json.dumps(action, separators=(",", ":")).encode() + b"\n" for action in actions
    )


def publish(storage: Storage, epoch: Epoch, version: int, content: bytes) -> None:
    """Write a version. Replay: a version that is there already is compared and left alone."""
    if not storage.put_if_absent(version_path(version), content):
        verify(storage, epoch, version)


def verify(storage: Storage, epoch: Epoch, version: int) -> None:
    """Refuse a published version that is not of this epoch."""
    if (found := _published_epoch(storage, version)) != epoch:
        raise DamagedState(
            f"version {version} of the Delta table is not what the ledger says",
            detail=f"{storage.url}: expected epoch {epoch}, found {found or 'a foreign commit'}.",
            hint="Another writer committed to this table. Headwater must be its only writer.",
        )


def newest_version(storage: Storage) -> int:
    """The number of the newest version, -1 when there is none."""
    versions = [int(path[-25:-5]) for path in storage.list(LOG_FOLDER) if _VERSION.search(path)]
    return max(versions, default=-1)


def is_ours(storage: Storage, path: str) -> bool:
    """Whether a file is a commit that Headwater wrote."""
    return _VERSION.search(path) is not None and _epoch_in(storage, path) is not None


def _published_epoch(storage: Storage, version: int) -> int | None:
    return _epoch_in(storage, version_path(version))


def _epoch_in(storage: Storage, path: str) -> int | None:
    try:
        for line in storage.get(path).splitlines():
            transaction = json.loads(line).get("txn")
            if transaction and transaction["appId"] == APP_ID:
                return int(transaction["version"])
    except (ValueError, AttributeError, KeyError, TypeError):
        return None
    return None


def _file_actions(epoch: Epoch, commit: TableCommit, before: TableView) -> Iterator[Action]:
    known = {live.file.path: live for live in before.files}
    dead = dict(commit.dead)
    rewritten = set(commit.rewritten)
    millis = epoch_millis(epoch)
    for path in commit.folded:
        live = known[path]
        yield _remove(live.file, live.dead, millis, data_change=False)
    for path, vector in dead.items():
        if path in known:
            live = known[path]
            yield _remove(live.file, live.dead, millis, data_change=True)
            yield _add(live.file, vector, millis, data_change=True)
    for file in commit.added:
        yield _add(file, dead.get(file.path), millis, data_change=file.path not in rewritten)
    for change in commit.changes:
        yield {
            "cdc": {
                "path": change.path,
                "partitionValues": {},
                "size": change.bytes,
                "dataChange": False,
            }
        }


def _add(file: DataFile, dead: DeletionVector | None, millis: int, *, data_change: bool) -> Action:
    action: Action = {
        "path": file.path,
        "partitionValues": {},
        "size": file.bytes,
        "modificationTime": millis,
        "dataChange": data_change,
        "stats": json.dumps({"numRecords": file.rows}),
    }
    if dead is not None:
        action["deletionVector"] = descriptor(dead)
    return {"add": action}


def _remove(
    file: DataFile, dead: DeletionVector | None, millis: int, *, data_change: bool
) -> Action:
    action: Action = {
        "path": file.path,
        "deletionTimestamp": millis,
        "dataChange": data_change,
        "extendedFileMetadata": True,
        "partitionValues": {},
        "size": file.bytes,
    }
    if dead is not None:
        action["deletionVector"] = descriptor(dead)
    return {"remove": action}


def _protocol(schema: Schema) -> Action:
    features = ["deletionVectors", "timestampNtz"]
    if not any(_has_ntz(column.type) for column in schema.columns):
        features = ["deletionVectors"]
    return {
        "protocol": {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": features,
            "writerFeatures": [*features, "changeDataFeed"],
        }
    }


def _metadata(schema: Schema, commit: TableCommit, name: str) -> Action:
    return {
        "metaData": {
            # The id is derived, so that a version rendered twice is the same to the byte.
            "id": str(uuid.uuid5(uuid.NAMESPACE_URL, f"headwater:{name}:{commit.table}")),
            "name": name,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": schema.delta,
            "partitionColumns": [],
            "configuration": {
                "delta.enableDeletionVectors": "true",
                "delta.enableChangeDataFeed": "true",
            },
        }
    }


def _has_ntz(type_: DataType) -> bool:
    if type_.kind is Kind.TIMESTAMP:
        return True
    inner = [type_.element] if type_.element else [field for _, field in type_.fields]
    return any(_has_ntz(element) for element in inner)

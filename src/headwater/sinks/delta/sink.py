"""A sink into a Delta table: every delivery is one version of it.

    kind          prepare writes                       the commit
    append-only   data files into `data/COMMIT_ID/`    adds them, as they are
    upsert        staged rows into `_headwater/...`    one MERGE; files it touches are rewritten

Promises
    Once      A version carries the epoch as `txn` of the sink. It is written on top of the
              version that was looked at, or not at all: whoever comes second looks again.
    Fenced    The term is a `txn` of its own (`IDENT_term`), raised by `begin` in a version
              without rows, and looked at in the same way.
    Whole     Delta readers see versions. Files that no version names are seen by nobody.
    Shared    Others may write to the same table; a conflict with them is tried again.

A table with partitions, constraints, mapped columns or columns that take no nulls gets its
appended rows through delta-rs's own writer, which knows these rules, in the commit.
"""

import contextlib
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import (
    CommitFailedError,
    DeltaError,
    DeltaProtocolError,
    SchemaMismatchError,
    TableNotFoundError,
)
from deltalake.transaction import AddAction

from headwater.errors import (
    ConfigError,
    Fenced,
    HeadwaterError,
    RelationError,
    SchemaError,
    SinkUnavailable,
    StagedRowsGone,
    StorageUnavailable,
    UserError,
)
from headwater.model.epoch import NO_EPOCH, Epoch, epoch_millis
from headwater.model.ids import Term
from headwater.sinks.delta.columns import add_columns, check_columns, takes_files
from headwater.sinks.delta.merge import merge, staged_schema
from headwater.sinks.delta.statistics import statistics
from headwater.sinks.options import Option, checked_options
from headwater.sinks.parquet_part import write_parquet
from headwater.sinks.progress import check_given
from headwater.sinks.sink import Batches, Delivery, Receipt, SinkKind, SinkSpec
from headwater.sinks.target_files import (
    S3_OPTIONS,
    force_to_disk,
    is_insecure,
    open_target,
    part_name,
    remove_below,
    remove_parts,
    s3_settings,
    unavailable,
)
from headwater.state.delta_log import newest_version, version_path
from headwater.state.storage import Storage

OPTIONS: tuple[Option, ...] = (
    Option("location", "The table's folder: a path, or s3://bucket/prefix."),
    *S3_OPTIONS,
    Option(
        "create_table_if_not_exists",
        "Whether the table is created where there is none.",
        default="true",
    ),
    Option(
        "commit_retry_num",
        "How often a commit that met another writer's is tried again at once.",
        default="8",
    ),
)

_Done = TypeVar("_Done")

_STAGING = "_headwater"
_DATA = "data"
_FIRST_WAIT_S = 0.02
_LONGEST_WAIT_S = 2.0
_VERSIONS_SEARCHED = 50
_RULE_BROKEN = "failed validation check"


def delta_sink(spec: SinkSpec) -> "DeltaSink":
    """The sink of `connector = 'deltalake'`."""
    return DeltaSink(spec)


class DeltaSink:
    """One Delta table, as the target of one sink."""

    def __init__(self, spec: SinkSpec) -> None:
        self._spec = spec
        self._options = checked_options("deltalake", spec.options, OPTIONS)
        self._creates = self._options.flag("create_table_if_not_exists")
        self._retries = self._options.integer("commit_retry_num", 0, 1000)
        if spec.kind is SinkKind.RETRACT:
            raise ConfigError(
                f'sink "{spec.name}" into Delta cannot be of type retract',
                hint="Use type = 'upsert' or type = 'append-only'.",
            )
        if spec.kind is SinkKind.UPSERT and not spec.key:
            raise ConfigError(
                f'upsert sink "{spec.name}" needs a key', hint="Name it with primary_key."
            )

    def check(self) -> None:
        """Check the table's columns; create it if it is missing and may be created."""
        with self._errors():
            # A folder that cannot be made is a matter of rights, not of a missing table.
            storage = self._storage if self._creates else None
            if storage and not DeltaTable.is_deltatable(self._location, self._access):
                # The first one wins, and the check below is made of what it has created.
                DeltaTable.create(
                    self._location,
                    self._columns,
                    mode="ignore",
                    name=self._spec.name,
                    storage_options=self._access,
                )
            table = self._table()
            if self._spec.evolves:
                add_columns(table, self._spec.columns)
            check_columns(table, self._spec.columns, self._spec.name)

    def begin(self, term: Term) -> Epoch:
        """Raise the table's term of this sink, and say which epoch it has."""
        return self._on_newest_version(lambda table: self._begin_on(table, term))

    def prepare(self, delivery: Delivery, part: int, rows: Batches) -> Receipt:
        """Write one part as a Parquet file. Replay: another file; the first is removed later."""
        with self._errors():
            if self._spec.kind is SinkKind.APPEND_ONLY:
                return self._prepare_data(delivery, part, rows)
            return self._prepare_staged(delivery, part, rows)

    def commit(self, delivery: Delivery, receipts: Sequence[Receipt]) -> None:
        """Write one version. Replay: the table's `txn` of this sink says that it is there."""
        parts = [json.loads(receipt) for receipt in receipts if receipt]
        committed = self._on_newest_version(lambda table: self._commit_on(table, delivery, parts))
        with self._errors():
            self._clear(delivery, parts, kept=committed)

    def abort(self, delivery: Delivery, receipts: Sequence[Receipt]) -> None:
        """Remove a delivery's files, also without receipts; those of a newer term stay."""
        del receipts
        with self._errors():
            for folder in (_DATA, f"{_STAGING}/{self._spec.ident}"):
                remove_parts(self._storage, f"{folder}/{delivery.commit_id}", delivery.term)

    def drop(self) -> None:
        """Remove what is staged. The `txn` actions stay: Delta has no way to take one back."""
        with self._errors():
            remove_below(self._storage, f"{_STAGING}/{self._spec.ident}")

    @property
    def _location(self) -> str:
        return self._options["location"]

    @property
    def _columns(self) -> pa.Schema:
        return pa.schema([pa.field(c.name, c.type.arrow) for c in self._spec.columns])

    @property
    def _storage(self) -> Storage:
        return open_target(self._location, self._options)

    @property
    def _access(self) -> dict[str, str] | None:
        """The options of S3 as delta-rs names them."""
        settings = {
            f"AWS_{'ENDPOINT_URL' if name == 'endpoint' else name.upper()}": value
            for name, value in s3_settings(self._options).items()
        }
        if is_insecure(self._options):
            settings["AWS_ALLOW_HTTP"] = "true"
        return settings or None

    def _table(self) -> DeltaTable:
        return DeltaTable(self._location, storage_options=self._access)

    def _prepare_data(self, delivery: Delivery, part: int, rows: Batches) -> Receipt:
        path = f"{_DATA}/{delivery.commit_id}/{part_name(delivery, f'{part:05d}', 'parquet')}"
        written = write_parquet(self._storage, path, self._columns, rows)
        if written is None:
            return b""
        return _receipt(
            path=path, rows=written.rows, size=written.bytes, stats=statistics(written.footer)
        )

    def _prepare_staged(self, delivery: Delivery, part: int, rows: Batches) -> Receipt:
        folder = f"{_STAGING}/{self._spec.ident}/{delivery.commit_id}"
        path = f"{folder}/{part_name(delivery, f'{part:05d}', 'parquet')}"
        schema, null_keys = staged_schema(self._spec.columns), False

        def renamed() -> Iterator[pa.RecordBatch]:
            nonlocal null_keys
            for batch in rows:
                keys = [batch.column(name).null_count for name in self._spec.key]
                null_keys = null_keys or any(keys)
                yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)

        written = write_parquet(self._storage, path, schema, renamed())
        if written is None:
            return b""
        return _receipt(path=path, rows=written.rows, size=written.bytes, null_keys=null_keys)

    def _on_newest_version(self, act: Callable[[DeltaTable], _Done]) -> _Done:
        """Act on the newest version, and look again when somebody else has made a newer one."""
        wait = _FIRST_WAIT_S
        for _ in range(self._retries + 1):
            with self._errors():
                try:
                    return act(self._table())
                except CommitFailedError:
                    time.sleep(wait * random.uniform(0.5, 1.5))
                    wait = min(wait * 2, _LONGEST_WAIT_S)
        raise SinkUnavailable(
            f'sink "{self._spec.name}" cannot commit: others commit to its table all the time',
            detail=f"{self._location}: {self._retries + 1} times another version came first.",
            hint="It is tried again by itself. Raise commit_retry_num if this is normal here.",
        )

    def _begin_on(self, table: DeltaTable, term: Term) -> Epoch:
        known = self._refuse_older(table, term)
        if known < term:
            self._commit_files(table, [], self._transactions(None, term))
            self._force_to_disk()
        return Epoch(table.transaction_version(self._spec.ident) or NO_EPOCH)

    def _commit_on(self, table: DeltaTable, delivery: Delivery, parts: list[Any]) -> bool:
        """Commit on top of this version; False where it, or one before it, has the delivery."""
        self._refuse_older(table, delivery.term)
        known = Epoch(table.transaction_version(self._spec.ident) or NO_EPOCH)
        if known >= delivery.epoch:
            return False
        check_given(delivery, known)
        self._refuse_missing(delivery, parts)
        check_columns(table, self._spec.columns, self._spec.name)
        properties = self._transactions(delivery.epoch, delivery.term)
        if parts and self._spec.kind is SinkKind.UPSERT:
            version = table.version()
            if not self._merge(table, parts, properties):
                # delta-rs commits no merge without effect, but the epoch must be there.
                table = DeltaTable(self._location, version, storage_options=self._access)
                self._commit_files(table, [], properties)
        elif parts and not takes_files(table):
            with self._read(parts, self._columns) as rows:
                write_deltalake(table, rows, mode="append", commit_properties=properties)
        else:
            millis = epoch_millis(delivery.epoch)
            added = [AddAction(p["path"], p["size"], {}, millis, True, p["stats"]) for p in parts]
            self._commit_files(table, added, properties)
        self._force_to_disk()
        return True

    def _force_to_disk(self) -> None:
        """Make a version on a local disk durable, which delta-rs leaves to the system."""
        storage = self._storage
        if storage.local_root is None:
            return
        path = version_path(newest_version(storage))
        for line in storage.get(path).splitlines():
            added = json.loads(line).get("add")
            if added is not None:
                force_to_disk(storage.local_root / unquote(added["path"]))
        force_to_disk(storage.local_root / path)

    def _merge(self, table: DeltaTable, parts: list[Any], properties: CommitProperties) -> bool:
        with self._read(parts, staged_schema(self._spec.columns)) as rows:
            return merge(
                table,
                rows,
                self._spec.columns,
                self._spec.key,
                rows=sum(part["rows"] for part in parts),
                null_keys=any(part["null_keys"] for part in parts),
                commit=properties,
            )

    @contextlib.contextmanager
    def _read(self, parts: list[Any], schema: pa.Schema) -> Iterator[pa.RecordBatchReader]:
        """The rows of all parts; those of an object store come to the local disk for it."""
        storage = self._storage
        with tempfile.TemporaryDirectory(prefix="headwater-merge-") as folder:
            paths = []
            for number, part in enumerate(parts):
                if storage.local_root is not None:
                    paths.append(str(storage.local_root / part["path"]))
                else:
                    paths.append(str(Path(folder) / f"{number}.parquet"))
                    storage.get_file(part["path"], Path(paths[-1]))
            yield ds.dataset(paths, schema=schema, format="parquet").scanner().to_reader()

    def _commit_files(
        self, table: DeltaTable, added: Sequence[AddAction], properties: CommitProperties
    ) -> None:
        table.create_write_transaction(
            [*added],
            "append",
            table.schema(),
            partition_by=table.metadata().partition_columns,
            commit_properties=properties,
        )

    def _transactions(self, epoch: Epoch | None, term: Term) -> CommitProperties:
        marks = [Transaction(self._term_id, term)]
        if epoch is not None:
            marks.append(Transaction(self._spec.ident, epoch))
        # No retries: delta-rs would put the same commit on top of a version nobody has looked at.
        return CommitProperties(max_commit_retries=0, app_transactions=marks)

    @property
    def _term_id(self) -> str:
        return f"{self._spec.ident}_term"

    def _refuse_older(self, table: DeltaTable, term: Term) -> int:
        known = table.transaction_version(self._term_id) or 0
        if known > term:
            raise Fenced(
                f'another engine delivers to sink "{self._spec.name}" now',
                detail=f"The table has term {known}, this engine has {term}.",
            )
        return int(known)

    def _refuse_missing(self, delivery: Delivery, parts: list[Any]) -> None:
        """A table must never name a file that is not there."""
        if not parts:
            return
        folders = (_DATA, f"{_STAGING}/{self._spec.ident}")
        there = {p for each in folders for p in self._storage.list(f"{each}/{delivery.commit_id}")}
        gone = [part["path"] for part in parts if part["path"] not in there]
        if gone:
            raise StagedRowsGone(
                f'files that were prepared for sink "{self._spec.name}" are gone',
                detail=f"{self._location}: {gone[0]}.",
                hint="They have to be prepared anew. Was the table vacuumed meanwhile?",
            )

    def _clear(self, delivery: Delivery, parts: list[Any], *, kept: bool) -> None:
        """Remove files of a delivery that the table has, unless a version names them."""
        storage = self._storage
        remove_below(storage, f"{_STAGING}/{self._spec.ident}/{delivery.commit_id}")
        if self._spec.kind is not SinkKind.APPEND_ONLY:
            return
        named = {part["path"] for part in parts} if kept else self._named_by(storage, delivery)
        if named is None:
            return
        if kept and not takes_files(self._table()):
            named = set()
        for path in list(storage.list(f"{_DATA}/{delivery.commit_id}")):
            if path not in named:
                storage.delete(path)

    def _named_by(self, storage: Storage, delivery: Delivery) -> set[str] | None:
        """The files that the version of a delivery has added; None where it is not found."""
        newest = newest_version(storage)
        for version in range(newest, max(newest - _VERSIONS_SEARCHED, -1), -1):
            try:
                lines = storage.get(version_path(version)).splitlines()
            except FileNotFoundError:
                return None
            actions = [json.loads(line) for line in lines]
            marks = [action["txn"] for action in actions if "txn" in action]
            if any(
                m["appId"] == self._spec.ident and m["version"] == delivery.epoch for m in marks
            ):
                return {action["add"]["path"] for action in actions if "add" in action}
        return None

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Errors of delta-rs and of files, as ours."""
        try:
            yield
        except StorageUnavailable as error:
            raise unavailable(self._spec.name, self._options, error) from error
        except HeadwaterError:
            raise
        except TableNotFoundError as error:
            raise RelationError(
                f'the target of sink "{self._spec.name}" does not exist',
                detail=f"There is no Delta table at {self._location}.",
                hint="Create it, or set create_table_if_not_exists = true.",
            ) from error
        except SchemaMismatchError as error:
            raise SchemaError(
                f'rows of sink "{self._spec.name}" do not fit its target', detail=str(error)
            ) from error
        except DeltaProtocolError as error:
            raise self._refused(error) from error
        except DeltaError as error:
            # A rule of the table is told by no error of its own.
            if _RULE_BROKEN in str(error):
                raise self._refused(error) from error
            raise unavailable(self._spec.name, self._options, error) from error
        except OSError as error:
            raise unavailable(self._spec.name, self._options, error) from error

    def _refused(self, error: Exception) -> UserError:
        return UserError(
            f'the Delta table of sink "{self._spec.name}" refuses the delivery',
            detail=f"{self._location}: {error}"[:500],
            hint="Take away the table feature or the constraint that is in the way, or change "
            "the rows, then let the sink go on.",
        )


def _receipt(**fields: Any) -> Receipt:
    return json.dumps(fields).encode()

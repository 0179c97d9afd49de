"""A sink into an Iceberg table: every delivery is one commit of its catalog, with one snapshot.

    kind          prepare writes                           the commit
    append-only   data files into `data/COMMIT_ID/`        appends them, as they are
    upsert        the same for rows that are set, and      files that hold one of the keys are
                  the keys of all changes into a file      written again without them; one
                  of their own                             overwrite puts all in place

Promises
    Once      The epoch is a property of the table, set in the same commit as the snapshot. The
              commit asks for the snapshot that was looked at, so it is made on top of that one
              or not at all. Properties outlive snapshots that expire.
    Fenced    So is the term. `begin` makes a snapshot without rows, so that whoever looked
              before has looked at another one.
    Whole     Readers see snapshots. Files that none names are seen by nobody.
    Shared    Others may write to the same table; a conflict with them is tried again.

Rows for a partitioned table are divided by pyiceberg, in the commit; upserts into one are refused.
"""

import contextlib
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from headwater.errors import (
    ConfigError,
    Fenced,
    HeadwaterError,
    NotSupported,
    RelationError,
    SchemaError,
    SinkUnavailable,
    StagedRowsGone,
    UserError,
)
from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.ids import Term
from headwater.sinks.iceberg.catalog import OPTIONS as CATALOG_OPTIONS
from headwater.sinks.iceberg.catalog import check_catalog, open_catalog
from headwater.sinks.iceberg.columns import check_columns, file_schema, new_schema
from headwater.sinks.iceberg.key_file import key_file
from headwater.sinks.iceberg.rewrite import Keys, files_with, rewritten
from headwater.sinks.options import Option, checked_options
from headwater.sinks.parquet_part import write_parquet
from headwater.sinks.progress import check_given
from headwater.sinks.sink import Batches, Delivery, Receipt, SinkKind, SinkSpec
from headwater.sinks.target_files import (
    open_target,
    part_name,
    remove_below,
    remove_parts,
    unavailable,
)
from headwater.state.storage import Storage

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table, Transaction

OPTIONS: tuple[Option, ...] = CATALOG_OPTIONS

_Done = TypeVar("_Done")

_DATA = "data"
_STAGING = "_headwater"
_PREFIX = "headwater"
_FIRST_WAIT_S = 0.02
_LONGEST_WAIT_S = 2.0


def iceberg_sink(spec: SinkSpec) -> "IcebergSink":
    """The sink of `connector = 'iceberg'`."""
    return IcebergSink(spec)


class IcebergSink:
    """One Iceberg table, as the target of one sink."""

    def __init__(self, spec: SinkSpec) -> None:
        self._spec = spec
        self._options = checked_options("iceberg", spec.options, OPTIONS)
        self._creates = self._options.flag("create_table_if_not_exists")
        self._retries = self._options.integer("commit_retry_num", 0, 1000)
        self._opened: Catalog | None = None
        check_catalog(self._options)
        if spec.kind is SinkKind.RETRACT:
            raise ConfigError(
                f'sink "{spec.name}" into Iceberg cannot be of type retract',
                hint="Use type = 'upsert' or type = 'append-only'.",
            )
        if spec.kind is SinkKind.UPSERT and not spec.key:
            raise ConfigError(
                f'upsert sink "{spec.name}" needs a key', hint="Name it with primary_key."
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def check(self) -> None:
        """Check the table's columns; create it if it is missing and may be created."""
        with self._errors():
            if self._creates:
                namespace = self._name[:-1]
                if not self._catalog.namespace_exists(namespace):
                    self._catalog.create_namespace_if_not_exists(namespace)
                if not self._catalog.table_exists(self._name):
                    self._catalog.create_table_if_not_exists(
                        self._name, new_schema(self._spec.columns)
                    )
            table = self._table()
            if self._spec.evolves:
                table = self._with_all_columns(table)
            check_columns(table, self._spec.columns, self._spec.name)
            self._refuse_partitions(table)

    def _with_all_columns(self, table: Any) -> Any:
        """Add the columns that the table lacks, and no more. Replay: it has them."""
        there = {field.name for field in table.schema().fields}
        missing = [column for column in self._spec.columns if column.name not in there]
        if not missing:
            return table
        with table.update_schema() as update:
            update.union_by_name(new_schema(missing))
        return self._table()

    def begin(self, term: Term) -> Epoch:
        """Raise the table's term of this sink, and say which epoch it has."""
        return self._on_newest_snapshot(lambda table: self._begin_on(table, term))

    def prepare(self, delivery: Delivery, part: int, rows: Batches) -> Receipt:
        """Write one part's files. Replay: other files; the first are removed later."""
        with self._errors():
            table = self._table()
            storage, schema = self._storage(table), file_schema(table, self._spec.columns)
            name = part_name(delivery, f"{part:05d}", "parquet")
            path = f"{_DATA}/{delivery.commit_id}/{name}"
            if self._spec.kind is SinkKind.APPEND_ONLY:
                data = write_parquet(storage, path, schema, rows)
                return _receipt(path if data else None, None)
            key_path = f"{self._staging(delivery)}/{name}"
            with key_file(storage, key_path, self._spec) as keys:
                data = write_parquet(storage, path, schema, keys.set_rows(rows))
            return _receipt(path if data else None, key_path if keys.count else None)

    def commit(self, delivery: Delivery, receipts: Sequence[Receipt]) -> None:
        """Make one snapshot. Replay: the table's property of this sink says that it is there."""
        parts = [json.loads(receipt) for receipt in receipts if receipt]
        self._on_newest_snapshot(lambda table: self._commit_on(table, delivery, parts))
        with self._errors():
            self._clear(delivery)

    def abort(self, delivery: Delivery, receipts: Sequence[Receipt]) -> None:
        """Remove a delivery's files, also without receipts; those of a newer term stay."""
        del receipts
        with self._errors():
            storage = self._storage(self._table())
            for folder in (f"{_DATA}/{delivery.commit_id}", self._staging(delivery)):
                remove_parts(storage, folder, delivery.term)

    def drop(self) -> None:
        """Remove our properties and what is staged."""
        ours = (self._property("epoch"), self._property("term"))

        def remove(table: "Table") -> None:
            there = [name for name in ours if name in table.properties]
            if there:
                with table.transaction() as transaction:
                    transaction.remove_properties(*there)

        with contextlib.suppress(RelationError):
            self._on_newest_snapshot(remove)
            with self._errors():
                remove_below(self._storage(self._table()), f"{_STAGING}/{self._spec.ident}")

    @property
    def _name(self) -> tuple[str, ...]:
        return (*self._options["database.name"].split("."), self._options["table.name"])

    @property
    def _catalog(self) -> "Catalog":
        if self._opened is None:
            self._opened = open_catalog(self._options)
        return self._opened

    def _table(self) -> "Table":
        """The table as the catalog has it now, with commits that are never tried again.

        pyiceberg would put a commit that failed on top of a snapshot nobody has looked at.
        """
        table = self._catalog.load_table(self._name)
        quiet = {**table.metadata.properties, "commit.retry.num-retries": "0"}
        table.metadata = table.metadata.model_copy(update={"properties": quiet})
        return table

    def _storage(self, table: "Table") -> Storage:
        return open_target(table.location().replace("s3a://", "s3://", 1), self._options)

    def _staging(self, delivery: Delivery) -> str:
        return f"{_STAGING}/{self._spec.ident}/{delivery.commit_id}"

    def _property(self, name: str) -> str:
        return f"{_PREFIX}.{self._spec.ident}.{name}"

    def _on_newest_snapshot(self, act: "Callable[[Table], _Done]") -> _Done:
        """Act on the newest snapshot, and look again when somebody else has made a newer one."""
        from pyiceberg.exceptions import CommitFailedException  # noqa: PLC0415  an extra

        wait = _FIRST_WAIT_S
        for _ in range(self._retries + 1):
            with self._errors():
                try:
                    return act(self._table())
                except CommitFailedException:
                    time.sleep(wait * random.uniform(0.5, 1.5))
                    wait = min(wait * 2, _LONGEST_WAIT_S)
        raise SinkUnavailable(
            f'sink "{self._spec.name}" cannot commit: others commit to its table all the time',
            detail=f"{'.'.join(self._name)}: {self._retries + 1} times another one came first.",
            hint="It is tried again by itself. Raise commit_retry_num if this is normal here.",
        )

    def _begin_on(self, table: "Table", term: Term) -> Epoch:
        if self._refuse_older(table, term) < term:
            with table.transaction() as transaction:
                marks = self._mark(transaction, None, term)
                transaction.update_snapshot(marks).fast_append().commit()
        return self._epoch(table)

    def _commit_on(self, table: "Table", delivery: Delivery, parts: list[Any]) -> None:
        """Commit on top of this snapshot, unless it, or one before it, has the delivery."""
        self._refuse_older(table, delivery.term)
        known = self._epoch(table)
        if known >= delivery.epoch:
            return
        check_given(delivery, known)
        check_columns(table, self._spec.columns, self._spec.name)
        self._refuse_partitions(table)
        storage = self._storage(table)
        self._refuse_missing(storage, delivery, parts)
        data = [part["data"] for part in parts if part["data"]]
        keys = [part["keys"] for part in parts if part.get("keys")]
        with table.transaction() as transaction:
            marks = self._mark(transaction, delivery.epoch, delivery.term)
            if data and not table.spec().is_unpartitioned():
                whole = pa.concat_tables(_read(storage, path) for path in data)
                transaction.append(whole, snapshot_properties=marks)
            elif keys:
                self._replace(table, transaction, delivery, (data, keys), marks)
            else:
                with transaction.update_snapshot(marks).fast_append() as append:
                    for path in data:
                        append.append_data_file(_data_file(table, path))

    def _replace(
        self,
        table: "Table",
        transaction: "Transaction",
        delivery: Delivery,
        paths: tuple[list[str], list[str]],
        marks: dict[str, str],
    ) -> None:
        storage, (data, key_paths) = self._storage(table), paths
        places = {column.name: column for column in self._spec.columns}
        keys = Keys(
            pa.concat_tables(_read(storage, path) for path in key_paths),
            [places[name] for name in self._spec.key],
        )
        with transaction.update_snapshot(marks).overwrite() as overwrite:
            for path in data:
                overwrite.append_data_file(_data_file(table, path))
            for task in files_with(table, keys):
                overwrite.delete_data_file(task.file)
                name = part_name(delivery, "rest", "parquet")
                path = f"{_DATA}/{delivery.commit_id}/{name}"
                rest = rewritten(table, task, keys, storage, path)
                if rest is not None:
                    overwrite.append_data_file(_data_file(table, rest.path))

    def _mark(self, transaction: "Transaction", epoch: Epoch | None, term: Term) -> dict[str, str]:
        """Set the marks that checks go by; returns the same for people who read snapshots."""
        named = {"term": term} if epoch is None else {"term": term, "epoch": epoch}
        transaction.set_properties({self._property(n): str(v) for n, v in named.items()})
        shown = {f"{_PREFIX}.{name}": str(value) for name, value in named.items()}
        return {f"{_PREFIX}.sink": self._spec.ident, **shown}

    def _epoch(self, table: "Table") -> Epoch:
        return Epoch(int(table.properties.get(self._property("epoch"), NO_EPOCH)))

    def _refuse_older(self, table: "Table", term: Term) -> int:
        known = int(table.properties.get(self._property("term"), 0))
        if known > term:
            raise Fenced(
                f'another engine delivers to sink "{self._spec.name}" now',
                detail=f"The table has term {known}, this engine has {term}.",
            )
        return known

    def _refuse_partitions(self, table: "Table") -> None:
        if self._spec.kind is SinkKind.UPSERT and not table.spec().is_unpartitioned():
            raise NotSupported(
                f'upsert sink "{self._spec.name}" cannot deliver into a partitioned table',
                detail=f"{'.'.join(self._name)} is partitioned by {table.spec()}.",
                hint="Use a table without partitions, or type = 'append-only'.",
            )

    def _refuse_missing(self, storage: Storage, delivery: Delivery, parts: list[Any]) -> None:
        """A table must never name a file that is not there."""
        wanted = {path for part in parts for path in part.values() if path}
        if not wanted:
            return
        there = set(storage.list(f"{_DATA}/{delivery.commit_id}"))
        there |= set(storage.list(self._staging(delivery)))
        if gone := sorted(wanted - there):
            raise StagedRowsGone(
                f'files that were prepared for sink "{self._spec.name}" are gone',
                detail=f"{storage.url}/{gone[0]}.",
                hint="They have to be prepared anew. Were orphan files removed meanwhile?",
            )

    def _clear(self, delivery: Delivery) -> None:
        """Remove files of a delivery that the table has, unless its snapshot names them."""
        table = self._table()
        storage = self._storage(table)
        remove_below(storage, self._staging(delivery))
        named = self._named_by(table, delivery)
        if named is None:
            return
        for path in list(storage.list(f"{_DATA}/{delivery.commit_id}")):
            if f"{table.location()}/{path}" not in named:
                storage.delete(path)

    def _named_by(self, table: "Table", delivery: Delivery) -> set[str] | None:
        """The files that a delivery's snapshot has added; None where it has expired."""
        mark = {f"{_PREFIX}.sink": self._spec.ident, f"{_PREFIX}.epoch": str(delivery.epoch)}
        for snapshot in reversed(table.snapshots()):
            told = snapshot.summary.additional_properties if snapshot.summary else {}
            if mark.items() <= told.items():
                return {
                    entry.data_file.file_path
                    for manifest in snapshot.manifests(table.io)
                    if manifest.added_snapshot_id == snapshot.snapshot_id
                    for entry in manifest.fetch_manifest_entry(table.io)
                }
        return None

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Errors of pyiceberg, of catalogs and of files, as ours."""
        from pyiceberg import exceptions as theirs  # noqa: PLC0415  an extra

        try:
            yield
        except HeadwaterError as error:
            if isinstance(error, UserError | SinkUnavailable | Fenced):
                raise
            raise unavailable(self._spec.name, self._options, error) from error
        except (theirs.NoSuchTableError, theirs.NoSuchNamespaceError) as error:
            raise RelationError(
                f'the target of sink "{self._spec.name}" does not exist',
                detail=f"The catalog has no table {'.'.join(self._name)}.",
                hint="Create it, or set create_table_if_not_exists = true.",
            ) from error
        except (theirs.UnauthorizedError, theirs.ForbiddenError, theirs.BadRequestError) as error:
            raise UserError(
                f'the catalog of sink "{self._spec.name}" refuses',
                detail=self._options.without_secrets(str(error))[:500],
                hint="Check the credentials and the rights that they have.",
            ) from error
        except (pa.ArrowInvalid, pa.ArrowTypeError, theirs.ValidationError) as error:
            raise SchemaError(
                f'rows of sink "{self._spec.name}" do not fit its target', detail=str(error)[:500]
            ) from error
        except Exception as error:  # catalogs raise what their drivers raise
            raise unavailable(self._spec.name, self._options, error) from error


def _receipt(data: str | None, keys: str | None) -> Receipt:
    return json.dumps({"data": data, "keys": keys}).encode() if data or keys else b""


def _data_file(table: "Table", path: str) -> Any:
    from pyiceberg.io.pyarrow import parquet_file_to_data_file  # noqa: PLC0415  an extra

    return parquet_file_to_data_file(table.io, table.metadata, f"{table.location()}/{path}")


def _read(storage: Storage, path: str) -> pa.Table:
    return pq.read_table(pa.BufferReader(storage.get(path)))

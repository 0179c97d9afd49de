"""Look into a workspace without touching it, beside an engine or without one.

Everything about a table is read from the ledger in one transaction: the last epoch, the
definition, and the list of files with the commits after it. So the parts always belong
together, however fast an engine commits meanwhile.

Promises
    Read-only    Nothing is written: no take-over, no migration, no pin, no folder. A workspace
                 whose schema is older than this version is refused, not upgraded.
    Exact        A list of files is folded as a restarting engine folds it, horizon included: an
                 epoch whose files may be gone is `HistoryGone` and not a part of the rows.

Why no pin keeps an epoch for a reader: a pin is a write, and the pin of a reader that died would
keep every table's history for ever. What protects a reader is `retention_s`.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from sqlalchemy import Connection, func, inspect, select

from headwater.catalog.catalog import Catalog
from headwater.catalog.relation import PUBLIC, TableDef
from headwater.catalog.snapshot import UNDEFINED_TABLE, CatalogSnapshot, missing, relation_error
from headwater.config import Settings
from headwater.errors import (
    BrokenInvariant,
    ConfigError,
    DamagedState,
    StorageUnavailable,
    UserError,
    WorkspaceTooNew,
)
from headwater.ledger.chain import read_links
from headwater.ledger.database import Database
from headwater.ledger.facts import read_facts, read_floor
from headwater.ledger.fence import read_fence
from headwater.ledger.manifests import read_manifest
from headwater.ledger.migrate import MIGRATIONS
from headwater.ledger.tables import SCHEMA
from headwater.model.epoch import NO_EPOCH, Epoch, system_clock
from headwater.model.ids import TableId
from headwater.model.record import EpochRecord
from headwater.model.reserved import HIDDEN_PREFIX
from headwater.model.schema import Column, Schema
from headwater.state.manifest import Manifest, TableView
from headwater.state.storage import Storage, open_storage

_PAGE = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """One table as the ledger had it at one moment."""

    definition: TableDef
    manifest: Manifest
    head: Epoch
    """The last committed epoch of the whole workspace."""

    def view(self, epoch: Epoch) -> TableView:
        """The table at an epoch; says why not if it has none."""
        created = self.definition.created
        if epoch > self.head:
            raise not_committed(epoch, self.head)
        if epoch < created:
            raise relation_error(
                f'table "{self.definition.name}" does not exist at epoch {epoch}',
                UNDEFINED_TABLE,
                detail=f"It was created by epoch {created}.",
            )
        return self.manifest.view_at(epoch)


def user_columns(schema: Schema) -> tuple[Column, ...]:
    """The columns that are the user's; stored keys of views are ours."""
    return tuple(c for c in schema.columns if not c.name.startswith(HIDDEN_PREFIX))


def not_committed(epoch: Epoch, head: Epoch) -> UserError:
    """The error for an epoch that has not happened."""
    return UserError(
        f"epoch {epoch} is not committed",
        detail=f"The last committed epoch is {head}.",
        hint="Leave the epoch out to read the last one.",
    )


def last_epoch(workspace: str | Path) -> Epoch:
    """The last committed epoch, for reading several tables as of one moment."""
    with LookedInto(workspace) as looked:
        return looked.head()


class LookedInto:
    """A workspace that is only looked at; a context manager, or closed by `close`."""

    def __init__(self, workspace: str | Path) -> None:
        self._folder = Path(workspace).expanduser().absolute()
        if not self._folder.is_dir():
            raise ConfigError(
                f"there is no workspace {self._folder}",
                detail="It is not a folder on the machine of the Spark driver.",
                hint="Give the path of an engine's workspace.",
            )
        self._settings = Settings.load(self._folder)
        self._database = Database.connect(self._ledger_url())

    def __enter__(self) -> "LookedInto":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._database.close()

    def head(self) -> Epoch:
        """The last committed epoch."""
        with self._reading() as connection:
            return read_fence(connection, system_clock, lock=False).head

    def table(
        self, name: str, seen: TableState | None = None, *, id_: TableId | None = None
    ) -> TableState:
        """A table or materialized view as it is now, by `name` or `schema.name`.

        By its id if that is given, whatever it is called now. What was seen of it before makes
        this cost as much as has happened since, and not as much as the table has files.
        """
        with self._reading() as connection:
            catalog = Catalog(_OneMoment(connection)).snapshot()
            definition = _find(catalog, name) if id_ is None else _find_by_id(catalog, id_, name)
            head = read_fence(connection, system_clock, lock=False).head
            manifest = _manifest(connection, definition, head, seen)
        return TableState(definition=definition, manifest=manifest, head=head)

    def storage(self, folder: str) -> Storage:
        """Where one table's files lie."""
        url = self._settings.storage_url or str(self._folder / "tables")
        parts = urlparse(url)
        if parts.scheme in ("", "file"):
            # Opening would make the folder, also where only a volume is not mounted.
            root = Path(unquote(parts.path) if parts.scheme else url)
            if not root.is_dir():
                raise StorageUnavailable(
                    "the folder of the workspace's tables is not there", detail=str(root)
                )
        return open_storage(url).below(folder)

    def _ledger_url(self) -> str:
        if self._settings.ledger_url:
            return self._settings.ledger_url
        file = self._folder / "ledger.db"
        if not file.exists():
            # Connecting would create an empty file.
            raise ConfigError(
                f"{self._folder} is not a workspace",
                detail="It has no ledger.db, and no headwater.toml that names a ledger_url.",
                hint="Give the path of an engine's workspace.",
            )
        return f"sqlite:///{file}"

    @property
    def database(self) -> Database:
        """The ledger's database."""
        return self._database

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with self._database.reading() as connection:
            _require_version(connection)
            yield connection


class _OneMoment:
    """A transaction under way, as the catalog wants its database."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def reading(self) -> AbstractContextManager[Connection]:
        return nullcontext(self._connection)

    def transaction(self) -> AbstractContextManager[Connection]:
        raise BrokenInvariant("a workspace that is only looked at was to be written")


def _require_version(connection: Connection) -> None:
    found = 0
    if inspect(connection).has_table(SCHEMA.name):
        found = connection.execute(select(func.max(SCHEMA.c.version))).scalar_one() or 0
    known = len(MIGRATIONS)
    if found > known:
        raise WorkspaceTooNew(
            f"this workspace has schema version {found}; this Headwater knows {known}",
            hint="Upgrade the headwater that Spark uses to the version that wrote the workspace.",
        )
    if found < known:
        raise ConfigError(
            f"this workspace has schema version {found}; this Headwater reads {known}",
            detail="A reader does not upgrade a workspace.",
            hint="Start an engine of this version on it once.",
        )


def _find(catalog: CatalogSnapshot, name: str) -> TableDef:
    schema, dot, rest = name.partition(".")
    by_name = {(table.namespace, table.name): table for table in catalog.shown_tables}
    # A quoted name may hold a dot itself.
    found = by_name.get((PUBLIC, name)) or (by_name.get((schema, rest)) if dot else None)
    if found is not None:
        return found
    raise missing("table", name, [_spelled(table) for table in by_name.values()], UNDEFINED_TABLE)


def _find_by_id(catalog: CatalogSnapshot, id_: TableId, name: str) -> TableDef:
    for table in catalog.shown_tables:
        if table.id == id_:
            return table
    raise relation_error(f'table "{name}" was dropped', UNDEFINED_TABLE)


def _spelled(table: TableDef) -> str:
    return table.name if table.namespace == PUBLIC else f"{table.namespace}.{table.name}"


def _manifest(
    connection: Connection, definition: TableDef, head: Epoch, seen: TableState | None = None
) -> Manifest:
    floor = read_floor(connection)
    horizon = read_facts(connection).horizons.get(definition.id)
    if seen is not None and seen.definition.id == definition.id and floor <= seen.head <= head:
        records = list(_records(connection, seen.head, head))
        changed = any(commit.table == definition.id for r in records for commit in r.tables)
        if not changed and (horizon is None or horizon <= seen.manifest.horizon):
            return seen.manifest
        manifest = seen.manifest.copy()
    else:
        stored = read_manifest(connection, definition.id, head)
        manifest = (
            Manifest.decode(stored.body) if stored else Manifest(definition.id, definition.schema)
        )
        # A table that has been idle may have a list older than the oldest record kept.
        after = Epoch(max(stored.epoch if stored else NO_EPOCH, floor))
        records = list(_records(connection, after, head))
    for record in records:
        _apply(manifest, definition.id, record)
    if horizon is not None:
        manifest.advance_horizon(horizon)
    return manifest


def _apply(manifest: Manifest, table: TableId, record: EpochRecord) -> None:
    for commit in record.tables:
        if commit.table != table or commit.version <= manifest.version:
            continue
        if commit.version != manifest.version + 1:
            raise DamagedState(
                f"the ledger lacks a commit of table {table}",
                detail=f"Version {manifest.version} is followed by {commit.version}.",
            )
        manifest.apply(record.epoch, commit)


def _records(connection: Connection, after: Epoch, head: Epoch) -> Iterator[Any]:
    while after < head:
        page = read_links(connection, after, head, limit=_PAGE)
        if not page:
            raise DamagedState(f"the ledger lacks the record of its last epoch {head}")
        yield from page
        after = page[-1].epoch

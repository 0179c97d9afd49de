"""All state tables of an engine, and how they come back after a restart.

The ledger has, for each table, its list of files as of some epoch and the commits after it.
Folding the commits into the list gives the table as of the last epoch; versions that were not
published before the crash are published now. Nothing else needs to be remembered.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from headwater.errors import DamagedState
from headwater.model.epoch import Epoch
from headwater.model.ids import TableId
from headwater.model.record import EpochRecord
from headwater.model.schema import Schema
from headwater.state import delta_log
from headwater.state.manifest import Manifest
from headwater.state.surroundings import Surroundings
from headwater.state.table import StateTable


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec:
    """What the catalog knows about a table."""

    id: TableId
    name: str
    folder: str
    schema: Schema
    created: Epoch


class StateStore:
    """The tables by id."""

    def __init__(self, surroundings: Surroundings) -> None:
        self.surroundings = surroundings
        self._tables: dict[TableId, StateTable] = {}

    def __getitem__(self, table: TableId) -> StateTable:
        return self._tables[table]

    def __iter__(self) -> Iterator[StateTable]:
        return iter(list(self._tables.values()))

    def __contains__(self, table: TableId) -> bool:
        return table in self._tables

    def create(self, spec: TableSpec) -> StateTable:
        """A table that has no epoch yet."""
        manifest = Manifest(spec.id, spec.schema, spec.created)
        return self._open(spec, manifest)

    def drop(self, table: TableId) -> None:
        """Forget a table; its files are the caller's to delete."""
        self._tables.pop(table, None)

    def recover(
        self,
        specs: Iterable[TableSpec],
        stored: Mapping[TableId, bytes],
        records: Iterable[EpochRecord],
        horizons: Mapping[TableId, Epoch],
    ) -> None:
        """Bring back every table as of the last epoch of `records`.

        `records` begin at or before the oldest of the stored manifests.
        """
        specs = tuple(specs)
        manifests = {
            spec.id: Manifest.decode(stored[spec.id])
            if spec.id in stored
            else Manifest(spec.id, spec.schema, spec.created)
            for spec in specs
        }
        for record in records:
            for commit in record.tables:
                manifest = manifests.get(commit.table)
                if manifest is None or commit.version <= manifest.version:
                    continue
                if commit.version != manifest.version + 1:
                    raise DamagedState(
                        f"the ledger lacks a commit of table {commit.table}",
                        detail=f"Version {manifest.version} is followed by {commit.version}.",
                    )
                manifest.apply(record.epoch, commit)
        for spec in specs:
            manifest = manifests[spec.id]
            if spec.id in horizons:
                manifest.advance_horizon(horizons[spec.id])
            self._open(spec, manifest)

    def publish_missing(self, records: Iterable[EpochRecord]) -> int:
        """Publish versions that the ledger has and the Delta tables lack; returns how many.

        Replay: versions that are there are left alone.
        """
        published = {table.id: table.published_version() for table in self}
        count = 0
        for record in records:
            for commit in record.tables:
                newest = published.get(commit.table)
                if newest is None or commit.version < newest:
                    continue
                if commit.version > newest:
                    self._tables[commit.table].publish(record, commit)
                    count += 1
                else:
                    delta_log.verify(
                        self._tables[commit.table].storage, record.epoch, commit.version
                    )
        for table in self:
            if published[table.id] > (known := table.manifest().version):
                raise DamagedState(
                    f'Delta table "{table.name}" has a version that the ledger does not have',
                    detail=f"{table.storage.url}: version {published[table.id]}, "
                    f"the ledger has {known}.",
                    hint="Another writer committed to it. Headwater must be its only writer.",
                )
        return count

    def _open(self, spec: TableSpec, manifest: Manifest) -> StateTable:
        table = StateTable(spec.name, spec.folder, manifest, self.surroundings)
        self._tables[spec.id] = table
        return table

"""Bring a workspace back to its last epoch.

The ledger says what is true. Recovery reads it, folds each table's commits into its list of
files, publishes the versions that a crash kept from being published, and deletes what no
record names. It can itself be interrupted anywhere and starts over.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from headwater.catalog.catalog import Catalog
from headwater.catalog.relation import ObjectKind, TableDef
from headwater.catalog.snapshot import CatalogSnapshot
from headwater.crash_points import crash_point
from headwater.ledger.facts import LedgerFacts
from headwater.ledger.ledger import Ledger
from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.ids import TableId, Term
from headwater.state.collect import collect_orphans, collect_strays
from headwater.state.storage import Storage
from headwater.state.store import StateStore, TableSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What recovery found."""

    last: Epoch
    facts: LedgerFacts
    catalog: CatalogSnapshot
    published: int
    collected: int


def table_spec(definition: TableDef) -> TableSpec:
    """What the state room needs to know of a table."""
    return TableSpec(
        id=definition.id,
        name=definition.name,
        folder=definition.folder,
        schema=definition.schema,
        created=NO_EPOCH,
    )


def recover(ledger: Ledger, catalog: Catalog, store: StateStore, term: Term) -> Recovered:
    """Make the workspace whole. Replay: repeatable, also after an interruption."""
    last = ledger.last_epoch()
    facts = ledger.facts()
    snapshot = catalog.snapshot()
    specs = [table_spec(table) for table in snapshot.tables]
    stored: dict[TableId, bytes] = {}
    needed: list[Epoch] = []
    for spec in specs:
        manifest = ledger.manifest(spec.id)
        needed.append(manifest.epoch if manifest else NO_EPOCH)
        if manifest is not None:
            stored[spec.id] = manifest.body
    # A table that has been idle may have a list older than the oldest record kept.
    after = max(min(needed, default=last), ledger.floor())
    records = list(ledger.records(after)) if after < last else []
    store.recover(specs, stored, records, facts.horizons)
    for intent in snapshot.objects:
        # What slices of views in the making have brought is found by whoever goes on with them.
        if intent.kind is ObjectKind.CREATING and intent.query is not None:
            for table in intent.query.stores:
                if table in store:
                    store[table].receipted = True
    crash_point("recovery.before_publish")
    if after == last and last > NO_EPOCH:
        records = [ledger.record(last)]
    published = store.publish_missing(records)
    crash_point("recovery.after_publish")
    collected = sum(collect_orphans(table, term, committed=last, alone=True) for table in store)
    purge_dropped(catalog, store)
    known = {table.folder for table in snapshot.tables}
    collected += collect_strays(store.surroundings.storage, term, known=known)
    return Recovered(
        last=last, facts=facts, catalog=snapshot, published=published, collected=collected
    )


def purge_dropped(catalog: Catalog, store: StateStore, reading: Iterable[Epoch] = ()) -> None:
    """Delete what dropped relations have left; a table that is still open keeps its files.

    So does one that a query may read, at one of the epochs `reading`.
    Replay: what is gone is gone.
    """
    snapshot = catalog.snapshot()
    oldest = min(reading, default=None)
    kept = set()
    for table in snapshot.dropped_tables:
        read = oldest is not None and table.dropped is not None and oldest < table.dropped
        if table.id in store or read:
            kept.add(table.source)
        else:
            purge(catalog, store.surroundings.storage, table)
    for source in snapshot.dropped_sources:
        if source.name not in kept:
            catalog.purge_source(source.id)


def purge(catalog: Catalog, storage: Storage, table: TableDef) -> None:
    """Delete a dropped table's files, then forget it. Replay: what is gone is gone."""
    folder = storage.below(table.folder)
    for path in list(folder.list()):
        folder.delete(path)
    catalog.purge(table.id)

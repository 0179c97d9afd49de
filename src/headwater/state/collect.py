"""Delete files that nobody needs: expired ones, and those no ledger record names.

expired    only epochs before the horizon need them. The ledger must have the horizon
first; after that nobody may read older epochs, so deleting can stop and go on
at any moment.
orphans    left by an engine that died, a task that ran twice, an epoch that was discarded
or a fold that was not adopted. A file is an orphan when the manifest does not
name it, nothing under way uses it, and its name says that its engine is gone or
its epoch is over. What a slice's receipt names stays with it while its table
is being filled; afterwards the receipts are orphans themselves.
strays     lie where no table is, or none any more.
"""

from collections.abc import Collection, Iterator

from headwater.crash_points import crash_point
from headwater.model.epoch import Epoch
from headwater.model.ids import Term
from headwater.state.delta_log import is_ours
from headwater.state.file_name import LOG_FOLDER, Origin, is_snapshot, origin_of
from headwater.state.receipts import receipted_paths
from headwater.state.storage import Storage
from headwater.state.table import StateTable

_TEMPORARY = ".tmp"


def expire(table: StateTable, horizon: Epoch) -> int:
    """Delete what only epochs before `horizon` need, which the ledger must have.

    Replay: files already gone are passed over; the rest are orphans after a restart.
    """
    expired = set(table.manifest().expired(horizon)) - table.busy_paths()
    # First nobody may ask for the old epochs any more, then their files go.
    table.advance_horizon(horizon)
    if expired:
        crash_point("retention.before_delete")
    for path in expired:
        table.storage.delete(path)
        crash_point("retention.between_deletes")
    return len(expired)


def orphans(table: StateTable, term: Term, *, committed: Epoch, alone: bool) -> Iterator[str]:
    """Find files that nothing names. `alone` says that no work of this engine is under way."""
    # In this order a file is seen as needed on its way from fold to stage to ledger.
    paths = list(table.storage.list())
    busy = set() if alone else {Origin(term, epoch) for epoch in table.busy_epochs()}
    filling = table.filling and not alone
    needed = table.busy_paths()
    needed |= set(table.manifest().paths())
    if table.receipted:
        needed |= receipted_paths(table.storage, paths)
    for path in paths:
        if path in needed:
            continue
        name = path.rsplit("/", 1)[-1]
        if name.endswith(_TEMPORARY):
            origin = origin_of(name.removesuffix(_TEMPORARY).lstrip(".").rsplit(".", 1)[0])
            if origin.term < term if origin is not None else alone:
                yield path
            continue
        if path.startswith(f"{LOG_FOLDER}/"):
            continue
        origin = origin_of(path)
        # A later term means that we are the ones who are gone: nothing of it is ours to judge.
        if origin is None or origin.term > term or origin in busy:
            continue
        if filling and origin.term == term and is_snapshot(path):
            continue
        if table.receipted and not alone and is_snapshot(path):
            # A task of an engine that was killed may be about to leave a receipt for it.
            continue
        if origin.term < term or alone or origin.epoch < committed:
            yield path


def collect_orphans(table: StateTable, term: Term, *, committed: Epoch, alone: bool) -> int:
    """Delete the orphans. Replay: what is gone is gone."""
    found = list(orphans(table, term, committed=committed, alone=alone))
    for path in found:
        table.storage.delete(path)
    return len(found)


def collect_strays(storage: Storage, term: Term, *, known: Collection[str]) -> int:
    """Delete files in folders of tables that do not exist; `known` folders are passed over.

    An engine that died while it created a table leaves them, and one that was frozen and goes
    on after the table was dropped. Only names of ours from earlier terms are touched.
    Replay: what is gone is gone.
    """
    found = [path for path in storage.list() if path.partition("/")[0] not in known]
    strays = [path for path in found if _is_stray(storage, path, term)]
    for path in strays:
        storage.delete(path)
    return len(strays)


def _is_stray(storage: Storage, path: str, term: Term) -> bool:
    folder, _, inside = path.partition("/")
    if not folder.rpartition("-")[2].isdecimal():
        return False
    if inside.startswith(f"{LOG_FOLDER}/"):
        return is_ours(storage, path)
    origin = origin_of(inside)
    return origin is not None and origin.term < term

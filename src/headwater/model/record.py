"""What the ledger says about one epoch.

`StagedWork` is one actor's share of an epoch, handed over when it collects a checkpoint.
`EpochRecord` is all shares together: the only commit. Maps hold only what changed in the
epoch; the ledger keeps the latest value of each beside its records.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headwater.errors import BrokenInvariant
from headwater.model.epoch import Epoch
from headwater.model.ids import Term
from headwater.model.table_commit import TableCommit

Facts = Mapping[str, str]
"""Names to values that their owner encoded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedWork:
    """What one actor has staged since the last checkpoint."""

    tables: tuple[TableCommit, ...] = ()
    positions: Facts = field(default_factory=dict)
    progress: Facts = field(default_factory=dict)
    log_ends: Facts = field(default_factory=dict)
    sinks: Facts = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRecord:
    """One committed epoch: what it made durable, after which epoch, by which engine."""

    epoch: Epoch
    after: Epoch
    term: Term
    sealed: tuple[Epoch, ...] = ()
    tables: tuple[TableCommit, ...] = ()
    positions: Facts = field(default_factory=dict)
    progress: Facts = field(default_factory=dict)
    log_ends: Facts = field(default_factory=dict)
    sinks: Facts = field(default_factory=dict)
    horizons: Mapping[int, Epoch] = field(default_factory=dict)
    """By table id: the oldest epoch that can still be read; older files may be deleted."""


def merge_work(works: Iterable[StagedWork]) -> StagedWork:
    """Put the shares of all actors together; no two may speak about the same thing."""
    tables: list[TableCommit] = []
    maps: dict[str, dict[str, str]] = {"positions": {}, "progress": {}, "log_ends": {}, "sinks": {}}
    for work in works:
        tables.extend(work.tables)
        for name, merged in maps.items():
            facts: Facts = getattr(work, name)
            if twice := merged.keys() & facts.keys():
                raise BrokenInvariant(f"two actors staged {name} of {', '.join(sorted(twice))}")
            merged.update(facts)
    ids = [commit.table for commit in tables]
    if len(set(ids)) != len(ids):
        raise BrokenInvariant(f"two actors staged the same table; tables staged: {sorted(ids)}")
    return StagedWork(tables=tuple(tables), **maps)

"""A table's files through time, folded from the ledger's table commits.

    read at epoch e     the files added at or before e and not folded away by then, each with
                        the latest deletion vector at or before e
    changes (a, b]      the change files of the epochs in between; an insert-only epoch has
                        none, its changes are the rows of the files it added
    horizon             the oldest epoch that can be read; what only older epochs need is
                        `expired` and may be deleted once the ledger has the horizon

Promises
    Pure         No I/O, no clock. The same commits give the same manifest.
    Exact        `apply` refuses a commit that does not fit: a file added twice, a vector for a
                 file that is not there or one that forgets dead rows, a version out of order.
    Versioned    `encode` writes a format number and `decode` refuses one it does not know.
"""

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from pydantic import TypeAdapter

from headwater.errors import BrokenInvariant, DamagedState, HistoryGone, SchemaError
from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.ids import TableId
from headwater.model.schema import Schema
from headwater.model.table_commit import ChangeFile, DataFile, DeletionVector, TableCommit

_FORMAT = 2


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A data file as one epoch sees it, or the part of it between two places."""

    file: DataFile
    dead: DeletionVector | None = None
    only: tuple[int, int] | None = None

    @property
    def live_rows(self) -> int:
        """How many of its rows are not dead; of a part at most so many."""
        alive = self.file.rows - (self.dead.cardinality if self.dead else 0)
        return alive if self.only is None else min(alive, self.only[1] - self.only[0])

    @property
    def share(self) -> float:
        """How much of the file it is, dead rows counted."""
        if self.only is None:
            return 1.0
        return (self.only[1] - self.only[0]) / max(1, self.file.rows)

    @property
    def whole(self) -> bool:
        """Whether every row of the file counts."""
        return self.dead is None and self.only is None


@dataclass(frozen=True, slots=True)
class TableView:
    """A table at one epoch."""

    epoch: Epoch
    schema: Schema
    files: tuple[LiveFile, ...]

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return sum(file.live_rows for file in self.files)


@dataclass(frozen=True, slots=True)
class LogEntry:
    """The changes of one epoch: exact change files, or files whose rows are all inserts."""

    epoch: Epoch
    version: int
    changes: tuple[ChangeFile, ...] = ()
    inserts: tuple[DataFile, ...] = ()

    @property
    def rows(self) -> int:
        """How many changes there are."""
        return sum(f.rows for f in self.changes) + sum(f.rows for f in self.inserts)

    @property
    def bytes(self) -> int:
        """How large the files are."""
        return sum(f.bytes for f in self.changes) + sum(f.bytes for f in self.inserts)


@dataclass(slots=True)
class _Entry:
    file: DataFile
    added: Epoch
    folded: Epoch | None = None
    vectors: list[tuple[Epoch, DeletionVector]] = field(default_factory=list)

    def vector_at(self, epoch: Epoch) -> DeletionVector | None:
        for since, vector in reversed(self.vectors):
            if since <= epoch:
                return vector
        return None


@dataclass(slots=True)
class _Stored:
    """The encoded form."""

    format: int
    table: TableId
    created: Epoch
    epoch: Epoch
    version: int
    horizon: Epoch
    horizon_version: int
    schemas: list[tuple[Epoch, Schema]]
    retired: list[str]
    entries: list[_Entry]
    log: list[LogEntry]
    rewritten: Epoch = NO_EPOCH
    """New in format 2."""


_STORED: TypeAdapter[_Stored] = TypeAdapter(_Stored)


class Manifest:
    """The files of one table; mutable, changed only by `apply` and `advance_horizon`."""

    def __init__(self, table: TableId, schema: Schema, created: Epoch = NO_EPOCH) -> None:
        self.table = table
        self.created = created
        self.epoch = created
        self.version = -1
        self.horizon = created
        self.horizon_version = 0
        """A version of the Delta table that is not newer than the horizon."""
        self._schemas: list[tuple[Epoch, Schema]] = [(created, schema)]
        self._retired: set[str] = set()
        self._rewritten = NO_EPOCH
        """Since when no file has columns under other names; older changes cannot be read as new."""
        self._entries: dict[str, _Entry] = {}
        self._log: list[LogEntry] = []

    @property
    def schema(self) -> Schema:
        """The schema now."""
        return self._schemas[-1][1]

    def view(self) -> TableView:
        """The table after the last commit applied."""
        files = (
            LiveFile(entry.file, entry.vectors[-1][1] if entry.vectors else None)
            for entry in self._entries.values()
            if entry.folded is None
        )
        return TableView(self.epoch, self.schema, tuple(files))

    def view_at(self, epoch: Epoch) -> TableView:
        """The table as it was at `epoch`."""
        self._check_history(epoch)
        schema = self._schemas[0][1]
        for since, candidate in self._schemas:
            if since <= epoch:
                schema = candidate
        files = (
            LiveFile(entry.file, entry.vector_at(epoch))
            for entry in self._entries.values()
            if entry.added <= epoch and (entry.folded is None or entry.folded > epoch)
        )
        return TableView(epoch, schema, tuple(files))

    def changes(self, after: Epoch, upto: Epoch) -> tuple[LogEntry, ...]:
        """The changes of the epochs after one and up to another, oldest first."""
        self._check_history(after)
        found = tuple(entry for entry in self._log if after < entry.epoch <= upto)
        if found and found[0].epoch < self._rewritten <= upto:
            raise HistoryGone(
                f"changes of table {self.table} from before epoch {self._rewritten} have other "
                "columns, and cannot be read together with later ones",
                hint="Read them up to that epoch, or begin after it.",
            )
        return found

    @property
    def retired(self) -> frozenset[str]:
        """The names, in lower case, of columns that files still hold though they were dropped."""
        return frozenset(name.lower() for name in self._retired)

    def evolve(self, wanted: Schema) -> Schema:
        """Accept a new schema, or say why not."""
        accepted = self.schema.evolve(wanted)
        # Readers of Delta tables may ignore the case of names.
        taken = {name.lower() for name in (*self._retired, *self.schema.names)}
        new = (name for name in accepted.names if name not in self.schema.names)
        back = [name for name in new if name.lower() in taken]
        if back and self._entries:
            raise SchemaError(
                f'column "{back[0]}" was dropped and cannot be added again under that name',
                detail="Stored files still hold the values of the dropped column.",
                hint="Choose another name.",
            )
        return accepted

    def apply(self, epoch: Epoch, commit: TableCommit) -> None:
        """Add one epoch's commit."""
        self._check_fits(epoch, commit)
        anew = self._is_rewrite(commit)
        for file in commit.added:
            self._entries[file.path] = _Entry(file, epoch)
        for path in commit.folded:
            self._entries[path].folded = epoch
        for path, vector in commit.dead:
            self._entries[path].vectors.append((epoch, vector))
        inserts = () if commit.changes else commit.inserted
        if commit.changes or inserts:
            self._log.append(LogEntry(epoch, commit.version, commit.changes, inserts))
        if commit.schema is not None:
            if anew:
                self._retired, self._rewritten = set(), epoch
            elif self.version >= 0:
                self._retired |= set(self.schema.names) - set(commit.schema.names)
            self._schemas.append((epoch, commit.schema))
        self.epoch = epoch
        self.version = commit.version

    def expired(self, horizon: Epoch) -> Iterator[str]:
        """The files that no epoch from `horizon` on needs."""
        needed = set(self._needed(horizon))
        for path in self.paths():
            if path not in needed:
                yield path

    def advance_horizon(self, horizon: Epoch) -> None:
        """Forget what only epochs before `horizon` need.

        The files that go must be collected first, or be found as orphans later: nothing names
        them any more.
        """
        if horizon <= self.horizon:
            return
        self.horizon = horizon
        older_versions = [entry.version for entry in self._log if entry.epoch <= horizon]
        self.horizon_version = max([self.horizon_version, *older_versions])
        self._log = [entry for entry in self._log if entry.epoch > horizon]
        kept = {file.path for entry in self._log for file in entry.inserts}
        for path, entry in list(self._entries.items()):
            if entry.folded is not None and entry.folded <= horizon and path not in kept:
                del self._entries[path]
                continue
            older = [place for place, (since, _) in enumerate(entry.vectors) if since <= horizon]
            if older:
                entry.vectors = entry.vectors[older[-1] :]
        older_schemas = [pair for pair in self._schemas if pair[0] <= horizon]
        if older_schemas:
            self._schemas = [older_schemas[-1]] + [p for p in self._schemas if p[0] > horizon]

    def paths(self) -> Iterator[str]:
        """Every file that this manifest names, each once."""
        yield from dict.fromkeys(self._needed(self.horizon))

    def copy(self) -> "Manifest":
        """An independent copy."""
        other = Manifest(self.table, self.schema, self.created)
        other.epoch, other.version = self.epoch, self.version
        other.horizon, other.horizon_version = self.horizon, self.horizon_version
        other._schemas = list(self._schemas)
        other._retired = set(self._retired)
        other._rewritten = self._rewritten
        other._entries = {
            path: _Entry(entry.file, entry.added, entry.folded, list(entry.vectors))
            for path, entry in self._entries.items()
        }
        other._log = list(self._log)
        return other

    def encode(self) -> bytes:
        """Write it down."""
        stored = _Stored(
            format=_FORMAT,
            table=self.table,
            created=self.created,
            epoch=self.epoch,
            version=self.version,
            horizon=self.horizon,
            horizon_version=self.horizon_version,
            schemas=self._schemas,
            retired=sorted(self._retired),
            entries=list(self._entries.values()),
            log=self._log,
            rewritten=self._rewritten,
        )
        return zlib.compress(_STORED.dump_json(stored), 1)

    @classmethod
    def decode(cls, content: bytes) -> "Manifest":
        """Read back what `encode` wrote."""
        try:
            text = zlib.decompress(content)
            if (found := json.loads(text)["format"]) not in (1, _FORMAT):
                raise DamagedState(f"a table's list of files has the unknown format {found}")
            stored = _STORED.validate_json(text)
        except (zlib.error, ValueError, KeyError, TypeError) as error:
            raise DamagedState(
                "a table's list of files cannot be read", detail=str(error)
            ) from error
        manifest = cls(stored.table, stored.schemas[-1][1], stored.created)
        manifest.epoch = stored.epoch
        manifest.version = stored.version
        manifest.horizon = stored.horizon
        manifest.horizon_version = stored.horizon_version
        manifest._schemas = stored.schemas
        manifest._retired = set(stored.retired)
        manifest._rewritten = stored.rewritten
        manifest._entries = {entry.file.path: entry for entry in stored.entries}
        manifest._log = stored.log
        return manifest

    def _needed(self, horizon: Epoch) -> Iterator[str]:
        for entry in self._entries.values():
            if entry.folded is None or entry.folded > horizon:
                yield entry.file.path
                for place, (_, vector) in enumerate(entry.vectors):
                    last = place + 1 == len(entry.vectors)
                    if last or entry.vectors[place + 1][0] > horizon:
                        yield vector.path
        for logged in self._log:
            if logged.epoch > horizon:
                yield from (file.path for file in logged.changes)
                yield from (file.path for file in logged.inserts)

    def _is_rewrite(self, commit: TableCommit) -> bool:
        """Whether no file from before stays under the new schema."""
        alive = {path for path, entry in self._entries.items() if entry.folded is None}
        if commit.schema is None or self.version < 0 or not alive <= set(commit.folded):
            return False
        if alive:
            return True
        try:
            self.evolve(commit.schema)
        except SchemaError:
            return True
        return False

    def _check_history(self, epoch: Epoch) -> None:
        if epoch < self.horizon and self.horizon > self.created:
            raise HistoryGone(
                f"epoch {epoch} of table {self.table} is no longer kept",
                detail=f"The oldest epoch that can be read is {self.horizon}.",
                hint="Raise retention_s, or pin the epochs that you still need.",
            )

    def _check_fits(self, epoch: Epoch, commit: TableCommit) -> None:
        story = [f"table {self.table} at epoch {self.epoch}, version {self.version}: {commit}"]

        def refuse(message: str) -> None:
            raise BrokenInvariant(message, story=story)

        if commit.table != self.table:
            refuse("a commit of another table")
        if epoch <= self.epoch and self.version >= 0:
            refuse(f"epoch {epoch} is not after epoch {self.epoch}")
        if commit.version != self.version + 1:
            refuse(f"version {commit.version} does not follow version {self.version}")
        paths = [file.path for file in commit.added]
        if len(set(paths)) != len(paths) or self._entries.keys() & set(paths):
            refuse("a file is added twice")
        alive = {p for p, entry in self._entries.items() if entry.folded is None}
        if unknown := set(commit.folded) - alive:
            refuse(f"files are folded that are not there: {sorted(unknown)}")
        for path, vector in commit.dead:
            if path not in (alive | set(paths)) - set(commit.folded):
                refuse(f"rows die in a file that is not there: {path}")
            known = self._entries.get(path)
            before = known.vectors[-1][1].cardinality if known and known.vectors else 0
            if vector.cardinality <= before and known is not None:
                refuse(f"a deletion vector of {path} shrinks from {before} rows")

"""The observer: looks at the world from outside and fails the simulation when it is wrong.

It belongs to no engine and asks none. It hears of every commit to the ledger, every file that is
written or deleted, and every acknowledgement, at the moment it happens, and checks:

    at a commit       the chain grows by one, under the current term; every file it names is
                      there; every table of a source equals the source's oracle at the position
                      that the ledger has for it, rows compared both ways; the change log, applied
                      exactly, leads from the epoch before to this one; relations come and go
                      whole; no horizon passes a pin
    at a version      it follows the last one, its epoch is in the ledger, and the files that it
                      shows are those of that epoch
    at a deletion     nothing from the horizon on needs the file
    at an             its position is in the ledger
    acknowledgement
"""

import json
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from headwater.errors import HeadwaterError
from headwater.ledger.codec import EncodedRecord, decode
from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.ids import TableId, Term
from headwater.model.record import EpochRecord
from headwater.model.table_commit import TableCommit
from headwater.state.deletion_vector import descriptor
from headwater.state.file_name import LOG_FOLDER
from headwater.state.manifest import LogEntry, Manifest
from headwater.testing.memory_storage import MemoryFiles
from headwater.testing.oracle import InexactChunk, apply_exact
from headwater.testing.simulator.file_reader import FileReader
from headwater.testing.simulator.upstream import SCHEMA, Rows, Upstream


class Divergence(AssertionError):
    """The world is not as it must be."""


@dataclass(slots=True)
class SeenTable:
    """One table as the ledger describes it."""

    name: str
    folder: str
    source: int
    upstream: str
    manifest: Manifest
    rows: Rows = field(default_factory=dict)
    versions: dict[int, Epoch] = field(default_factory=dict)
    published: int = -1
    delta: dict[str, Any] = field(default_factory=dict)
    """What a reader of the Delta table sees: its files, each with its deletion vector."""


@dataclass(slots=True)
class SeenSource:
    """One source as the catalog has it."""

    name: str
    upstream: Upstream


class Observer:
    """Knows all that is committed, and nothing else."""

    def __init__(  # noqa: PLR0913  one argument per thing it looks at
        self,
        *,
        ledger: sqlite3.Connection,
        files: MemoryFiles,
        reader: FileReader,
        upstreams: list[Upstream],
        tell: Callable[[str], None],
        stop: Callable[[BaseException], None],
    ) -> None:
        self.head = NO_EPOCH
        self.tables: dict[TableId, SeenTable] = {}
        self.sources: dict[int, SeenSource] = {}
        self.positions: dict[str, int] = {}
        self.history: list[tuple[Epoch, dict[str, int]]] = []
        """Every committed epoch with the positions in the ledger after it."""
        self.created: set[int] = set()
        """The upstreams that ever had a source, by number."""
        self.dropped: set[int] = set()
        """Those whose source was dropped."""
        self._folders: set[str] = set()
        self._ledger = ledger
        self._files = files
        self._reader = reader
        self._upstreams = upstreams
        self._tell = tell
        self._stop = stop

    def fail(self, message: str) -> NoReturn:
        """The world is wrong: nothing goes on, whoever is about to catch this."""
        self._tell(f"DIVERGENCE {message}")
        divergence = Divergence(message)
        self._stop(divergence)
        raise divergence

    # What happens

    def transaction_done(self) -> None:
        """A transaction on the ledger's database is durable."""
        term, head = self._ledger.execute("SELECT term, head FROM hw_fence").fetchone()
        if head == self.head:
            self._follow_catalog()
            return
        row = self._ledger.execute(
            'SELECT epoch, "after", term, format, checksum, body FROM hw_epoch WHERE epoch = ?',
            (head,),
        ).fetchone()
        if row is None:
            self.fail(f"the ledger's head is {head}, which has no record")
        names = ("epoch", "after", "term", "format", "checksum", "body")
        record = decode(EncodedRecord(**dict(zip(names, row, strict=True))))
        self._commit(record, Term(term))

    def file_written(self, path: str) -> None:
        """A file is there that was not there before."""
        folder, _, name = path.partition("/")
        if name.startswith(f"{LOG_FOLDER}/"):
            self._publish(folder, int(name[-25:-5]), self._files.content[path])

    def file_deleted(self, path: str) -> None:
        """A file is gone."""
        folder, _, name = path.partition("/")
        table = self._table_in(folder)
        if table is None:
            return
        if name.startswith(f"{LOG_FOLDER}/"):
            self.fail(f"a version of {table.name} was deleted: {name}")
        if name in table.manifest.paths():
            self.fail(
                f"a file of {table.name} was deleted that epochs from {table.manifest.horizon} on "
                f"need"
            )

    def acknowledged(self, upstream: Upstream, position: int) -> None:
        """An engine has told an upstream that it may forget."""
        known = self.positions.get(upstream.name, 0)
        current = [s for s in self.sources.values() if s.upstream is upstream]
        if current and position > known:
            self.fail(
                f"{upstream.name} was told to forget everything up to {position}, "
                f"but the ledger has {known}"
            )
        upstream.acknowledged = max(upstream.acknowledged, position)

    # Questions

    def source_named(self, name: str) -> SeenSource | None:
        """The source that exists under a name."""
        return next((s for s in self.sources.values() if s.name == name), None)

    def expect_visible(self, epoch: Epoch) -> None:
        """Fail unless an epoch is in the ledger and all of it is published."""
        if epoch not in (known for known, _ in self.history):
            self.fail(f"epoch {epoch} was said to be committed and is not in the ledger")
        for table in self.tables.values():
            due = max((v for v, at in table.versions.items() if at <= epoch), default=-1)
            if table.published < due:
                self.fail(
                    f"epoch {epoch} was said to be visible, but {table.name} shows version "
                    f"{table.published} and not {due}"
                )

    def expected_rows(self, table: SeenTable, epoch: Epoch) -> Rows:
        """What a table must hold at an epoch."""
        positions = next((p for at, p in reversed(self.history) if at <= epoch), {})
        source = self.sources[table.source]
        return source.upstream.rows_at(positions.get(source.name, 0))[table.upstream]

    def check_history(self, table: SeenTable, epoch: Epoch) -> None:
        """Fail unless an old epoch can be read, as it was."""
        try:
            rows = self._reader.rows(table.folder, table.manifest.view_at(epoch))
        except (HeadwaterError, KeyError) as error:
            self.fail(f"epoch {epoch} of {table.name} cannot be read: {error}")
        self._compare(table, rows, self.expected_rows(table, epoch), f"epoch {epoch}")

    def unneeded_files(self, *, strays: bool) -> list[str]:
        """The files that no epoch needs, by full path; `strays` lie where no table is."""
        folders = {table.folder for table in self.tables.values()}
        needed = {
            f"{table.folder}/{path}"
            for table in self.tables.values()
            for path in table.manifest.paths()
        }
        logs = {f"{table.folder}/{LOG_FOLDER}" for table in self.tables.values()}
        return [
            path
            for path in self._files.content
            if path not in needed
            and path.rsplit("/", 1)[0] not in logs
            and (strays or path.partition("/")[0] in folders)
        ]

    # Commits

    def _commit(self, record: EpochRecord, term: Term) -> None:
        self._tell(
            f"epoch {record.epoch} of term {record.term}: positions {dict(record.positions)}, "
            f"versions {[(c.table, c.version) for c in record.tables]}"
        )
        if record.after != self.head or record.epoch <= record.after:
            self.fail(f"epoch {record.epoch} follows {record.after}, but the head is {self.head}")
        if record.term != term:
            self.fail(f"term {record.term} committed epoch {record.epoch} in the time of {term}")
        self._follow_catalog()
        for name, position in record.positions.items():
            if position:
                self.positions[name] = int(position)
            else:
                self.positions.pop(name, None)
        self.head = record.epoch
        self.history.append((record.epoch, dict(self.positions)))
        for commit in record.tables:
            if commit.table in self.tables:
                self._apply(self.tables[commit.table], record.epoch, commit)
        self._check_created()
        touched = {self.tables[c.table].source for c in record.tables if c.table in self.tables}
        for number, source in self.sources.items():
            if number in touched or source.name in record.positions:
                self._check_source(number, source)
        self._check_horizons(record)

    def _apply(self, table: SeenTable, epoch: Epoch, commit: TableCommit) -> None:
        try:
            table.manifest.apply(epoch, commit)
        except HeadwaterError as error:
            self.fail(f"a commit of {table.name} does not fit: {error}")
        table.versions[commit.version] = epoch
        entries = table.manifest.changes(Epoch(epoch - 1), epoch)
        table.rows = self._applied(table, entries)

    def _applied(self, table: SeenTable, entries: tuple[LogEntry, ...]) -> Rows:
        rows: dict[tuple[Any, ...], dict[str, Any]]
        rows = {(key,): {"id": key, "v": value} for key, value in table.rows.items()}
        try:
            for entry in entries:
                changes = self._reader.changes(table.folder, entry)
                apply_exact(rows, changes, SCHEMA.key)
        except (InexactChunk, KeyError, HeadwaterError) as error:
            self.fail(f"the change log of {table.name} is wrong: {error}")
        return {key: str(row["v"]) for (key,), row in rows.items()}

    def _check_source(self, number: int, source: SeenSource) -> None:
        position = self.positions.get(source.name, 0)
        if position > source.upstream.end:
            self.fail(f"{source.name} is at {position}, beyond its end {source.upstream.end}")
        expected = source.upstream.rows_at(position)
        for table in self.tables.values():
            if table.source != number:
                continue
            try:
                rows = self._reader.rows(table.folder, table.manifest.view())
            except (HeadwaterError, KeyError) as error:
                self.fail(f"{table.name} cannot be read at its newest epoch: {error}")
            wanted = expected[table.upstream]
            self._compare(table, rows, wanted, f"epoch {self.head}, position {position}")
            if table.rows != wanted:
                self.fail(f"the changes of {table.name} lead to {table.rows}, not to {wanted}")

    def _compare(
        self, table: SeenTable, rows: list[tuple[int, str]], expected: Rows, when: str
    ) -> None:
        found = dict(rows)
        if len(found) != len(rows):
            self.fail(f"{table.name} at {when} has a key twice: {sorted(rows)}")
        if found != expected:
            missing = {k: v for k, v in expected.items() if found.get(k) != v}
            extra = {k: v for k, v in found.items() if expected.get(k) != v}
            self.fail(f"{table.name} at {when}: missing {missing}, extra {extra}")

    def _check_horizons(self, record: EpochRecord) -> None:
        pins = [Epoch(e) for (e,) in self._ledger.execute("SELECT epoch FROM hw_pin")]
        for table, horizon in record.horizons.items():
            if horizon > min([record.epoch, *pins]):
                self.fail(f"epoch {record.epoch} forgets up to {horizon}, pins are at {pins}")
            if TableId(table) in self.tables:
                self.tables[TableId(table)].manifest.advance_horizon(horizon)

    # The catalog

    def _follow_catalog(self) -> None:
        rows = self._ledger.execute(
            "SELECT id, name, options FROM hw_source WHERE dropped IS NULL"
        ).fetchall()
        there = {row[0] for row in rows}
        for number in [number for number in self.sources if number not in there]:
            gone = self.sources.pop(number)
            self.dropped.add(gone.upstream.number)
            self._tell(f"source {gone.name} is dropped")
        for number, name, options in rows:
            if number not in self.sources:
                upstream = self._upstreams[int(json.loads(json.loads(options)["number"]))]
                self.sources[number] = SeenSource(name, upstream)
                self.created.add(upstream.number)
                self._tell(f"source {name} is created")
        tables = self._ledger.execute(
            "SELECT id, name, folder, source_id, upstream FROM hw_table WHERE dropped IS NULL"
        ).fetchall()
        kept = {TableId(row[0]) for row in tables}
        for table in [table for table in self.tables if table not in kept]:
            del self.tables[table]
        for id_, name, folder, source, upstream in tables:
            if TableId(id_) not in self.tables:
                manifest = Manifest(TableId(id_), SCHEMA)
                self.tables[TableId(id_)] = SeenTable(name, folder, source, upstream, manifest)
                self._folders.add(folder)

    def _check_created(self) -> None:
        for number, source in self.sources.items():
            names = {t.upstream for t in self.tables.values() if t.source == number}
            if names != set(source.upstream.tables):
                self.fail(f"source {source.name} has the tables {sorted(names)}")
        for table in self.tables.values():
            if table.source not in self.sources:
                self.fail(f"table {table.name} is there without its source")
            if table.manifest.version < 0:
                self.fail(f"table {table.name} is in the catalog and has no epoch")

    # Delta versions

    def _table_in(self, folder: str) -> SeenTable | None:
        return next((t for t in self.tables.values() if t.folder == folder), None)

    def _publish(self, folder: str, version: int, content: bytes) -> None:
        table = self._table_in(folder)
        actions = [json.loads(line) for line in content.splitlines()]
        epoch = next(a["txn"]["version"] for a in actions if "txn" in a)
        self._tell(f"version {version} of {folder} shows epoch {epoch}")
        if table is None:
            # One that is dropped may still be published, also by a zombie; nobody sees it.
            if folder not in self._folders:
                self.fail(f"version {version} of {folder} is published, which the ledger lacks")
            return
        if table.versions.get(version) != epoch:
            self.fail(f"version {version} of {table.name} shows epoch {epoch} before the ledger")
        if version != table.published + 1:
            self.fail(f"version {version} of {table.name} follows version {table.published}")
        table.published = version
        for action in actions:
            if "remove" in action:
                del table.delta[action["remove"]["path"]]
        for action in actions:
            if "add" in action:
                table.delta[action["add"]["path"]] = action["add"].get("deletionVector")
        wanted = {
            live.file.path: None if live.dead is None else descriptor(live.dead)
            for live in table.manifest.view_at(Epoch(epoch)).files
        }
        if table.delta != wanted:
            self.fail(f"version {version} of {table.name} shows other files than epoch {epoch} has")

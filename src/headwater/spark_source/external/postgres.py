"""PostgreSQL as the readers need it.

A snapshot is exported by a session that stays open, and tasks take it on: what they will see is
known before they begin. Which range of the key a change falls into is asked of the server, in
the type and collation of the column: its order is not ours.

Values that the log did not send (TOAST, unchanged by the update) are read by key when the change is
delivered. By then the row may have changed again, and so may the value: the log's next change of
that key says the same once more. With REPLICA IDENTITY FULL the log has all values.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.cdc.external_table import (
    COMMIT_END,
    COMMITTED_AT,
    UNCHANGED,
    ExternalSchema,
    LogBatch,
    Seen,
    SnapshotChunk,
    Split,
    SplitOptions,
)
from headwater.cdc.offset import CdcOffset, PostgresOffset
from headwater.cdc.postgres.connecting import session
from headwater.cdc.postgres.database import PostgresDatabase
from headwater.cdc.postgres.keys import spelled_keys
from headwater.cdc.postgres.log import PostgresLog
from headwater.cdc.postgres.options import KNOWN, PostgresOptions, parse_options
from headwater.cdc.postgres.schema import read_table
from headwater.cdc.postgres.seen import PostgresSeen
from headwater.cdc.postgres.slot import ServerIdentity
from headwater.cdc.postgres.splits import PLACE, compared
from headwater.cdc.postgres.table import ExportedSnapshot, PostgresTable, SnapshotHolder
from headwater.cdc.postgres.types import TypeCatalog
from headwater.errors import BrokenInvariant, ConfigError, UserError
from headwater.model.change import ChangeType
from headwater.model.reserved import CHANGE_TYPE, COMMIT_TIMESTAMP
from headwater.model.spelling import sql_quoted
from headwater.spark_source.external.upstream import (
    COMMIT_POSITION,
    Numbers,
    Start,
    UpstreamTable,
)

OPTIONS = KNOWN
_NO_SNAPSHOT = frozenset({"22023", "42704"})
_KEYS_AT_ONCE = 5000
_FULL = "f"


@dataclass(frozen=True, slots=True)
class PostgresUpstream:
    """One PostgreSQL database."""

    options: PostgresOptions
    given: Collection[str] = field(default=frozenset())
    moment_first: bool = True

    @staticmethod
    def parse(options: Mapping[str, str]) -> "PostgresUpstream":
        """From options as the user wrote them; publication and slot have one name."""
        said = dict(options)
        if said.get("slot.name"):
            said.setdefault("publication.name", said["slot.name"])
        return PostgresUpstream(parse_options(said), frozenset(options))

    def open_table(self, name: str, columns: Sequence[str] | None) -> PostgresTable:
        """A table with these columns, and those of its key."""
        database = PostgresDatabase(self.options)
        if columns is None:
            return database.open_table(name)
        with session(self.options) as connection:
            # Columns that are not wanted may have types that we do not know.
            types = TypeCatalog(unknown_as_text=True)
            key = read_table(connection, types, name, default_schema=self.options.schema).key
        return database.open_table(name, [*columns, *(each for each in key if each not in columns)])

    def whole(self, table: UpstreamTable) -> Split:
        """All of a table as one split."""
        return Split(number=0, columns=table.schema.key or PLACE)

    @contextmanager
    def held(self) -> Iterator[str]:
        """A moment that is kept while the block runs."""
        holder = SnapshotHolder(self.options)
        try:
            yield holder.snapshot.name
        finally:
            holder.close()

    def at(self, table: UpstreamTable, snapshot: str) -> "_Snapshotted":
        """The table as somebody's snapshot sees it."""
        assert isinstance(table, PostgresTable)
        nothing = PostgresOffset(0)
        exported = ExportedSnapshot(
            name=snapshot, seen=PostgresSeen(0, 0), low=nothing, high=nothing
        )
        return _Snapshotted(table.at(exported), snapshot)

    def require_stream(self) -> None:
        """A slot belongs to one query, which must name it."""
        if "slot.name" not in self.given:
            raise ConfigError(
                "a stream needs the option slot.name",
                detail="The server keeps its log for a replication slot. Each query has its own, "
                "and the slot stays when the query ends.",
                hint='Add .option("slot.name", "my_query"). It is made if it does not exist.',
            )

    def start(self, table: UpstreamTable) -> Start:
        """Make slot and publication. Replay: those that are there are used."""
        database = PostgresDatabase(self.options)
        log = database.prepare([table.name])
        server = str(database.identity())
        return Start(log=log, server=server, to_see=database.running())

    def open_log(self, table: UpstreamTable, server: str) -> "_Log":
        """The log of a table."""
        return _Log(self.options, table, ServerIdentity.parse(server))

    def hold(self) -> "_Held":
        """A moment for tasks to read."""
        return _Held(SnapshotHolder(self.options))

    def visible(self) -> Seen:
        """What a snapshot that is taken from now on sees at least."""
        with session(self.options) as connection:
            row = connection.execute("SELECT pg_current_snapshot()::text").fetchone()
            assert row is not None
            return PostgresSeen.of(row[0])

    def seen(self, text: str) -> Seen:
        """What a held snapshot saw."""
        return PostgresSeen.parse(text)

    def ranges_of(
        self, table: UpstreamTable, keys: pa.Table, bounds: Sequence[tuple[str, ...]]
    ) -> Numbers:
        """For each key, how many of the bounds are not above it."""
        assert isinstance(table, PostgresTable)
        if not bounds:
            return np.zeros(keys.num_rows, dtype=np.int64)
        described, key = table.described, table.schema.key
        names = ", ".join(sql_quoted(name) for name in key)
        cases = " ".join(
            f"WHEN {compared(described, key, '<', bound)} THEN {place}"
            for place, bound in enumerate(bounds)
        )
        typed = ", ".join(
            f"u.k{place}::{described.column(name).upstream_type}" for place, name in enumerate(key)
        )
        unnested = ", ".join("%s::text[]" for _ in key)
        aliases = ", ".join(f"k{place}" for place in range(len(key)))
        # The first, empty half gives the columns their collation.
        query = (
            f"SELECT CASE {cases} ELSE {len(bounds)} END FROM ("
            f"SELECT {names}, 0::bigint AS _hw_n FROM {described.sql_from} WHERE false UNION ALL "
            f"SELECT {typed}, u.n FROM unnest({unnested}) WITH ORDINALITY u({aliases}, n)"
            ") keys ORDER BY _hw_n"
        )
        texts = list(zip(*spelled_keys(keys.select(list(key))), strict=True))
        with session(self.options) as connection:
            rows = connection.execute(query, [list(each) for each in texts]).fetchall()
        return np.array([row[0] for row in rows], dtype=np.int64)

    def complete(self, table: UpstreamTable, changes: pa.Table) -> pa.Table:
        """Changes with the values that the log did not send, as the rows have them now."""
        assert isinstance(table, PostgresTable)
        bits = changes.column(UNCHANGED).to_numpy()
        lacking = np.flatnonzero(bits)
        if not lacking.size:
            return changes
        keys = changes.select(list(table.schema.key)).take(pa.array(lacking))
        rows, places = _rows_now(table, keys)
        for number, name in enumerate(table_columns(changes)):
            mine = np.flatnonzero((bits[lacking] >> number) & 1) if number < 63 else lacking[:0]
            if not mine.size or name not in rows.column_names:
                continue
            sources = np.arange(changes.num_rows, dtype=np.float64)
            sources[lacking[mine]] = places[mine] + changes.num_rows
            both = pa.chunked_array(
                [*changes.column(name).chunks, *rows.column(name).chunks], changes.column(name).type
            )
            taken = both.take(pa.array(sources, from_pandas=True).cast(pa.int64()))
            changes = changes.set_column(number, name, taken)
        return changes

    def told(self, table: UpstreamTable, changes: pa.Table) -> pa.Table:
        """Changes with the columns of a stream; a preimage of the key alone says nothing."""
        assert isinstance(table, PostgresTable)
        if table.described.replica_identity != _FULL:
            kinds = changes.column(CHANGE_TYPE)
            changes = changes.filter(pc.not_equal(kinds, ChangeType.UPDATE_PREIMAGE.value))
        ends = changes.column(COMMIT_END).to_pylist()
        texts = [self.spelled(PostgresOffset(end)) for end in ends]
        changes = changes.append_column(COMMIT_POSITION, pa.array(texts, pa.string()))
        return changes.append_column(COMMIT_TIMESTAMP, changes.column(COMMITTED_AT))

    def spelled(self, offset: CdcOffset) -> str:
        """An LSN with all its zeros, which PostgreSQL reads as well, and which sorts as text."""
        assert isinstance(offset, PostgresOffset)
        return f"{offset.lsn >> 32:08X}/{offset.lsn & 0xFFFFFFFF:08X}"


def table_columns(changes: pa.Table) -> list[str]:
    """The table's own columns of some changes, in the order of the log."""
    names = changes.column_names
    return list(names[: names.index(CHANGE_TYPE)])


class _Held:
    """A snapshot for the tasks of a micro-batch."""

    def __init__(self, holder: SnapshotHolder) -> None:
        self._holder = holder
        self.name = holder.snapshot.name
        self.seen: Seen = holder.snapshot.seen
        self.high: CdcOffset = holder.snapshot.high

    def close(self) -> None:
        self._holder.close()


class _Log:
    """The slot's log, of one table."""

    def __init__(
        self, options: PostgresOptions, table: UpstreamTable, identity: ServerIdentity
    ) -> None:
        self._log = PostgresLog(
            options, {table.name: table.schema}, identity=identity, commits=True
        )

    def current(self) -> CdcOffset:
        return self._log.current()

    def read(self, after: CdcOffset, *, max_bytes: int, upto: CdcOffset | None) -> LogBatch:
        assert upto is None or isinstance(upto, PostgresOffset)
        return self._log.read(after, max_bytes=max_bytes, upto=upto)

    def acknowledge(self, offset: CdcOffset) -> None:
        self._log.acknowledge(offset)

    def close(self) -> None:
        self._log.close()


@dataclass(frozen=True, slots=True)
class _Snapshotted:
    """A table under a snapshot of somebody else, who may have let go of it."""

    table: PostgresTable
    snapshot: str

    @property
    def name(self) -> str:
        return self.table.name

    @property
    def schema(self) -> ExternalSchema:
        return self.table.schema

    def splits(self, options: SplitOptions) -> Sequence[Split]:
        return self.table.splits(options)

    def divide(self, split: Split) -> Sequence[Split]:
        return self.table.divide(split)

    def read_chunk(
        self, split: Split, after: tuple[str, ...] | None, *, max_rows: int, max_bytes: int
    ) -> SnapshotChunk:
        try:
            return self.table.read_chunk(split, after, max_rows=max_rows, max_bytes=max_bytes)
        except UserError as error:
            if error.sqlstate in _NO_SNAPSHOT and "snapshot" in error.detail:
                raise UserError(
                    f'snapshot "{self.snapshot}" is not held any more',
                    detail="It ends when the session that exported it ends, and so do reads of it.",
                    hint="Hold it for as long as the DataFrame is used; a stream that was "
                    "interrupted takes another one when it is started again.",
                ) from None
            raise

    def close(self) -> None:
        self.table.close()


def _rows_now(table: PostgresTable, keys: pa.Table) -> tuple[pa.Table, Numbers]:
    """The rows of some keys as they stand, and where each key's row is; NaN where there is none."""
    wanted = [tuple(row.values()) for row in keys.to_pylist()]
    first: dict[tuple[object, ...], int] = {}
    for place, key in enumerate(wanted):
        first.setdefault(key, place)
    unique = keys.take(pa.array(list(first.values()), pa.int64()))
    pieces = [
        table.read_keys(unique.slice(begin, _KEYS_AT_ONCE)).rows
        for begin in range(0, unique.num_rows, _KEYS_AT_ONCE)
    ]
    rows = pa.concat_tables(pieces)
    found = {
        tuple(row.values()): place
        for place, row in enumerate(rows.select(list(table.schema.key)).to_pylist())
    }
    if len(found) != rows.num_rows:
        raise BrokenInvariant(f"{table.name} has two rows of one key")
    return rows, np.array([found.get(key, np.nan) for key in wanted], dtype=np.float64)

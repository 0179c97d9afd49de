"""The system tables inside the embedded database, put there when a query needs them."""

import duckdb
import pyarrow as pa

from headwater.system import calls, pg_fixed, pg_objects, rw_rows
from headwater.system.derived import DERIVED
from headwater.system.facts import SystemFacts, UserFact
from headwater.system.listing import RESERVED_WORDS, Listing
from headwater.system.relations import known

_FOLLOWING = {**pg_objects.BUILDERS, **rw_rows.FOLLOWING}
_COUNTED = "pg_catalog.pg_class"
_INCOMING = "incoming_rows"


class Shelf:
    """Puts tables into the database and knows which of them are still current."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._listing: Listing | None = None
        self._users: tuple[UserFact, ...] = ()
        self._following: set[str] = set()
        """Tables that are current as long as catalog and users stay as they are."""
        self._lasting: set[str] = set()
        """Tables and views that never change."""
        words = pa.table({"word": sorted(RESERVED_WORDS)})
        self._put("reserved", words)
        self._view(
            calls.KEYWORDS,
            "SELECT word, 'R' AS catcode, false AS barelabel, 'reserved' AS catdesc, "
            "'requires AS' AS baredesc FROM reserved",
        )

    def listing(self, facts: SystemFacts) -> Listing:
        """What the snapshot of these facts holds; kept as long as the snapshot is the same."""
        same = self._listing is not None and self._listing.snapshot is facts.snapshot
        if not same or self._users != facts.users:
            self._following.clear()
            self._users = facts.users
        if self._listing is None or self._listing.snapshot is not facts.snapshot:
            self._listing = Listing(facts.snapshot)
        return self._listing

    def provide(self, names: frozenset[str], facts: SystemFacts) -> None:
        """See to it that these relations are there and current."""
        for name in sorted(names):
            self._provide(name, facts)

    def _provide(self, name: str, facts: SystemFacts) -> None:
        if name in DERIVED:
            for needed in sorted(DERIVED[name].needs):
                self._provide(needed, facts)
            if name not in self._lasting:
                self._view(name, DERIVED[name].select(name))
                self._lasting.add(name)
        elif name in _FOLLOWING:
            if name not in self._following:
                self._follow(name, _FOLLOWING[name](facts, self.listing(facts)))
                self._following.add(name)
        elif name in rw_rows.ASKED:
            self._put(name, rw_rows.ASKED[name](facts, self.listing(facts)))
        elif name in pg_fixed.LIVE:
            self._put(name, pg_fixed.LIVE[name](facts))
        elif name not in self._lasting:
            self._put(name, pg_fixed.STATIC[name]() if name in pg_fixed.STATIC else _empty(name))
            self._lasting.add(name)

    def _follow(self, name: str, rows: pa.Table) -> None:
        if name != _COUNTED:
            self._put(name, rows)
            return
        # Counting rows may cost something, so it waits until a query shows the numbers.
        stored = f"{name}.stored"
        self._put(stored, rows)
        if name not in self._lasting:
            self._view(
                name,
                f"SELECT * REPLACE (CAST(hw_row_count(oid) AS FLOAT) AS reltuples, "
                f'hw_pages(oid) AS relpages) FROM "{stored}"',
            )
            self._lasting.add(name)

    def _put(self, name: str, rows: pa.Table) -> None:
        # A copy is worth it: the database plans with its own tables twice as fast.
        self._connection.register(_INCOMING, rows)
        relation = known().get(name)
        documents = [c.name for c in relation.columns if c.form == "jsonb"] if relation else []
        typed = ", ".join(f'CAST("{column}" AS JSON) AS "{column}"' for column in documents)
        columns = f"* REPLACE ({typed})" if typed else "*"
        self._connection.execute(
            f'CREATE OR REPLACE TEMP TABLE "{name}" AS SELECT {columns} FROM {_INCOMING}'
        )
        self._connection.unregister(_INCOMING)

    def _view(self, name: str, query: str) -> None:
        self._connection.execute(f'CREATE OR REPLACE TEMP VIEW "{name}" AS {query}')


def _empty(name: str) -> pa.Table:
    return known()[name].arrow.empty_table()

"""A source on a test server and its log, for the tests that read changes."""

from cdc_postgres_kit import drop_slots, options_of, run

from headwater.cdc.external_table import TRANSACTION, UNCHANGED
from headwater.cdc.postgres.database import PostgresDatabase
from headwater.cdc.postgres.log import PostgresLog
from headwater.model.reserved import CHANGE_TYPE, SEQ

LARGE = 64 << 20
OWN = (CHANGE_TYPE, SEQ, TRANSACTION, UNCHANGED)


class Source:
    """A source on some tables, and its log, from where the slot stands."""

    def __init__(self, url, *tables, **options):
        self.url = url
        self.options = options_of(url, **options)
        self.database = PostgresDatabase(self.options, wait_s=30.0)
        self.start = self.database.prepare(tables)
        self.schemas = {name: self.database.open_table(name).schema for name in tables}
        self.now = 0.0
        self.log = self.reopened()
        self.at = self.start

    def reopened(self, schemas=None, identity=None):
        return PostgresLog(
            self.options, schemas or self.schemas, identity=identity, clock=lambda: self.now
        )

    def read(self, max_bytes=LARGE):
        batch = self.log.read(self.at, max_bytes=max_bytes)
        assert batch.offset >= self.at
        self.at = batch.offset
        return batch

    def rows(self, table="t"):
        """Everything up to the end, as (kind, values...) of one table."""
        found = []
        while True:
            batch = self.read()
            found += shown(batch, table)
            if not batch.more:
                return found


def shown(batch, table="t"):
    if table not in batch.changes:
        return []
    return [
        (each[CHANGE_TYPE], *(value for name, value in each.items() if name not in OWN))
        for each in batch.changes[table].to_pylist()
    ]


def clean(url):
    """No tables, no slot, no publication of an earlier test."""
    drop_slots(url)
    run(
        url,
        "DROP PUBLICATION IF EXISTS headwater_test",
        "DROP SCHEMA public CASCADE",
        "CREATE SCHEMA public",
    )

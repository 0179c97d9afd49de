"""The ledger's tables as they are after all migrations.

    hw_schema     one row per migration that has run
    hw_fence      one row: the term, who holds it, and the last epoch in the chain
    hw_epoch      one row per committed epoch, with the whole record in its body
    hw_fact       the latest value of everything that records speak about
    hw_manifest   complete lists of a table's files, so that reading need not begin at epoch one
    hw_pin        epochs that somebody still reads
    hw_delivery   how far each sink's target is, and the delivery that is under way to it

Migrations create the tables and hold definitions of their own, so that an edit here cannot
change what an old version did; a test compares these definitions with a migrated database.
"""

from sqlalchemy import BigInteger, Column, Integer, LargeBinary, MetaData, Table, Text

METADATA = MetaData()

SCHEMA = Table(
    "hw_schema",
    METADATA,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("applied_at", Text, nullable=False),
)

FENCE = Table(
    "hw_fence",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("term", BigInteger, nullable=False),
    Column("host", Text, nullable=False),
    Column("pid", BigInteger, nullable=False),
    Column("machine", Text, nullable=False),
    Column("started", Text, nullable=False),
    Column("token", Text, nullable=False),
    Column("heartbeat_at", BigInteger, nullable=False),
    Column("head", BigInteger, nullable=False),
)

EPOCH = Table(
    "hw_epoch",
    METADATA,
    Column("epoch", BigInteger, primary_key=True, autoincrement=False),
    Column("after", BigInteger, nullable=False, unique=True),
    Column("term", BigInteger, nullable=False),
    Column("format", Integer, nullable=False),
    Column("checksum", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

FACT = Table(
    "hw_fact",
    METADATA,
    Column("kind", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("checksum", BigInteger, nullable=False),
)

MANIFEST = Table(
    "hw_manifest",
    METADATA,
    Column("table_id", BigInteger, primary_key=True, autoincrement=False),
    Column("epoch", BigInteger, primary_key=True, autoincrement=False),
    Column("checksum", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

PIN = Table(
    "hw_pin",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("epoch", BigInteger, nullable=False),
)

DELIVERY = Table(
    "hw_delivery",
    METADATA,
    Column("sink", Text, primary_key=True),
    Column("delivered", BigInteger, nullable=False),
    Column("shown", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("receipts", LargeBinary, nullable=False),
    Column("checksum", BigInteger, nullable=False),
)

"""The catalog's tables, created by the ledger's migrations.

The rooms on this level do not import each other, so the definitions stand here once more; a test
compares them with a migrated database.
"""

from sqlalchemy import BigInteger, Boolean, Column, MetaData, Table, Text

METADATA = MetaData()

SOURCE = Table(
    "hw_source",
    METADATA,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("options", Text, nullable=False),
    Column("defined_at", Text, nullable=False),
    Column("created", BigInteger, nullable=False),
    Column("dropped", BigInteger),
)

TABLE = Table(
    "hw_table",
    METADATA,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
    Column("columns", Text, nullable=False),
    Column("source_id", BigInteger),
    Column("upstream", Text, nullable=False),
    Column("folder", Text, nullable=False, unique=True),
    Column("append_only", Boolean, nullable=False),
    Column("defined_at", Text, nullable=False),
    Column("created", BigInteger, nullable=False),
    Column("dropped", BigInteger),
    Column("namespace", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("detail", Text, nullable=False),
)

OBJECT = Table(
    "hw_object",
    METADATA,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", Text, nullable=False),
    Column("namespace", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("created", BigInteger, nullable=False),
)

SETTING = Table(
    "hw_setting",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

COUNTER = Table(
    "hw_counter",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("value", BigInteger, nullable=False),
)

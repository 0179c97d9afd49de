"""The first schema: the fence, the chain of epochs, facts, manifests and the catalog."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    insert,
    text,
)


def upgrade(connection: Connection) -> None:
    """Create the tables, the empty fence row and the counter of ids.

    Replay: runs once, in the transaction that also records its number.
    """
    metadata = MetaData()
    fence = Table(
        "hw_fence",
        metadata,
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
    Table(
        "hw_epoch",
        metadata,
        Column("epoch", BigInteger, primary_key=True, autoincrement=False),
        Column("after", BigInteger, nullable=False, unique=True),
        Column("term", BigInteger, nullable=False),
        Column("format", Integer, nullable=False),
        Column("checksum", BigInteger, nullable=False),
        Column("body", LargeBinary, nullable=False),
    )
    Table(
        "hw_fact",
        metadata,
        Column("kind", Text, primary_key=True),
        Column("name", Text, primary_key=True),
        Column("value", Text, nullable=False),
        Column("epoch", BigInteger, nullable=False),
        Column("checksum", BigInteger, nullable=False),
    )
    Table(
        "hw_manifest",
        metadata,
        Column("table_id", BigInteger, primary_key=True, autoincrement=False),
        Column("epoch", BigInteger, primary_key=True, autoincrement=False),
        Column("checksum", BigInteger, nullable=False),
        Column("body", LargeBinary, nullable=False),
    )
    counter = _catalog_tables(metadata)
    metadata.create_all(connection, checkfirst=False)
    connection.execute(
        insert(fence).values(
            id=1, term=0, host="", pid=0, machine="", started="", token="", heartbeat_at=0, head=0
        )
    )
    connection.execute(insert(counter).values(name="relation", value=0))


def _catalog_tables(metadata: MetaData) -> Table:
    live = text("dropped IS NULL")
    source = Table(
        "hw_source",
        metadata,
        Column("id", BigInteger, primary_key=True, autoincrement=False),
        Column("name", Text, nullable=False),
        Column("kind", Text, nullable=False),
        Column("options", Text, nullable=False),
        Column("defined_at", Text, nullable=False),
        Column("created", BigInteger, nullable=False),
        Column("dropped", BigInteger),
    )
    table = Table(
        "hw_table",
        metadata,
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
    )
    for relation in (source, table):
        Index(
            f"{relation.name}_live_name",
            relation.c.name,
            unique=True,
            sqlite_where=live,
            postgresql_where=live,
        )
    return Table(
        "hw_counter",
        metadata,
        Column("name", Text, primary_key=True),
        Column("value", BigInteger, nullable=False),
    )

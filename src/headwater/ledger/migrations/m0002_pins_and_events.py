"""Named pins, and the event log that the dashboard and `headwater story` show."""

from sqlalchemy import BigInteger, Column, Connection, Integer, MetaData, Table, Text


def upgrade(connection: Connection) -> None:
    """Create both tables.

    Replay: runs once, in the transaction that also records its number.
    """
    metadata = MetaData()
    Table(
        "hw_pin",
        metadata,
        Column("name", Text, primary_key=True),
        Column("epoch", BigInteger, nullable=False),
    )
    Table(
        "hw_event",
        metadata,
        Column(
            "id",
            BigInteger().with_variant(Integer, "sqlite"),
            primary_key=True,
            autoincrement=True,
        ),
        Column("at", Text, nullable=False),
        Column("epoch", BigInteger, nullable=False),
        Column("kind", Text, nullable=False, index=True),
        Column("subject", Text, nullable=False),
        Column("text", Text, nullable=False),
        Column("details", Text, nullable=False),
    )
    metadata.create_all(connection, checkfirst=False)

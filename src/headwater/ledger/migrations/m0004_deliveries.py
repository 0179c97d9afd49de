"""How far each sink's target is, and the delivery that is under way to it."""

from sqlalchemy import BigInteger, Column, Connection, LargeBinary, MetaData, Table, Text


def upgrade(connection: Connection) -> None:
    """Create the table.

    Replay: runs once, in the transaction that also records its number.
    """
    metadata = MetaData()
    Table(
        "hw_delivery",
        metadata,
        Column("sink", Text, primary_key=True),
        Column("delivered", BigInteger, nullable=False),
        Column("shown", BigInteger, nullable=False),
        Column("state", Text, nullable=False),
        Column("epoch", BigInteger, nullable=False),
        Column("rows", BigInteger, nullable=False),
        Column("receipts", LargeBinary, nullable=False),
        Column("checksum", BigInteger, nullable=False),
    )
    metadata.create_all(connection, checkfirst=False)

"""Schemas, views, indexes, system settings, and what SQL knows of a table."""

from sqlalchemy import BigInteger, Column, Connection, Index, MetaData, Table, Text, text

_ADDED = (
    ("hw_table", "namespace", "public"),
    ("hw_table", "kind", "table"),
    ("hw_table", "detail", "{}"),
)


def upgrade(connection: Connection) -> None:
    """Widen hw_table, make names unique by schema, create the tables of objects and settings.

    Replay: runs once, in the transaction that also records its number.
    """
    for table, column, default in _ADDED:
        connection.execute(
            text(f"ALTER TABLE {table} ADD COLUMN {column} TEXT NOT NULL DEFAULT '{default}'")
        )
    connection.execute(text("DROP INDEX hw_table_live_name"))
    connection.execute(
        text(
            "CREATE UNIQUE INDEX hw_table_live_name ON hw_table (namespace, name) "
            "WHERE dropped IS NULL"
        )
    )
    metadata = MetaData()
    objects = Table(
        "hw_object",
        metadata,
        Column("id", BigInteger, primary_key=True, autoincrement=False),
        Column("kind", Text, nullable=False),
        Column("namespace", Text, nullable=False),
        Column("name", Text, nullable=False),
        Column("body", Text, nullable=False),
        Column("created", BigInteger, nullable=False),
    )
    Index("hw_object_name", objects.c.kind, objects.c.namespace, objects.c.name, unique=True)
    Table(
        "hw_setting",
        metadata,
        Column("name", Text, primary_key=True),
        Column("value", Text, nullable=False),
    )
    metadata.create_all(connection, checkfirst=False)

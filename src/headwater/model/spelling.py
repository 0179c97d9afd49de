"""How names are written in Spark SQL and in PostgreSQL's."""


def quoted(name: str) -> str:
    """A name as Spark SQL writes it, whatever is in it."""
    return f"`{name.replace('`', '``')}`"


def sql_quoted(name: str) -> str:
    """A name as PostgreSQL writes it, whatever is in it."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'

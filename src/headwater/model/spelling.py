"""How names are written in Spark SQL."""


def quoted(name: str) -> str:
    """A name as Spark SQL writes it, whatever is in it."""
    return f"`{name.replace('`', '``')}`"

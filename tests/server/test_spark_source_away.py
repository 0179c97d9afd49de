"""The Spark data source on a workspace whose ledger and tables are elsewhere."""

import os
import uuid

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from s3_server import s3_server
from sqlalchemy import make_url

from engine_kit import CALM, bank_tap, plain
from headwater.errors import LedgerUnavailable
from headwater.runtime.engine import Engine
from headwater.spark_source.changes import ChangesReader
from headwater.spark_source.options import Options
from headwater.spark_source.source import HeadwaterSource
from headwater.testing.oracle import assert_same_rows
from servers import free_port, postgres_server


@pytest.fixture(scope="module")
def store():
    with s3_server() as running:
        yield running


@pytest.fixture(scope="module")
def database():
    with postgres_server() as url:
        yield url


@pytest.fixture
def workspace(store, database, monkeypatch, tmp_path):
    """A folder with nothing but settings."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    lines = {"ledger_url": database, "storage_url": f"{store.url}/{uuid.uuid4().hex}"}
    text = "".join(f'{name} = "{value}"\n' for name, value in lines.items())
    (tmp_path / "headwater.toml").write_text(text)
    return tmp_path


async def test_rows_and_changes_come_from_postgresql_and_s3(workspace, database):
    bank = bank_tap(upto=5)
    options = {"workspace": str(workspace), "table": "accounts"}
    async with Engine(workspace, settings=CALM, connectors={"bank": bank}) as engine:
        await bank.create(engine)
        for upto in (10, 40, 41, 90):
            bank.open(upto)
            while engine.position("bank") != str(upto):
                await engine.flush()
        table = engine.table("accounts")
        source = HeadwaterSource(options)
        reader = source.reader(source.schema())
        sent = cloudpickle.dumps((source, reader))
        assert f":{make_url(database).port}/".encode() not in sent, "the ledger's URL travels"
        got = [batch for part in reader.partitions() for batch in reader.read(part)]
        assert_same_rows(pa.Table.from_batches(got), plain(table.rows()), key=("id",))

        stream = HeadwaterSource({**options, "since": "beginning"})
        changes = ChangesReader(Options.parse({**options, "since": "beginning"}), stream.schema())
        start = changes.initialOffset()
        end = changes.latestOffset(start, changes.getDefaultReadLimit())
        got = [b for part in changes.partitions(start, end) for b in changes.read(part)]
        changes.stop()
        log = table.change_rows(0, engine.visible)
        assert_same_rows(pa.Table.from_batches(got), log.drop_columns(["_vnode"]))


def test_a_ledger_that_cannot_be_reached_is_said_to_be_away(tmp_path):
    url = f"postgresql://someone:quiet@127.0.0.1:{free_port()}/nothing"
    (tmp_path / "headwater.toml").write_text(f'ledger_url = "{url}"\n')
    with pytest.raises(LedgerUnavailable) as raised:
        HeadwaterSource({"workspace": str(tmp_path), "table": "t"})
    assert "quiet" not in str(raised.value)

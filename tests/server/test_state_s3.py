"""State tables on a real S3 server: the contract of storage, histories, readers, Spark."""

import contextlib
import os
import time
import uuid

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from s3_server import s3_server

from headwater.errors import DamagedState, StorageUnavailable
from headwater.state.delta_checkpoint import checkpoint, trim
from headwater.state.row_cache import RowCache
from headwater.state.storage import open_storage
from headwater.testing.oracle import assert_same_rows
from servers import free_port
from state_kit import SCHEMAS, Dice, Rig, look_up, plain, small_files, wander
from storage_contract import StorageContract


@pytest.fixture(scope="module")
def server():
    with s3_server() as running:
        yield running


@pytest.fixture
def url(server, monkeypatch):
    """A new folder of the bucket, and the environment in which it can be reached."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return f"{server.url}/{uuid.uuid4().hex}"


@pytest.fixture
def rig_of(url, tmp_path):
    def make(schema, **options) -> Rig:
        return Rig(url, schema, cache=RowCache(tmp_path / "cache", 1 << 30), **options)

    return make


class TestS3(StorageContract):
    @pytest.fixture
    def storage(self, url):
        return open_storage(url)


def test_an_object_in_several_parts_comes_back(url, tmp_path):
    storage, source = open_storage(url), tmp_path / "large"
    content = os.urandom(1 << 20) * 12
    source.write_bytes(content)
    storage.put_file("large", source)
    assert storage.get("large") == content


def test_a_store_that_cannot_be_reached_is_said_to_be_unavailable(url, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    storage = open_storage(url)
    began = time.monotonic()
    for deed in (
        lambda: storage.get("x"),
        lambda: storage.put("x", b"1"),
        lambda: storage.put_if_absent("x", b"1"),
        lambda: list(storage.list()),
        lambda: storage.delete("x"),
    ):
        with pytest.raises(StorageUnavailable):
            deed()
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("wrong", ["AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"])
def test_wrong_credentials_are_told_without_being_shown(url, monkeypatch, wrong):
    monkeypatch.setenv(wrong, "wrong-and-private")
    with pytest.raises(StorageUnavailable) as caught:
        open_storage(url).put("x", b"1")
    assert "AWS_*" in caught.value.hint
    if wrong == "AWS_SECRET_ACCESS_KEY":
        assert "wrong-and-private" not in str(caught.value)


def test_a_missing_bucket_is_no_missing_file(server, url):
    with pytest.raises((StorageUnavailable, FileNotFoundError)):
        open_storage("s3://nowhere/x").put("x", b"1")


@pytest.mark.parametrize("name", ["composite", "everything"])
def test_a_random_history_is_what_the_model_says(rig_of, name):
    rig, dice = rig_of(SCHEMAS[name]), Dice(f"s3 {name}", SCHEMAS[name])
    wander(rig, dice, 25)
    look_up(rig, dice)
    rig.cache = RowCache(rig.cache.folder.with_name("other"), 1 << 30)
    rig.restart()
    look_up(rig, dice)


def test_delta_rs_sees_every_version_also_after_a_checkpoint(rig_of):
    rig, dice = rig_of(SCHEMAS["int"]), Dice("versions", SCHEMAS["int"])
    for _ in range(6):
        rig.fold()
        rig.stage(dice.changes())
        rig.commit()
    checkpoint(rig.table.storage)
    rig.stage(dice.changes())
    rig.commit()
    newest = rig.table.published_version()
    trim(rig.table.storage, newest - 1)
    for record in rig.records[-2:]:
        for commit in record.tables:
            found = DeltaTable(rig.table.storage.url, version=commit.version).scan().read_all()
            assert_same_rows(pa.table(found), rig.models[record.epoch][1])


def test_a_missing_file_is_damage(rig_of):
    rig = rig_of(SCHEMAS["int"])
    rig.put(("insert", {"id": 1}))
    rig.put(("delete", {"id": 1}), ("insert", {"id": 2}))
    rig.put(("insert", {"id": 1}))
    path = rig.records[-1].tables[0].added[0].path
    rig.table.storage.delete(path)
    with pytest.raises(DamagedState, match="missing") as caught:
        rig.table.rows()
    assert path in caught.value.detail


@contextlib.contextmanager
def workers_know(spark, environment):
    """Python workers get these variables; the session may be older than the server."""
    known = spark.sparkContext.environment
    known.update(environment)
    try:
        yield
    finally:
        for name in environment:
            known.pop(name, None)


def test_spark_stages_folds_and_reads_without_a_connector(rig_of, spark, server):
    schema = SCHEMAS["everything"]
    settings = small_files(driver_bytes=0)
    rig = rig_of(schema, settings=settings, spark=lambda: spark)
    dice = Dice("spark s3", schema, keys=60)
    with workers_know(spark, server.environment):
        for _ in range(3):
            rig.stage(dice.changes(40))
            rig.commit()
        rig.check(every=True)
        rig.fold()
        rig.stage(dice.changes(20))
        rig.commit()
        assert_same_rows(plain(rig.table.frame().toArrow()), rig.model)
        start = rig.records[0].epoch
        found = rig.table.changes(start, rig.committed).toArrow()
        assert_same_rows(found, rig.table.change_rows(start, rig.committed))
        rig.check(every=True)
        rig.check_folder()


def test_a_file_is_fetched_once_however_many_scan_it(rig_of, spark, server):
    """What one scan has fetched serves the next: the store does not even have it any more."""
    schema = SCHEMAS["everything"]
    rig = rig_of(schema, settings=small_files(driver_bytes=0), spark=lambda: spark)
    dice = Dice("shared s3", schema, keys=60)
    with workers_know(spark, server.environment):
        for _ in range(3):
            rig.stage(dice.changes(40))
            rig.commit()
        assert_same_rows(plain(rig.table.frame().toArrow()), rig.model)
        for live in rig.table.view().files:
            rig.table.storage.delete(live.file.path)
        assert_same_rows(plain(rig.table.frame().toArrow()), rig.model)
        fetched = rig.table.reader.fetched
        for copy in fetched.folder.glob("*.parquet"):
            copy.unlink()
        with pytest.raises(Exception, match="missing"):
            rig.table.frame().toArrow()

"""Sinks into Delta, Iceberg and files on a real S3 server, with credentials from options."""

import os
import uuid

import pytest
from s3_server import s3_server

from headwater.errors import SinkUnavailable
from headwater.sinks.sink import SinkKind
from headwater.state.storage import open_storage
from headwater.testing.oracle import assert_same_rows
from headwater.testing.sink_kit import run_check
from headwater.testing.sink_rows import new_spec
from lake_sinks import DeltaCase, FileCase, IcebergCase, deliver, delivery, sets
from servers import free_port

APPEND, UPSERT = SinkKind.APPEND_ONLY, SinkKind.UPSERT
CHECKS = ["rows_arrive", "crashed", "zombie", "zombie_aborts", "two_at_once", "overtaken"]


@pytest.fixture(scope="module")
def server():
    with s3_server() as running:
        yield running


@pytest.fixture
def options(server, monkeypatch):
    """What a user writes; the environment knows nothing."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    return {
        "s3.access.key": server.environment["AWS_ACCESS_KEY_ID"],
        "s3.secret.key": server.environment["AWS_SECRET_ACCESS_KEY"],
        "s3.endpoint": server.environment["AWS_ENDPOINT_URL"],
        "s3.region": server.environment["AWS_REGION"],
    }


@pytest.fixture
def url(server):
    return f"{server.url}/{uuid.uuid4().hex}"


def file_case(url, options, encode="parquet", *, manifest=False):
    credentials = {
        "access_key_id": options["s3.access.key"],
        "secret_access_key": options["s3.secret.key"],
        "endpoint": options["s3.endpoint"],
        "region": options["s3.region"],
    }

    def listed(folder):
        storage = open_storage(folder, credentials=credentials)
        return {path: storage.get(path) for path in storage.list() if not path.startswith("_")}

    return FileCase(url, encode, manifest=manifest, options=options, listed=listed)


@pytest.mark.parametrize("check", CHECKS)
def test_delta(url, options, check):
    run_check(DeltaCase(url, APPEND, options), check)


@pytest.mark.parametrize("check", ["crashed", "zombie_aborts", "overtaken"])
def test_delta_by_key(url, options, check):
    run_check(DeltaCase(url, UPSERT, options), check)


@pytest.mark.parametrize("check", CHECKS)
def test_files(url, options, check):
    run_check(file_case(url, options), check)


@pytest.mark.parametrize("encode", ["json", "csv"])
def test_files_of_text_in_several_parts(url, options, encode):
    run_check(file_case(url, options, encode), "rescaled")


def test_files_held_together_by_the_log(url, options):
    run_check(file_case(url, options, manifest=True), "crashed_with_receipts")


@pytest.mark.parametrize("check", ["rows_arrive", "zombie_aborts"])
def test_iceberg(url, options, tmp_path, check):
    case = IcebergCase(tmp_path, UPSERT)
    case.options |= {**options, "warehouse.path": url}
    run_check(case, check)


def test_nothing_is_left_of_attempts(url, options):
    spec = new_spec("left_1", APPEND)
    case = DeltaCase(url, APPEND, options)
    sink, rows = case.make(spec), sets([{"id": 1, "name": "a", "quantity": 2}])
    sink.check()
    sink.begin(1)
    deliver(sink, delivery(spec.ident, 5), rows, schema=spec.arrow)
    deliver(sink, delivery(spec.ident, 5), rows, schema=spec.arrow)
    assert len(list(sink._storage.list("data"))) == 1
    assert_same_rows(
        [dict(zip(("id", "name", "quantity"), row, strict=True)) for row in case.rows(spec)],
        [{"id": 1, "name": "a", "quantity": 2}],
    )


@pytest.mark.parametrize("wrong", ["s3.secret.key", "s3.access.key", "s3.endpoint"])
@pytest.mark.parametrize("target", ["delta", "files"])
def test_wrong_credentials_are_told_and_never_shown(url, options, target, wrong):
    bad = f"http://127.0.0.1:{free_port()}" if wrong == "s3.endpoint" else "wrong-and-private"
    options = {**options, wrong: bad}
    case = DeltaCase(url, APPEND, options) if target == "delta" else file_case(url, options)
    with pytest.raises(SinkUnavailable, match="cannot be used") as caught:
        case.make(new_spec("wrong_1", APPEND)).check()
    assert "private" not in str(caught.value)
    assert options["s3.secret.key"] not in str(caught.value)

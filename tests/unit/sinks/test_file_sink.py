"""A sink into files: exact values per encoding, what a plain reader sees, crashes in between."""

import json
from dataclasses import replace

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from headwater.errors import ConfigError, Fenced, NotSupported, SinkUnavailable
from headwater.model.schema import Column
from headwater.model.types import BIGINT, VARCHAR
from headwater.sinks.files.sink import file_sink
from headwater.sinks.sink import Encoding, SinkKind, SinkSpec
from headwater.state.storage import LocalStorage
from headwater.testing.oracle import assert_same_rows
from lake_sinks import (
    ODD_ROWS,
    READERS,
    deliver,
    delivery,
    everything,
    sets,
    table_of,
)

PAIRS = (Column("id", BIGINT), Column("name", VARCHAR))
ROWS = [{"id": n, "name": f"row {n}"} for n in range(6)]


def pairs(tmp_path, encode="parquet", **options):
    return SinkSpec(
        name="pairs",
        ident="pairs_7",
        columns=PAIRS,
        key=(),
        kind=SinkKind.APPEND_ONLY,
        options={"path": str(tmp_path), **options},
        encoding=Encoding(format="PLAIN", encode=encode),
    )


def made(spec):
    sink = file_sink(spec)
    sink.check()
    sink.begin(1)
    return sink


def shown(tmp_path):
    return sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith("_"))


def test_parquet_is_exact(tmp_path):
    spec = everything(SinkKind.APPEND_ONLY, path=str(tmp_path))
    rows = sets(ODD_ROWS)
    deliver(made(spec), delivery(spec.ident, 5), rows[:3], rows[3:], schema=spec.arrow)
    assert_same_rows(ds.dataset(tmp_path).to_table(), table_of(ODD_ROWS))
    assert_same_rows(
        duckdb.sql(f"from '{tmp_path}/*.parquet'").to_arrow_table(), table_of(ODD_ROWS)
    )


def test_json_says_what_its_header_says(tmp_path):
    spec = everything(SinkKind.APPEND_ONLY, path=str(tmp_path))
    spec = replace(spec, encoding=Encoding(encode="JSON"))
    rows = sets(ODD_ROWS)
    deliver(made(spec), delivery(spec.ident, 5), rows[:3], rows[3:], schema=spec.arrow)
    [name] = shown(tmp_path)
    lines = (tmp_path / name).read_text().split("\n")
    assert lines.pop() == ""
    found = {row["id"]: row for row in map(json.loads, lines)}
    assert found.keys() == {row["id"] for row in ODD_ROWS}
    assert found[1] == {
        "id": 1, "boolean": True, "small": -32768, "int": 2147483647, "real": 1.5, "double": 0.1,
        "money": "-9999999999.99", "wide": "1234567890.0123456789", "numeric": "1e-200",
        'te"xt `x` Ü': 'a "b" \\ \n\t\x01 漢字 \u2028', "bytes": "AP8K", "day": "0001-01-01",
        "time": "23:59:59.999999", "at": "2026-01-31T01:02:03.456789",
        "at_tz": "1969-12-31T23:59:59.999999Z", "json": '{"k": [1, "\\u0000"]}',
        "uuid": "00000000-0000-0000-0000-000000000001", "list": [1, None, -3],
        "struct": {"a": 2.5, "b": ["x", None]}, "lists": [{"a": None, "b": []}, None],
    }  # fmt: skip
    assert set(found[2].values()) == {2, None}
    doubles = [found[10 + n]["double"] for n in range(6)]
    assert doubles == ["NaN", "Infinity", "-Infinity", 0.0, 5e-324, 1.7976931348623157e308]
    assert str(doubles[3]) == "-0.0"
    assert found[20]['te"xt `x` Ü'] == ""
    assert found[20]["list"] == []


def test_csv_tells_null_from_empty(tmp_path):
    rows = [
        {"id": 1, "name": None},
        {"id": None, "name": ""},
        {"id": 3, "name": 'a,"b"\nc'},
        {"id": -(2**63), "name": "\\N"},
    ]
    spec = pairs(tmp_path, "csv")
    deliver(made(spec), delivery(spec.ident, 5), sets(rows[:2]), sets(rows[2:]), schema=spec.arrow)
    [name] = shown(tmp_path)
    content = (tmp_path / name).read_bytes()
    assert content.startswith(b'"id","name"\n')
    assert_same_rows(READERS["csv"](content), rows)


def test_csv_of_every_type_can_be_read_back_as_text(tmp_path):
    spec = replace(
        everything(SinkKind.APPEND_ONLY, path=str(tmp_path)), encoding=Encoding(encode="csv")
    )
    deliver(made(spec), delivery(spec.ident, 5), sets(ODD_ROWS), schema=spec.arrow)
    [name] = shown(tmp_path)
    found = READERS["csv"]((tmp_path / name).read_bytes()).to_pylist()
    assert len(found) == len(ODD_ROWS)
    assert found[0]["wide"] in ("1234567890.0123456789", 1234567890.0123456789)
    assert found[0]["struct"] == '{"a":2.5,"b":["x",null]}'
    assert found[0]['te"xt `x` Ü'] == ODD_ROWS[0]['te"xt `x` Ü']
    assert [str(row["double"]).lower()[:4] for row in found[2:5]] == ["nan", "inf", "-inf"]


@pytest.mark.parametrize("encode", ["parquet", "json", "csv"])
def test_a_plain_reader_never_sees_half_a_delivery(tmp_path, encode, monkeypatch):
    """Look at the folder before and after every single thing that happens to a file."""
    spec = pairs(tmp_path, encode)
    sink, owed = made(spec), delivery(spec.ident, 5)
    seen = set()

    def look():
        rows = sum(READERS[encode]((tmp_path / n).read_bytes()).num_rows for n in shown(tmp_path))
        seen.add(rows)

    def watched(deed):
        def look_around(*arguments):
            look()
            done = deed(*arguments)
            look()
            return done

        return look_around

    for name in ("put", "put_file", "put_if_absent", "move", "delete"):
        monkeypatch.setattr(LocalStorage, name, watched(getattr(LocalStorage, name)))
    deliver(sink, owed, sets(ROWS[:2]), sets(ROWS[2:4]), sets(ROWS[4:]), schema=spec.arrow)
    assert seen == {0, 6}
    assert shown(tmp_path) == [f"pairs_7-{5:020d}.{encode}"]


@pytest.mark.parametrize("manifest", ["false", "true"])
def test_what_the_log_decided_is_finished_by_the_next(tmp_path, manifest, monkeypatch):
    spec = pairs(tmp_path, manifest=manifest)
    sink, owed = made(spec), delivery(spec.ident, 5)

    class Died(BaseException):
        """As a crash: nothing catches it."""

    def die(*_):
        raise Died

    monkeypatch.setattr(LocalStorage, "move", die)
    with pytest.raises(Died):
        deliver(sink, owed, sets(ROWS[:3]), sets(ROWS[3:]), schema=spec.arrow)
    monkeypatch.undo()
    assert shown(tmp_path) == []
    assert file_sink(spec).begin(2) == 5
    assert_same_rows(ds.dataset(tmp_path).to_table(), ROWS)
    with pytest.raises(Fenced):
        sink.commit(owed, [])
    again = replace(owed, term=2)
    deliver(file_sink(spec), again, sets(ROWS), schema=spec.arrow)
    assert_same_rows(ds.dataset(tmp_path).to_table(), ROWS)


def test_the_log_names_the_files_of_a_delivery(tmp_path):
    spec = pairs(tmp_path, manifest="true")
    sink = made(spec)
    deliver(sink, delivery(spec.ident, 5), sets(ROWS[:2]), [], sets(ROWS[2:]), schema=spec.arrow)
    deliver(sink, delivery(spec.ident, 6), schema=spec.arrow)
    log = sorted((tmp_path / "_headwater" / "pairs_7" / "log").iterdir())
    entries = [json.loads(path.read_text()) for path in log]
    assert [entry["epoch"] for entry in entries] == [0, 5, 6]
    named = [name for entry in entries for name in entry["moves"].values()]
    assert sorted(named) == shown(tmp_path)
    assert len(named) == 2


def test_a_staged_file_that_is_gone_is_never_entered(tmp_path):
    spec = pairs(tmp_path)
    sink, owed = made(spec), delivery(spec.ident, 5)
    batch = pa.RecordBatch.from_pylist(sets(ROWS), schema=spec.arrow)
    receipt = sink.prepare(owed, 0, [batch])
    (tmp_path / json.loads(receipt)["path"]).unlink()
    with pytest.raises(SinkUnavailable, match="gone"):
        sink.commit(owed, [receipt])
    assert sink.begin(1) == 0
    deliver(sink, owed, sets(ROWS), schema=spec.arrow)
    assert_same_rows(ds.dataset(tmp_path).to_table(), ROWS)


def test_two_sinks_share_a_folder(tmp_path):
    one, other = pairs(tmp_path), replace(pairs(tmp_path), name="two", ident="two_8")
    first, second = made(one), made(other)
    deliver(first, delivery("pairs_7", 5), sets(ROWS[:3]), schema=one.arrow)
    deliver(second, delivery("two_8", 5), sets(ROWS[3:]), schema=one.arrow)
    first.drop()
    first.drop()
    assert second.begin(1) == 5
    assert_same_rows(ds.dataset(tmp_path).to_table(), ROWS)
    assert not (tmp_path / "_headwater" / "pairs_7").exists()


def test_bad_options(tmp_path):
    for kind in (SinkKind.UPSERT, SinkKind.RETRACT):
        with pytest.raises(NotSupported, match="append-only") as caught:
            file_sink(replace(pairs(tmp_path), kind=kind))
        assert "Delta" in caught.value.hint
    with pytest.raises(ConfigError, match="ENCODE avro"):
        file_sink(pairs(tmp_path, "avro"))
    with pytest.raises(ConfigError, match="FORMAT UPSERT"):
        file_sink(replace(pairs(tmp_path), encoding=Encoding(format="UPSERT")))
    with pytest.raises(ConfigError, match='"path"'):
        file_sink(replace(pairs(tmp_path), options={}))
    with pytest.raises(ConfigError, match="ftp"):
        file_sink(replace(pairs(tmp_path), options={"path": "ftp://host/x"})).check()


def test_a_folder_that_cannot_be_made_is_unavailable(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SinkUnavailable, match="cannot be used"):
        file_sink(pairs(tmp_path / "file" / "folder")).check()


def test_parts_that_are_older_than_a_column_are_joined_without_it(tmp_path):
    """They were prepared, then the sink got a column, and then they are committed."""
    spec = pairs(tmp_path)
    sink, owed = made(spec), delivery(spec.ident, 5)
    receipts = [
        sink.prepare(owed, n, [pa.RecordBatch.from_pylist(sets([ROWS[n]]), schema=spec.arrow)])
        for n in range(2)
    ]
    later = replace(spec, columns=(*PAIRS, Column("more", BIGINT)))
    file_sink(later).commit(owed, receipts)
    assert_same_rows(ds.dataset(tmp_path).to_table(), ROWS[:2])

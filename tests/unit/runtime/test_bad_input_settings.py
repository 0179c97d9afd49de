"""Settings, paths and names that do not fit: a clear error, and the next try works."""

import pytest

from engine_kit import CALM, bank_tap, reaches
from headwater.errors import ConfigError, RelationError, SchemaError, StorageUnavailable
from headwater.runtime.engine import Engine


async def opens(path, **settings):
    async with Engine(path, settings={**CALM, **settings}) as engine:
        await engine.flush()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"barrier_intervall_ms": 5}, ["barrier_intervall_ms", 'mean "barrier_interval_ms"?']),
        ({"barrier_interval_ms": "soon"}, ["'soon'", "int in milliseconds", "periodic barriers"]),
        ({"barrier_interval_ms": 1}, ["between 10 and 600000 milliseconds"]),
        ({"storage_fsync": "perhaps"}, ["'perhaps'", "bool"]),
        ({"retention_s": True}, ["True", "int in seconds"]),
        ({"storage_url": "ftp://somewhere/x"}, ['"ftp"', "s3://bucket/prefix"]),
        ({"ledger_url": "what"}, ["ledger_url is not a database URL", "sqlite:////absolute"]),
        ({"ledger_url": "oracle://u@h/d"}, ["oracle", "postgresql+psycopg"]),
        ({"ledger_url": "sqlite://"}, ["memory"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
async def test_a_setting_that_does_not_fit(settings, said, tmp_path):
    with pytest.raises(ConfigError) as refused:
        async with Engine(tmp_path, settings=settings):
            pass
    for words in said:
        assert words in str(refused.value)
    assert refused.value.sqlstate == "22023"
    await opens(tmp_path)


async def test_a_settings_file_that_cannot_be_read(tmp_path):
    (tmp_path / "headwater.toml").write_text("barrier_interval_ms = = 5")
    with pytest.raises(ConfigError, match=r"headwater\.toml is not valid TOML") as refused:
        Engine(tmp_path)
    assert "line 1" in refused.value.detail
    (tmp_path / "headwater.toml").write_text("barrier_interval_ms = 50")
    await opens(tmp_path)


async def test_a_live_change_that_does_not_fit_changes_nothing(tmp_path):
    async with Engine(tmp_path, settings=CALM) as engine:
        before = engine.settings.now
        for wrong in (
            {"barrier_interval_ms": 100, "fold_filez": 3},
            {"barrier_interval_ms": 100, "fold_files": 3},
            {"barrier_interval_ms": 100, "retention_s": -1},
        ):
            with pytest.raises(ConfigError):
                await engine.change_settings(wrong)
            assert engine.settings.now == before
        changed = await engine.change_settings({"retention_s": 5})
        assert (engine.settings.now, changed.retention_s) == (changed, 5)


async def test_the_workspace_is_a_file(tmp_path):
    place = tmp_path / "shop"
    place.write_text("not a folder")
    with pytest.raises(ConfigError, match="is not a folder") as refused:
        Engine(place)
    assert "folder" in refused.value.hint
    assert place.read_text() == "not a folder"
    with pytest.raises(StorageUnavailable, match="cannot be made"):
        Engine(place / "inside")
    place.unlink()
    await opens(place)


async def test_storage_is_a_file(tmp_path):
    place = tmp_path / "storage"
    place.write_text("not a folder")
    with pytest.raises(StorageUnavailable) as refused:
        await opens(tmp_path / "w", storage_url=str(place))
    assert str(place) in str(refused.value)
    place.unlink()
    await opens(tmp_path / "w", storage_url=str(place))


async def test_names_that_are_taken_missing_or_unknown(tmp_path):
    bank = bank_tap(100)
    async with Engine(tmp_path, settings=CALM, connectors={"bank": bank}) as engine:
        with pytest.raises(ConfigError, match='no connector "oracle"') as unknown:
            await engine.create_source("x", "oracle", {}, tables=bank.schemas)
        assert "bank" in unknown.value.detail
        await bank.create(engine)
        await engine.flush()

        with pytest.raises(RelationError, match='"bank" already exists') as taken:
            await bank.create(engine)
        assert taken.value.sqlstate == "42710"
        with pytest.raises(RelationError, match='"accounts" already exists') as taken:
            await engine.create_source("second", "bank", {}, tables=bank.schemas)
        assert taken.value.sqlstate == "42P07"
        with pytest.raises(RelationError, match='"bnak" does not exist') as missing:
            await engine.drop_source("bnak")
        assert missing.value.hint == 'Did you mean "bank"?'
        with pytest.raises(RelationError, match='"acounts" does not exist') as missing:
            engine.table("acounts")
        assert missing.value.hint == 'Did you mean "accounts"?'
        with pytest.raises(RelationError):
            await engine.throttle("nothing", 5)
        with pytest.raises(ConfigError, match="no option"):
            await engine.create_source("y", "generated", {"colour": 1}, tables={})

        snapshot = engine.catalog.snapshot()
        assert [source.name for source in snapshot.sources] == ["bank"]
        assert [table.name for table in engine.store] == ["accounts", "transfers"]
        bank.open(200)
        await engine.flush()
        await reaches(engine, "bank", 200)


async def test_a_schema_that_does_not_fit_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(SchemaError):
        type(bank_tap(1).schemas["accounts"])(bank_tap(1).schemas["accounts"].columns, ("nope",))
    await opens(tmp_path)

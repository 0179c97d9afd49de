"""Settings: where they come from, what is refused and how, what can change while running."""

from dataclasses import fields

import pytest

from headwater.config import Settings
from headwater.errors import ConfigError

NOWHERE: dict[str, str] = {}


def test_defaults_are_within_their_own_ranges():
    defaults = {setting.name: setting.default for setting in fields(Settings)}
    assert Settings().change(defaults) == Settings()


@pytest.mark.parametrize("setting", fields(Settings), ids=lambda setting: setting.name)
def test_every_setting_is_documented_and_numbers_have_a_range(setting):
    meta = setting.metadata
    assert meta["doc"].endswith(".")
    assert type(setting.default) in (int, float, str, bool)
    if type(setting.default) in (int, float):
        assert meta["low"] is not None
        ratio = "ratio" in setting.name or "partitions" in setting.name
        assert meta["unit"] or ratio, "a number needs a unit"


def test_later_places_win(tmp_path):
    (tmp_path / "headwater.toml").write_text(
        "barrier_interval_ms = 100\ncheckpoint_frequency = 2\nfold_files = 3\n"
    )
    loaded = Settings.load(
        tmp_path,
        overrides={"fold_files": 5},
        environment={
            "HEADWATER_CHECKPOINT_FREQUENCY": "4",
            "HEADWATER_FOLD_FILES": "4",
            "PATH": "x",
        },
    )
    assert (loaded.barrier_interval_ms, loaded.checkpoint_frequency, loaded.fold_files) == (
        100,
        4,
        5,
    )
    assert loaded.in_flight_barriers == Settings().in_flight_barriers


def test_environment_is_the_real_one_unless_given(monkeypatch):
    monkeypatch.setenv("HEADWATER_FOLD_FILES", "7")
    assert Settings.load().fold_files == 7
    assert Settings.load(environment=NOWHERE).fold_files == Settings().fold_files


@pytest.mark.parametrize("variable", ["HEADWATER_CRASH", "HEADWATER_REQUIRE_ALL", "HEADWATER_JAVA"])
def test_variables_that_are_no_settings_are_left_alone(variable):
    assert Settings.load(environment={variable: "x"}) == Settings()


def test_unknown_name_suggests_the_nearest():
    with pytest.raises(ConfigError, match='no setting "barrier_intervall_ms"') as caught:
        Settings().change({"barrier_intervall_ms": 5})
    assert caught.value.hint == 'Did you mean "barrier_interval_ms"?'
    with pytest.raises(ConfigError) as caught:
        Settings.load(environment={"HEADWATER_QQQ": "1"})
    assert "headwater settings" in caught.value.hint


def test_unknown_name_in_the_file_is_refused(tmp_path):
    (tmp_path / "headwater.toml").write_text("chekpoint_frequency = 2\n")
    with pytest.raises(ConfigError, match="chekpoint_frequency"):
        Settings.load(tmp_path, environment=NOWHERE)


def test_broken_toml_says_where(tmp_path):
    (tmp_path / "headwater.toml").write_text("fold_files = \n")
    with pytest.raises(ConfigError, match=r"headwater\.toml is not valid TOML") as caught:
        Settings.load(tmp_path, environment=NOWHERE)
    assert "line 1" in caught.value.detail


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fold_files", "many"),
        ("fold_files", "2.5"),
        ("fold_files", 2.0),
        ("fold_files", True),
        ("fold_files", None),
        ("fold_files", [2]),
        ("fold_dead_ratio", "half"),
        ("fold_dead_ratio", False),
        ("storage_fsync", "perhaps"),
        ("storage_fsync", 2),
        ("spark_master", True),
    ],
)
def test_wrong_type_says_what_is_wanted(name, value):
    with pytest.raises(ConfigError, match=f'setting "{name}" cannot be') as caught:
        Settings().change({name: value})
    assert "default is" in caught.value.detail
    assert caught.value.hint.endswith(".")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("barrier_interval_ms", 9),
        ("barrier_interval_ms", "600001"),
        ("fold_dead_ratio", 1.01),
        ("fold_dead_ratio", "nan"),
        ("maintenance_interval_s", "nan"),
        ("retention_s", -1),
        ("cache_bytes", 0),
    ],
)
def test_out_of_range_says_the_range(name, value):
    with pytest.raises(ConfigError, match=f'setting "{name}" cannot be') as caught:
        Settings().change({name: value})
    assert "must be between" in caught.value.detail


@pytest.mark.parametrize(("name", "low", "high"), [("barrier_interval_ms", 10, 600_000)])
def test_the_ends_of_a_range_are_in_it(name, low, high):
    assert getattr(Settings().change({name: low}), name) == low
    assert getattr(Settings().change({name: str(high)}), name) == high


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[(text, True) for text in ("true", "ON", "1", "yes", True)],
        *[(text, False) for text in ("false", "Off", "0", "no", 0)],
    ],
)
def test_booleans_are_read_as_people_write_them(text, value):
    assert Settings().change({"storage_fsync": text}).storage_fsync is value


@pytest.mark.parametrize("setting", fields(Settings), ids=lambda setting: setting.name)
def test_only_live_settings_change_while_running(setting):
    other = {bool: True, int: 64 << 20, float: 0.5, str: "x"}[type(setting.default)]
    if type(setting.default) is bool:
        other = not setting.default
    if setting.metadata["high"] is not None:
        other = setting.metadata["high"]
    settings = Settings()
    if setting.metadata["live"]:
        changed = settings.change({setting.name: other}, running=True)
        assert getattr(changed, setting.name) == other
    else:
        with pytest.raises(ConfigError, match="cannot change while the engine runs"):
            settings.change({setting.name: other}, running=True)
        unchanged = {setting.name: getattr(settings, setting.name)}
        assert settings.change(unchanged, running=True) == settings


def test_change_makes_a_new_value():
    settings = Settings()
    assert settings.change({"fold_files": 3}).fold_files == 3
    assert settings == Settings()

import pytest

from headwater.errors import ConfigError
from headwater.session.variables import KNOWN, Variables


def test_defaults_and_changes_and_resets():
    variables = Variables()
    assert variables["rw_implicit_flush"] == "false"
    variables.set("RW_Implicit_Flush", "ON")
    assert variables.is_on("rw_implicit_flush")
    variables.set("rw_implicit_flush", None)
    assert not variables.is_on("rw_implicit_flush")
    variables.set("background_ddl", "1")
    variables.reset()
    assert variables["background_ddl"] == "false"


def test_what_a_client_gave_at_its_start_is_its_default():
    variables = Variables({"TimeZone": "UTC", "application_name": "mine", "jit.odd": "x"})
    variables.set("application_name", "other")
    assert variables.reported()["application_name"] == "other"
    variables.set("application_name", None)
    assert variables["application_name"] == "mine"


def test_the_search_path_leaves_out_what_stands_for_others():
    variables = Variables()
    assert variables.path == ("public",)
    variables.set("search_path", '"$user", sales, "Odd", public')
    assert variables.path == ("sales", "Odd", "public")
    variables.set("search_path", "")
    assert variables.path == ("public",)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("rw_implicit_flush", "maybe", "boolean"),
        ("refresh_policy", "sometimes", "one of"),
        ("backfill_rate_limit", "fast", "whole number"),
        ("streaming_parallelism", "-1", "not negative"),
        ("query_mode", "loud", "one of"),
    ],
)
def test_values_that_make_no_sense(name, value, words):
    variables = Variables()
    with pytest.raises(ConfigError, match=name) as raised:
        variables.set(name, value)
    assert words in raised.value.detail
    assert variables[name] == KNOWN[name].default


def test_a_name_that_nobody_knows_proposes_one_that_somebody_does():
    with pytest.raises(ConfigError) as raised:
        Variables().set("rw_implicit_flash", "on")
    assert raised.value.sqlstate == "42704"
    assert "rw_implicit_flush" in raised.value.hint


@pytest.mark.parametrize("value", ["0", "250", "default", "-1"])
def test_rate_limits(value):
    variables = Variables()
    variables.set("backfill_rate_limit", value)
    assert variables["backfill_rate_limit"] == ("default" if value == "-1" else value)

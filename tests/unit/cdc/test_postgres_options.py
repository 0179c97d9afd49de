"""Options of a PostgreSQL source: names, values and secrets."""

import pickle

import pytest

from headwater.cdc.postgres.options import KNOWN, parse_options
from headwater.errors import ConfigError

LEAST = {"hostname": "db.example", "username": "reader", "database.name": "shop"}
SECRET = "s3cr3t-Zq"


def test_the_least_options_are_enough():
    options = parse_options(LEAST, source="My Shop")
    assert (options.port, options.schema, options.ssl_mode) == (5432, "public", "prefer")
    assert options.slot == options.publication == "headwater_my_shop"
    assert options.password is None
    assert options.publication_create


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("slot_name", "slot.name"),
        ("user", "username"),
        ("database", "database.name"),
        ("publication.create.enabled", "publication.create.enable"),
        ("ssl.rootcert", "ssl.root.cert"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest(wrong, near):
    with pytest.raises(ConfigError) as caught:
        parse_options({**LEAST, wrong: "x"})
    assert wrong in caught.value.message
    assert f'"{near}"' in caught.value.hint
    assert all(name in caught.value.detail for name in KNOWN)


@pytest.mark.parametrize("missing", sorted(LEAST))
def test_a_missing_option_is_named(missing):
    with pytest.raises(ConfigError, match=missing):
        parse_options({name: value for name, value in LEAST.items() if name != missing})
    with pytest.raises(ConfigError, match=missing):
        parse_options({**LEAST, missing: ""})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", "0"),
        ("port", "65536"),
        ("port", "x"),
        ("slot.name", "Capital"),
        ("slot.name", "a" * 64),
        ("ssl.mode", "maybe"),
        ("publication.create.enable", "perhaps"),
        ("unknown.types", "guess"),
        ("connect.timeout", "-1"),
    ],
)
def test_a_wrong_value_is_refused_by_name(name, value):
    with pytest.raises(ConfigError, match=name):
        parse_options({**LEAST, name: value})


def test_ssl_modes_have_two_spellings():
    for spelled, mode in (("disabled", "disable"), ("VERIFY_FULL", "verify-full")):
        assert parse_options({**LEAST, "ssl.mode": spelled}).ssl_mode == mode


def test_the_password_comes_from_three_places(tmp_path):
    file = tmp_path / "secret"
    file.write_text(SECRET + "\n")
    given = parse_options({**LEAST, "password": SECRET})
    named = parse_options({**LEAST, "password.env": "PW"}, environment={"PW": SECRET})
    filed = parse_options({**LEAST, "password.file": str(file)})
    assert given.password == named.password == filed.password == SECRET
    assert pickle.loads(pickle.dumps(named)).password == SECRET


def test_the_password_is_never_shown(tmp_path):
    options = parse_options({**LEAST, "password": SECRET})
    assert SECRET not in repr(options)
    assert options.without_secret(f"cannot use {SECRET} here") == "cannot use *** here"
    bad = tmp_path / "secret"
    bad.write_bytes(SECRET.encode() + b"\xff")
    for wrong in (
        {"password": SECRET, "password.env": "PW"},
        {"password.env": "PW"},
        {"password.file": str(tmp_path / "none")},
        {"password.file": str(bad)},
        {"password": SECRET, "colour": "red"},
    ):
        with pytest.raises(ConfigError) as caught:
            parse_options({**LEAST, **wrong}, environment={})
        assert SECRET not in str(caught.value)
        assert caught.value.__cause__ is None

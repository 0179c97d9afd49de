"""Options of MySQL sources: by name, with their ranges, and a password that nobody sees."""

import pytest

from headwater.cdc.mysql.options import MySqlOptions, SslMode, TimeMode, ZeroDates
from headwater.errors import ConfigError

NEEDED = {"hostname": "db", "username": "ann", "database.name": "shop"}


def test_what_is_not_said_has_its_default():
    options = MySqlOptions.parse(NEEDED)
    assert (options.port, options.ssl_mode, options.zero_dates, options.time_mode) == (
        3306, SslMode.PREFERRED, ZeroDates.ERROR, TimeMode.TIME
    )  # fmt: skip
    assert options.address == "ann@db:3306"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"hostnam": "x"}, 'Did you mean "hostname"?'),
        ({"sslmode": "x"}, 'Did you mean "ssl.mode"?'),
        ({"port": "70000"}, 'option "port" is a number from 1 to 65535'),
        ({"port": "x"}, 'option "port" is a number'),
        ({"ssl.mode": "maybe"}, 'option "ssl.mode" is one of disabled, preferred'),
        ({"zero.dates": "epoch"}, 'option "zero.dates" is one of error, null'),
        ({"database.name": " , "}, 'option "database.name" names no database'),
        ({"hostname": ""}, 'option "hostname" is needed'),
        ({"server.id": "4294967296"}, 'option "server.id" is a number'),
        ({"password": "a", "password.env": "B"}, "the password is given twice"),
        ({"password.env": "HEADWATER_NO_SUCH_VARIABLE"}, "is not set"),
        ({"password.file": "no-such-file"}, "cannot be read"),
    ],
)
def test_what_is_wrong_is_named(more, said):
    with pytest.raises(ConfigError) as caught:
        MySqlOptions.parse({**NEEDED, **more})
    assert said in str(caught.value)


def test_the_password_comes_from_three_places_and_is_shown_in_none(monkeypatch, tmp_path):
    monkeypatch.setenv("HEADWATER_TEST_PASSWORD", "hush")
    (tmp_path / "secret").write_text("hush\n")
    for more in (
        {"password": "hush"},
        {"password.env": "HEADWATER_TEST_PASSWORD"},
        {"password.file": str(tmp_path / "secret")},
    ):
        options = MySqlOptions.parse({**NEEDED, **more})
        assert options.password == "hush"
        assert "hush" not in repr(options)


def test_table_names_are_of_a_database_of_the_source():
    one = MySqlOptions.parse(NEEDED)
    assert one.split_name("orders") == ("shop", "orders")
    assert one.split_name("shop.or.ders") == ("shop", "or.ders")
    with pytest.raises(ConfigError, match="not in a database"):
        one.split_name("bank.orders")
    two = MySqlOptions.parse({**NEEDED, "database.name": "shop, bank"})
    assert two.split_name("bank.orders") == ("bank", "orders")
    with pytest.raises(ConfigError, match="could be in any of shop, bank"):
        two.split_name("orders")

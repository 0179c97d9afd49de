"""Small parts around the prompt: addresses, users, the end of a statement, results as text."""

from decimal import Decimal

import pyarrow as pa
import pytest

from headwater.cli.serve import address_of, read_users
from headwater.cli.shell import complete
from headwater.errors import ConfigError, UserError
from headwater.model.types import BIGINT, BOOLEAN, VARCHAR, list_of
from headwater.pgwire.session import ResultColumn
from headwater.session.result import Result, literal_text


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:4566", ("127.0.0.1", 4566)),
        (":0", ("127.0.0.1", 0)),
        ("5000", ("127.0.0.1", 5000)),
        ("db.example", ("db.example", 4566)),
        ("[::1]:77", ("::1", 77)),
    ],
)
def test_addresses(text, address):
    assert address_of(text) == address


@pytest.mark.parametrize("text", ["host:port", "host:99999", "host:-1"])
def test_no_addresses(text):
    with pytest.raises(ConfigError, match="address"):
        address_of(text)


def test_users_come_from_a_file(tmp_path):
    file = tmp_path / "users"
    file.write_text("# people\nann:se:cret\n\nroot:\n")
    assert read_users(file) == {"ann": "se:cret", "root": None}
    file.write_text("nobody")
    with pytest.raises(ConfigError, match="line 1"):
        read_users(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_users(tmp_path / "absent")


@pytest.mark.parametrize("text", ["select 1;", "select ';' ; ", "select 1; select 2;", ";"])
def test_complete_statements(text):
    assert complete(text)


@pytest.mark.parametrize("text", ["", "select 1", "select ';", "select 1; select", "-- ;", "/* ;"])
def test_incomplete_statements(text):
    assert not complete(text)


def result(rows):
    columns = (
        ResultColumn(name="n", type=BIGINT),
        ResultColumn(name="word", type=VARCHAR),
        ResultColumn(name="ok", type=BOOLEAN),
        ResultColumn(name="list", type=list_of(BIGINT)),
    )
    arrays = [pa.array([row[i] for row in rows], c.type.arrow) for i, c in enumerate(columns)]
    table = pa.Table.from_arrays(arrays, names=[c.name for c in columns])
    return Result("SELECT", columns, table=table)


def test_a_result_shows_itself():
    shown = repr(result([(1, "a<b", True, [1, 2]), (20, None, False, None)])).splitlines()
    assert shown == [
        "n  | word | ok | list",
        "---+------+----+------",
        "1  | a<b  | t  | {1,2}",
        "20 | NULL | f  | NULL",
        "(2 rows)",
    ]
    assert "<td>a&lt;b</td>" in result([(1, "a<b", True, [])])._repr_html_()


def test_a_long_result_is_cut():
    shown = repr(result([(n, "x" * 100, True, []) for n in range(50)]))
    assert "(the first 20 rows)" in shown
    assert len(shown.splitlines()) == 23
    assert "x" * 41 not in shown


def test_a_statement_shows_its_tag():
    assert repr(Result("CREATE TABLE", (), notices=("skipping",))) == "skipping\nCREATE TABLE"
    with pytest.raises(AttributeError):
        Result("CREATE TABLE", ()).groupBy  # noqa: B018


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, None), (True, "true"), (7, "7"), (Decimal("1.50"), "1.50"), ("o'k", "o'k"),
        (b"\x01\xff", "\\x01ff"), ([1, None, 'a"b'], '{"1",NULL,"a\\"b"}'),
    ],
)  # fmt: skip
def test_values_as_literals(value, text):
    assert literal_text(value) == text


def test_values_that_are_none():
    with pytest.raises(UserError, match="dict"):
        literal_text({})

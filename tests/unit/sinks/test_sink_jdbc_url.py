"""JDBC URLs: which sink they mean, what is refused, and that no password is shown."""

import pytest

from headwater.errors import ConfigError
from headwater.model.schema import Column
from headwater.model.types import BIGINT
from headwater.sinks.jdbc import jdbc_sink, parse_url
from headwater.sinks.mysql.sink import MySqlSink
from headwater.sinks.postgres.sink import PostgresSink
from headwater.sinks.sink import SinkKind, SinkSpec


def spec_of(**options):
    return SinkSpec(
        name="s",
        ident="s_1",
        columns=(Column("id", BIGINT),),
        key=("id",),
        kind=SinkKind.UPSERT,
        options={name.replace("_", "."): value for name, value in options.items()},
    )


def test_a_url_of_postgresql():
    kind, options = parse_url(
        "jdbc:postgresql://db.example:6543/shop?user=me&password=p%26q&sslmode=require"
        "&currentSchema=sales&rewriteBatchedInserts=true"
    )
    assert kind == "postgresql"
    assert options == {
        "host": "db.example", "port": "6543", "database": "shop", "user": "me", "password": "p&q",
        "ssl.mode": "require", "schema": "sales",
    }  # fmt: skip


def test_urls_of_mysql_and_mariadb():
    for kind in ("mysql", "mariadb"):
        found, options = parse_url(f"jdbc:{kind}://h/shop?user=me&useSSL=false")
        assert found == kind
        assert options == {"host": "h", "database": "shop", "user": "me", "ssl.mode": "disabled"}


def test_the_sink_is_the_native_one():
    url = "jdbc:{}://h:1/shop?user=me&password=hush-77"
    made = jdbc_sink(spec_of(jdbc_url=url.format("postgresql"), table_name="t", schema_name="x"))
    assert isinstance(made, PostgresSink)
    assert (made._target.name, made._target.options["password"]) == ('"x"."t"', "hush-77")
    other = jdbc_sink(
        spec_of(jdbc_url=url.format("mariadb"), table_name="t", user="you", password="else")
    )
    assert isinstance(other, MySqlSink)
    assert (other._target.options["user"], other._target.options["password"]) == ("you", "else")
    for each in (made, other):
        assert "hush" not in repr(each.__dict__)


@pytest.mark.parametrize(
    ("url", "about"),
    [
        ("postgresql://h/d?user=u&password=hush-77", "must begin with jdbc"),
        ("jdbc:oracle:thin@h/d", "not known"),
        ("jdbc:postgresql://h1:1,h2:2/d?user=u&password=hush-77", "host"),
        ("jdbc:postgresql://h?user=u", "host:port/database"),
        ("jdbc:mysql://u:hush-77@h/d", "host:port/database"),
        ("jdbc:mysql://h/d?user=u&password=hush-77&allowLoadLocalInfile=x", "allowLoadLocalInfile"),
        ("jdbc:mysql://h/d", 'needs the option "user"'),
    ],
)
def test_what_is_refused(url, about):
    with pytest.raises(ConfigError, match=about) as caught:
        jdbc_sink(spec_of(jdbc_url=url, table_name="t"))
    assert "hush" not in str(caught.value)


def test_a_schema_is_no_word_of_mysql():
    with pytest.raises(ConfigError, match=r"schema\.name"):
        jdbc_sink(spec_of(jdbc_url="jdbc:mysql://h/d?user=u", table_name="t", schema_name="x"))

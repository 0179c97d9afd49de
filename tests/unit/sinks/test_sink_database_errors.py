"""What errors of databases mean for a sink: wait, or somebody has to act."""

import psycopg
import pymysql
import pytest

from headwater.errors import SinkUnavailable, UserError
from headwater.model.schema import Column
from headwater.model.types import BIGINT
from headwater.sinks.mysql import connecting as mysql
from headwater.sinks.mysql.options import parse_target as mysql_target
from headwater.sinks.postgres import connecting as postgres
from headwater.sinks.postgres.options import parse_target as postgres_target
from headwater.sinks.sink import SinkKind, SinkSpec

SPEC = SinkSpec(
    name="s",
    ident="s_1",
    columns=(Column("id", BIGINT),),
    key=("id",),
    kind=SinkKind.UPSERT,
    options={"host": "h", "user": "me", "password": "hush-77", "database": "d", "table": "t"},
)


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("53100", SinkUnavailable),
        ("53300", SinkUnavailable),
        ("57P01", SinkUnavailable),
        ("57P03", SinkUnavailable),
        ("25006", SinkUnavailable),
        ("40P01", SinkUnavailable),
        ("55P03", SinkUnavailable),
        ("28P01", UserError),
        ("3D000", UserError),
        ("42501", UserError),
        ("23514", UserError),
    ],
)
def test_states_of_postgresql(state, kind):
    given = psycopg.errors.lookup(state)("it said hush-77")
    failure = postgres.translate(postgres_target(SPEC), given)
    assert isinstance(failure, kind)
    assert "hush" not in str(failure)
    assert ("disk" in failure.message) == (state == "53100")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (1021, SinkUnavailable),
        (1114, SinkUnavailable),
        (1040, SinkUnavailable),
        (1205, SinkUnavailable),
        (1213, SinkUnavailable),
        (1290, SinkUnavailable),
        (2003, SinkUnavailable),
        (2013, SinkUnavailable),
        (1045, UserError),
        (1049, UserError),
        (1142, UserError),
        (1146, UserError),
        (1665, UserError),
        (4025, UserError),
    ],
)
def test_codes_of_mysql_and_mariadb(code, kind):
    given = pymysql.err.OperationalError(code, "it said hush-77")
    failure = mysql.translate(mysql_target(SPEC), given)
    assert isinstance(failure, kind)
    assert "hush" not in str(failure)
    assert ("disk" in failure.message) == (code in (1021, 1114))


def test_a_line_that_breaks_is_waited_for():
    target = mysql_target(SPEC)
    for error in (ConnectionResetError(104, "reset"), pymysql.err.InterfaceError(0, "")):
        assert isinstance(mysql.translate(target, error), SinkUnavailable)
    closed = psycopg.OperationalError("server closed the connection unexpectedly")
    assert isinstance(postgres.translate(postgres_target(SPEC), closed), SinkUnavailable)

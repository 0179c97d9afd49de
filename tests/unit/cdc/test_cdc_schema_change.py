"""What a change of columns upstream asks of a table: one decision per kind, and their laws."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.cdc.external_table import ExternalColumn, ExternalSchema
from headwater.cdc.mysql.ddl import said_of_columns
from headwater.cdc.offset import BinlogOffset, PostgresOffset
from headwater.cdc.schema_change import (
    Follower,
    NotPossible,
    SchemaChange,
    SchemaPolicy,
    as_said,
    decide,
    decode_seen,
    encode_seen,
    policy_of,
    without_policy,
)
from headwater.errors import ConfigError, DamagedState
from headwater.model.schema import Column, Schema
from headwater.model.types import BIGINT, INTEGER, SMALLINT, VARCHAR, decimal

EVOLVE, IGNORE, STOP = SchemaPolicy


def external(*columns, key=("id",)):
    """Columns as `name type [number] [filled]`."""
    return ExternalSchema(
        columns=tuple(
            ExternalColumn(
                column=Column(name, type_), upstream_type="", number=number, filled=filled
            )
            for name, type_, number, filled in (
                (*column, *(None, False)[len(column) - 2 :]) for column in columns
            )
        ),
        key=key,
    )


def table(*columns, key=("id",)):
    return Schema(tuple(Column(name, type_) for name, type_ in columns), key)


PG = external(("id", INTEGER, 1), ("a", INTEGER, 2), ("b", VARCHAR, 3))
MY = external(("id", INTEGER), ("a", INTEGER), ("b", VARCHAR))
HERE = table(("id", INTEGER), ("a", INTEGER), ("b", VARCHAR))
C = ("c", VARCHAR)


@pytest.mark.parametrize(
    ("before", "after", "said", "names", "renamed", "text"),
    [
        (PG, external(("id", INTEGER, 1), ("a", INTEGER, 2), ("b", VARCHAR, 3), ("c", VARCHAR, 4)),
         (), "id a b c", (), 'column "c" was added'),
        (PG, external(("id", INTEGER, 1), ("b", VARCHAR, 3)), (), "id b", (), '"a" was dropped'),
        (PG, external(("id", INTEGER, 1), ("x", INTEGER, 2), ("b", VARCHAR, 3)),
         (), "id x b", (("a", "x"),), '"a" is "x" now'),
        # The same names and types, and yet another column: dropped, and added under a new name.
        (PG, external(("id", INTEGER, 1), ("b", VARCHAR, 3), ("x", INTEGER, 4)),
         (), "id b x", (), '"a" was dropped; column "x" was added'),
        # Two columns change names with each other.
        (PG, external(("id", INTEGER, 1), ("b", INTEGER, 2), ("a", VARCHAR, 3)),
         (), "id b a", (("a", "b"), ("b", "a")), '"a" is "b" now'),
        (PG, external(("id", INTEGER, 1), ("a", BIGINT, 2), ("b", VARCHAR, 3)),
         (), "id a b", (), '"a" is bigint now'),
        (MY, external(("id", INTEGER), ("x", INTEGER), ("b", VARCHAR)), (("a", "x"),),
         "id x b", (("a", "x"),), '"a" is "x" now'),
        # Nobody says rename: then it is none, however alike they look.
        (MY, external(("id", INTEGER), ("x", INTEGER), ("b", VARCHAR)), (),
         "id b x", (), '"a" was dropped; column "x" was added'),
    ],
)  # fmt: skip
def test_a_change_is_told_apart(  # noqa: PLR0917  one argument per thing to tell
    before, after, said, names, renamed, text
):
    found = decide(Follower(schema=HERE), before, after, said)
    assert isinstance(found, SchemaChange)
    assert found.schema.names == tuple(names.split())
    assert found.renamed == renamed
    assert found.rewrites == bool(renamed)
    assert text in found.text
    assert isinstance(decide(Follower(schema=HERE, policy=STOP), before, after, said), NotPossible)
    # Asked again when it is done, there is nothing to do.
    again = decide(Follower(schema=found.schema), after, after, said)
    assert again == SchemaChange(schema=found.schema)


@pytest.mark.parametrize(
    ("after", "why"),
    [
        (external(("id", INTEGER, 1), ("a", SMALLINT, 2), ("b", VARCHAR, 3)), '"a" was integer'),
        (external(("id", INTEGER, 1), ("a", VARCHAR, 2), ("b", VARCHAR, 3)), "varchar now"),
        (external(("id", INTEGER, 1), ("a", INTEGER, 2), ("b", VARCHAR, 3), key=("id", "a")),
         "key is (id, a)"),
        (external(("nr", INTEGER, 1), ("a", INTEGER, 2), ("b", VARCHAR, 3), key=("nr",)), "key is"),
        (external(("a", INTEGER, 2), ("b", VARCHAR, 3), key=("a",)), "key is (a)"),
        (external(*[(*c, n + 1) for n, c in enumerate([("id", INTEGER), ("a", INTEGER),
                   ("b", VARCHAR), ("B", VARCHAR)])]), "there twice"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("policy", [EVOLVE, STOP])
def test_what_is_not_possible_says_why(after, why, policy):
    found = decide(Follower(schema=HERE, policy=policy), PG, after)
    assert isinstance(found, NotPossible)
    if policy is EVOLVE:
        assert why in found.why


def test_ignoring_leaves_out_keeps_and_refuses():
    follower = Follower(schema=HERE, policy=IGNORE)
    more = external(("id", INTEGER, 1), ("a", INTEGER, 2), ("b", VARCHAR, 3), ("c", VARCHAR, 4))
    assert decide(follower, PG, more) == SchemaChange(schema=HERE)
    less = external(("id", INTEGER, 1), ("b", VARCHAR, 3))
    assert decide(follower, PG, less) == SchemaChange(schema=HERE)
    # It is there again: its values come again.
    back = external(("id", INTEGER, 1), ("b", VARCHAR, 3), ("a", INTEGER, 5))
    assert decide(follower, less, back) == SchemaChange(schema=HERE)
    renamed = external(("id", INTEGER, 1), ("x", INTEGER, 2), ("b", VARCHAR, 3))
    assert isinstance(decide(follower, PG, renamed), NotPossible)
    wider = external(("id", INTEGER, 1), ("a", BIGINT, 2), ("b", VARCHAR, 3))
    assert isinstance(decide(follower, PG, wider), NotPossible)


def test_a_table_with_named_columns_follows_only_these():
    follower = Follower(schema=table(("id", INTEGER), ("a", INTEGER)), named=True)
    before = external(("id", INTEGER, 1), ("a", INTEGER, 2))
    more = external(("id", INTEGER, 1), ("a", INTEGER, 2), ("b", VARCHAR, 3), ("c", VARCHAR, 4))
    assert decide(follower, before, more) == SchemaChange(schema=follower.schema)
    renamed = external(("id", INTEGER, 1), ("x", BIGINT, 2), ("b", VARCHAR, 3))
    found = decide(follower, before, renamed)
    assert isinstance(found, SchemaChange)
    assert found.schema == table(("id", INTEGER), ("x", BIGINT))


def test_order_and_defaults_are_nothing():
    other = external(("b", VARCHAR, 3, True), ("id", INTEGER, 1, True), ("a", INTEGER, 2))
    assert decide(Follower(schema=HERE), PG, other) == SchemaChange(schema=HERE)


def test_a_column_with_a_value_for_older_rows_is_to_be_filled():
    more = external(*[(c.column.name, c.column.type, c.number) for c in PG.columns],
                    ("c", VARCHAR, 4, True), ("d", VARCHAR, 5, False))  # fmt: skip
    found = decide(Follower(schema=HERE), PG, more)
    assert isinstance(found, SchemaChange)
    assert found.fill == ("c",)
    assert not found.rewrites


@pytest.mark.parametrize("retired", [frozenset({"c"}), frozenset()])
def test_a_name_that_files_still_have_means_that_they_are_written_anew(retired):
    more = external(*[(c.column.name, c.column.type, c.number) for c in PG.columns],
                    ("C", VARCHAR, 4))  # fmt: skip
    found = decide(Follower(schema=HERE, retired=retired), PG, more)
    assert isinstance(found, SchemaChange)
    assert found.rewrites == bool(retired)


def test_a_dropped_name_that_is_taken_at_once_is_another_column():
    again = external(("id", INTEGER, 1), ("b", VARCHAR, 3), ("a", VARCHAR, 4, True))
    found = decide(Follower(schema=HERE), PG, again)
    assert isinstance(found, SchemaChange)
    assert found.schema.names == ("id", "b", "a")
    assert found.rewrites
    assert found.fill == ("a",)


def test_decimals_widen_by_digits_before_the_point():
    before = external(("id", INTEGER, 1), ("m", decimal(10, 2), 2))
    here = Follower(schema=before.schema)
    wide = decide(here, before, external(("id", INTEGER, 1), ("m", decimal(12, 2), 2)))
    assert isinstance(wide, SchemaChange)
    assert wide.schema["m"].type == decimal(12, 2)
    fine = decide(here, before, external(("id", INTEGER, 1), ("m", decimal(12, 4), 2)))
    assert isinstance(fine, NotPossible)


NAMES = st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=6)
TYPES = st.sampled_from([INTEGER, BIGINT, VARCHAR])


@given(NAMES, NAMES, st.data())
def test_any_change_leads_to_what_is_upstream(old, new, data):
    """Whatever happened: followed, the table has the upstream's columns, none lost, none twice."""
    kinds = {name: data.draw(TYPES) for name in {*old, *new}}
    before = external(("id", INTEGER), *[(name, kinds[name]) for name in old])
    after = external(("id", INTEGER), *[(name, kinds[name]) for name in new])
    here = before.schema
    found = decide(Follower(schema=here), before, after)
    assert isinstance(found, SchemaChange)
    assert set(found.schema.columns) == set(after.schema.columns)
    assert bool(found.text) == (set(old) != set(new))
    # Columns that stay keep their order, so that stored files stay readable.
    stay = [name for name in here.names if name in after.schema.names]
    assert [name for name in found.schema.names if name in stay] == stay


def test_what_a_statement_says_is_applied_one_at_a_time():
    """The server shows the table of today; the log is two statements behind."""
    today = external(("id", INTEGER), ("y", INTEGER), ("c", VARCHAR))
    one = as_said(MY, today, [("a", "x")], {"ALTER", "TABLE", "t", "RENAME", "a", "x"})
    assert one.schema.names == ("id", "x", "b")
    two = as_said(one, today, [("x", "y")], {"RENAME", "x", "y"})
    assert two.schema.names == ("id", "y", "b")
    three = as_said(two, today, [], {"DROP", "B", "ADD", "c", "text"})
    assert three == today


def test_a_statement_that_drops_a_name_which_is_another_column_today():
    """DROP COLUMN b; and later RENAME COLUMN a TO b: the server shows only the last."""
    today = external(("id", INTEGER), ("b", INTEGER))
    said = said_of_columns("ALTER TABLE t DROP COLUMN `b`, DROP INDEX b")
    assert said is not None
    one = as_said(MY, today, said.renamed, said.words)
    assert one.schema.names == ("id", "a")
    found = decide(Follower(schema=HERE), MY, one, said.renamed)
    assert isinstance(found, SchemaChange)
    assert found.schema.names == ("id", "a")
    said = said_of_columns("ALTER TABLE t CHANGE a b int")
    assert said is not None
    two = as_said(one, today, said.renamed, said.words)
    assert two == today
    found = decide(Follower(schema=found.schema), one, two, said.renamed)
    assert isinstance(found, SchemaChange)
    assert found.renamed == (("a", "b"),)


def test_names_that_go_round():
    """RENAME a TO x; then b TO a: while the log is at the first, today shows an a again."""
    today = external(("id", INTEGER), ("x", INTEGER), ("a", VARCHAR))
    said = said_of_columns("ALTER TABLE t RENAME COLUMN a TO x")
    assert said is not None
    one = as_said(MY, today, said.renamed, said.words)
    assert one.schema.names == ("id", "x", "b")
    both = said_of_columns("ALTER TABLE t CHANGE a b int, CHANGE b a text")
    assert both is not None
    swapped = external(("id", INTEGER), ("b", INTEGER), ("a", VARCHAR))
    found = decide(Follower(schema=HERE), MY, as_said(MY, swapped, *_said(both)), both.renamed)
    assert isinstance(found, SchemaChange)
    assert found.renamed == (("a", "b"), ("b", "a"))


def _said(said):
    return said.renamed, said.words


def test_a_column_that_is_dropped_and_made_anew_in_one_statement_is_another():
    said = said_of_columns("ALTER TABLE t DROP b, ADD COLUMN b text NOT NULL AFTER id")
    assert said is not None
    today = external(("id", INTEGER), ("b", VARCHAR, None, True), ("a", INTEGER))
    after = as_said(MY, today, said.renamed, said.words)
    found = decide(Follower(schema=HERE), MY, after, said.renamed)
    assert isinstance(found, SchemaChange)
    assert found.fill == ("b",)
    assert found.rewrites
    assert found.kept == (("id", "id"), ("a", "a"))


def test_a_statement_about_the_key_is_told():
    today = external(("id", INTEGER), ("a", INTEGER), ("b", VARCHAR), key=("a",))
    assert as_said(MY, today, [], {"DROP", "PRIMARY", "KEY", "a"}).key == ("a",)
    assert as_said(MY, today, [], {"ADD", "b"}).key == ("id",)


@pytest.mark.parametrize(
    ("options", "policy"),
    [
        ({}, EVOLVE),
        ({"schema.change": "ignore"}, IGNORE),
        ({"schema.change": "STOP"}, STOP),
        ({"auto.schema.change": "true"}, EVOLVE),
        ({"auto.schema.change": "false"}, IGNORE),
    ],
)
def test_policies(options, policy):
    assert policy_of(options) is policy
    assert without_policy({**options, "port": 1}) == {"port": 1}


@pytest.mark.parametrize(
    "options",
    [
        {"schema.change": "maybe"},
        {"auto.schema.change": "evolve"},
        {"schema.change": "evolve", "auto.schema.change": "true"},
    ],
)
def test_other_policies_are_refused(options):
    with pytest.raises(ConfigError):
        policy_of(options)


@pytest.mark.parametrize("since", [None, PostgresOffset(77), BinlogOffset("b.000001", 4, "1-1-1")])
def test_what_was_seen_is_read_back(since):
    seen = decode_seen(encode_seen("public.t", PG, since, (("a", "b"),)))
    assert (seen.table, seen.schema, seen.begins, seen.renamed) == (
        "public.t", PG, since, (("a", "b"),)
    )  # fmt: skip


@pytest.mark.parametrize("text", ["", "2{}", "1{", '1{"table": 3}'])
def test_damage_is_told(text):
    with pytest.raises(DamagedState):
        decode_seen(text)

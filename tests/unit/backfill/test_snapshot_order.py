"""Which tables a new view reads first, as a user may say it."""

import pytest

from headwater.backfill.snapshot.order import decoded, encoded, in_order, parse_order
from headwater.errors import UserError
from headwater.model.ids import TableId

A, B, C = TableId(1), TableId(2), TableId(3)
TABLES = {"a": A, "s.b": B, "c": C}


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("FIXED(a -> b)", [(A, B)]),
        ('fixed( a -> s.b , "c"->a )', [(A, B), (C, A)]),
        ("FIXED(a -> b -> c)", [(A, B), (B, C)]),
        ("FIXED(a -> b, a -> b)", [(A, B)]),
        ("FIXED()", []),
        ("DEFAULT", []),
    ],
)
def test_what_is_understood(text, order):
    found = parse_order(text, TABLES)
    assert list(found) == order
    assert decoded(encoded(found)) == found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("FIXED(a -> b, b -> a)", "Backfill order strategy has a cycle"),
        ("FIXED(a -> a)", "has a cycle"),
        ("FIXED(a -> d)", "'d' specified in backfill_order is not used in the query"),
        ("FIXED(a)", 'has "a"'),
        ("FIXED(a -> )", "a ->"),
        ("a -> b", "cannot be"),
        ("RANDOM(a -> b)", "cannot be"),
    ],
)
def test_what_is_refused(text, words):
    with pytest.raises(UserError, match=words.replace("->", ".*")) as refused:
        parse_order(text, TABLES)
    assert refused.value.sqlstate == "22023"


def test_tables_without_a_word_stay_where_they_are():
    assert in_order([A, B, C], ()) == [A, B, C]
    assert in_order([A, B, C], ((C, A),)) == [B, C, A]
    assert in_order([A, B, C], ((C, B), (B, A))) == [C, B, A]

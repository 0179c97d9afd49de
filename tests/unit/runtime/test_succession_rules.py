"""Which view may take the place of another."""

import pytest

from headwater.catalog.relation import (
    Detail,
    ObjectDef,
    ObjectKind,
    Query,
    Read,
    TableDef,
    TableKind,
)
from headwater.catalog.snapshot import CatalogSnapshot
from headwater.errors import RelationError
from headwater.model.ids import TableId
from headwater.model.reserved import HIDDEN_PREFIX
from headwater.model.schema import Column, Schema
from headwater.model.types import BIGINT, INTEGER, VARCHAR
from headwater.runtime.succession_rules import (
    dependents_of,
    refuse_being_replaced,
    refuse_reading_itself,
    refuse_swap,
    refuse_unequal,
    refuse_unlike,
    takes_place,
)

ID, NAME = Column("id", INTEGER), Column("name", VARCHAR)
STATE = f"{HIDDEN_PREFIX}count_0"
COUNT = Column(STATE, BIGINT)
KEYED = Schema((ID, NAME), ("id",))
NOTHING: frozenset[str] = frozenset()


def query(*reads: int) -> Query:
    return Query(text="", reads={f"r{id_}": Read(relation=id_, columns=()) for id_ in reads})


def view(id_: int, *reads: int, schema: Schema = KEYED) -> TableDef:
    return TableDef(
        id=TableId(id_),
        name=f"v{id_}",
        schema=schema,
        folder=f"v-{id_}",
        kind=TableKind.MATERIALIZED_VIEW,
        detail=Detail(query=query(*reads)),
    )


def building(id_: int, replaces: int, *reads: int) -> ObjectDef:
    return ObjectDef(
        id=id_,
        kind=ObjectKind.CREATING,
        name=f"v{replaces}",
        query=query(*reads),
        replaces=TableId(replaces),
    )


def index(id_: int, table: int) -> ObjectDef:
    return ObjectDef(id=id_, kind=ObjectKind.INDEX, name="i", table=TableId(table), keys=("id",))


def catalog(*relations: TableDef | ObjectDef) -> CatalogSnapshot:
    return CatalogSnapshot(
        tables=tuple(each for each in relations if isinstance(each, TableDef)),
        objects=tuple(each for each in relations if isinstance(each, ObjectDef)),
    )


def refused(sqlstate, call, *given):
    with pytest.raises(RelationError) as raised:
        call(*given)
    assert raised.value.sqlstate == sqlstate, raised.value
    return str(raised.value)


def test_indexes_and_its_own_replacement_are_no_readers():
    plain = ObjectDef(id=7, kind=ObjectKind.VIEW, name="p", query=query(1))
    now = catalog(view(1), view(2, 1), index(3, 1), building(4, 1, 1), building(5, 2, 1), plain)
    assert [each.id for each in dependents_of(now, 1)] == [2, 5, 7]


@pytest.mark.parametrize(
    ("schema", "fits"),
    [
        (KEYED, True),
        (Schema((ID, NAME, Column("more", INTEGER)), ("id",)), True),
        (Schema((ID, NAME, COUNT), ("id",)), True),
        (Schema((NAME, ID), ("id",)), False),
        (Schema((ID,), ("id",)), False),
        (Schema((Column("id", BIGINT), NAME), ("id",)), False),
        (Schema((ID, Column("title", VARCHAR)), ("id",)), False),
        (Schema((ID, NAME), ("id", "name")), False),
    ],
)
def test_old_columns_come_first_and_the_key_stays(schema, fits):
    old = view(1)
    assert takes_place(old, schema, NOTHING) is fits
    # Nobody minds what nobody reads.
    refuse_unlike(catalog(old, index(2, 1)), old, schema, NOTHING)
    if fits:
        refuse_unlike(catalog(old, view(2, 1)), old, schema, NOTHING)
    else:
        said = refused("42P16", refuse_unlike, catalog(old, view(2, 1)), old, schema, NOTHING)
        assert "materialized view v2" in said


def test_what_files_still_hold_is_not_stored_again():
    more = Schema((ID, NAME, COUNT), ("id",))
    assert not takes_place(view(1), more, frozenset({STATE}))
    # It is there already.
    assert takes_place(view(1, schema=more), more, frozenset({STATE}))
    other = Schema((ID, NAME, Column(STATE, VARCHAR)), ("id",))
    assert not takes_place(view(1, schema=more), other, NOTHING)


def test_nothing_reads_itself():
    now = catalog(view(1), view(2, 1), view(3, 2), view(4))
    for reads in ([1], [2], [4, 3]):
        refused("42P17", refuse_reading_itself, now, now.tables[0], reads)
    refuse_reading_itself(now, now.tables[0], [4])
    # What is being built counts: 4 will read 1.
    later = catalog(*now.tables, building(9, 4, 1))
    refused("42P17", refuse_reading_itself, later, later.tables[0], [4])
    assert "CANCEL JOBS 9" in refused("55000", refuse_being_replaced, later, later.tables[3])


def test_swapping():
    now = catalog(view(1), view(2, 1), view(3, 2), view(4, schema=Schema((ID,), ("id",))))
    one, _, three, four = now.tables
    refused("42P07", refuse_swap, now, one, one)
    for pair in ((one, three), (three, one)):
        refused("42P17", refuse_swap, now, *pair)
    refuse_swap(now, one, four)
    for pair in ((one, four), (four, one)):
        assert "v1" in refused("42P16", refuse_unequal, now, *pair)
    # Nobody reads either of these.
    refuse_unequal(now, three, four)
    refused("55000", refuse_swap, catalog(*now.tables, building(9, 4, 1)), one, four)

import dataclasses

import pytest
from sqlalchemy import text

from headwater.catalog.catalog import Catalog
from headwater.catalog.change import (
    AlterObject,
    AlterTable,
    CatalogChange,
    CreateObject,
    CreateSource,
    CreateTable,
    DropObject,
    DropSource,
    DropTable,
)
from headwater.catalog.relation import (
    ColumnDetail,
    Detail,
    ObjectDef,
    ObjectKind,
    Query,
    Read,
    SourceDef,
    TableDef,
    TableKind,
)
from headwater.errors import BrokenInvariant, DamagedState, RelationError, SchemaError
from headwater.ledger.ledger import Ledger
from headwater.model.epoch import Epoch
from headwater.model.ids import SourceName, TableId
from headwater.model.schema import Column, Schema
from headwater.model.types import BIGINT, INTEGER, VARCHAR, decimal, list_of
from ledger_kit import owner, record

NARROW = Schema((Column("id", INTEGER, False), Column("tags", list_of(VARCHAR))), ("id",))
WIDE = Schema(
    (Column("id", BIGINT, False), Column("tags", list_of(VARCHAR)), Column("sum", decimal(9, 2))),
    ("id",),
)


class Workspace:
    """A ledger and its catalog, changed one epoch at a time."""

    def __init__(self, url: str) -> None:
        self.ledger = Ledger.open(url)
        self.catalog = Catalog(self.ledger)
        self.term = self.ledger.take_over(owner(), force=True)

    def change(self, *changes: CatalogChange) -> Epoch:
        last = self.ledger.last_epoch()
        epoch = Epoch(last + 1)
        self.ledger.append(record(epoch, last, self.term), also=self.catalog.writer(changes, epoch))
        return epoch

    def source(self, name: str, **options: str) -> SourceDef:
        return SourceDef(
            id=self.catalog.next_id(),
            name=SourceName(name),
            kind="postgres-cdc",
            options=options,
            defined_at="shop.sql:3",
        )

    def table(self, name: str, source: str | None = None) -> TableDef:
        id_ = self.catalog.next_id()
        return TableDef(
            id=TableId(id_),
            name=name,
            schema=NARROW,
            folder=f"t{id_}",
            source=None if source is None else SourceName(source),
            upstream=f"public.{name}",
            defined_at="shop.sql:9",
        )


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/ledger.db"


@pytest.fixture
def workspace(url):
    workspace = Workspace(url)
    yield workspace
    workspace.ledger.close()


def test_definitions_come_back_equal_also_after_a_restart(workspace, url):
    shop, orders = workspace.source("shop", host="db", password="p"), workspace.table("o", "shop")
    plain = dataclasses.replace(workspace.table("plain"), append_only=True)
    epoch = workspace.change(
        CreateSource(source=shop), CreateTable(table=orders), CreateTable(table=plain)
    )
    again = Ledger.open(url)
    for catalog in (workspace.catalog, Catalog(again)):
        seen = catalog.snapshot()
        assert seen.sources == (dataclasses.replace(shop, created=epoch),)
        assert seen.tables == tuple(
            dataclasses.replace(table, created=epoch) for table in (orders, plain)
        )
        assert seen.table("o") == seen.table_by_id(orders.id)
        assert seen.source("shop").options == {"host": "db", "password": "p"}
        assert seen.tables_of("shop") == (seen.table("o"),)
        assert seen.table("plain").append_only is True
        assert not seen.dropped_tables
        assert not seen.dropped_sources
    again.close()


def test_passwords_are_not_in_the_text_of_a_definition(workspace):
    assert "hush" not in repr(CreateSource(source=workspace.source("shop", password="hush")))


def test_a_table_lives_through_all_its_changes(workspace):
    orders = workspace.table("orders")
    workspace.change(CreateTable(table=orders))
    workspace.change(AlterTable(table=dataclasses.replace(orders, schema=WIDE)))
    workspace.change(AlterTable(table=dataclasses.replace(orders, schema=WIDE, name="purchases")))
    seen = workspace.catalog.snapshot()
    assert seen.table("purchases").schema == WIDE
    assert seen.table("purchases").folder == orders.folder
    dropped = workspace.change(DropTable(table=orders.id))
    seen = workspace.catalog.snapshot()
    assert seen.tables == ()
    assert seen.dropped_tables[0].dropped == dropped
    assert seen.table_by_id(orders.id).name == "purchases"


def refused(workspace: Workspace, sqlstate: str, *changes: CatalogChange) -> RelationError:
    """The error, after making sure that nothing at all has changed."""
    before = workspace.catalog.snapshot(), workspace.ledger.last_epoch()
    with pytest.raises(RelationError) as raised:
        workspace.change(*changes)
    assert raised.value.sqlstate == sqlstate
    assert (workspace.catalog.snapshot(), workspace.ledger.last_epoch()) == before
    return raised.value


def test_names_are_taken_once(workspace):
    shop, orders = workspace.source("shop"), workspace.table("orders", "shop")
    workspace.change(CreateSource(source=shop), CreateTable(table=orders))
    items = workspace.table("items")
    refused(workspace, "42P07", CreateTable(table=workspace.table("orders")))
    refused(workspace, "42P07", CreateTable(table=workspace.table("shop")))
    refused(workspace, "42710", CreateSource(source=workspace.source("shop")))
    refused(workspace, "42710", CreateSource(source=workspace.source("orders")))
    refused(
        workspace,
        "42P07",
        CreateTable(table=items),
        AlterTable(table=dataclasses.replace(items, name="orders")),
    )
    assert RelationError.sqlstate == "42P01", "the class itself must stay as it is"


def test_what_is_not_there_cannot_be_changed(workspace):
    orders = workspace.table("orders")
    workspace.change(CreateTable(table=orders))
    workspace.change(DropTable(table=orders.id))
    for missing in (orders.id, TableId(99)):
        refused(workspace, "42P01", DropTable(table=missing))
        refused(workspace, "42P01", AlterTable(table=dataclasses.replace(orders, id=missing)))
    refused(workspace, "42704", DropSource(source=SourceName("shop")))
    refused(workspace, "42704", CreateTable(table=workspace.table("o", "shop")))


def test_a_source_in_use_stays(workspace):
    shop, orders = workspace.source("shop"), workspace.table("orders", "shop")
    workspace.change(CreateSource(source=shop), CreateTable(table=orders))
    error = refused(workspace, "2BP01", DropSource(source=shop.name))
    assert "orders" in error.detail
    assert "CASCADE" in error.hint
    workspace.change(DropTable(table=orders.id), DropSource(source=shop.name))
    assert workspace.catalog.snapshot().sources == ()


def test_a_schema_that_stored_rows_do_not_fit(workspace):
    orders = dataclasses.replace(workspace.table("orders"), schema=WIDE)
    workspace.change(CreateTable(table=orders))
    with pytest.raises(SchemaError, match='column "id"'):
        workspace.change(AlterTable(table=dataclasses.replace(orders, schema=NARROW)))
    assert workspace.catalog.snapshot().table("orders").schema == WIDE


def test_a_later_change_that_fails_takes_the_earlier_ones_back(workspace):
    refused(
        workspace,
        "42P01",
        CreateTable(table=workspace.table("orders")),
        DropTable(table=TableId(99)),
    )


def test_dropped_relations_are_listed_until_they_are_purged(workspace):
    shop, orders = workspace.source("shop"), workspace.table("orders", "shop")
    workspace.change(CreateSource(source=shop), CreateTable(table=orders))
    for purge in (
        lambda: workspace.catalog.purge(orders.id),
        lambda: workspace.catalog.purge_source(shop.id),
    ):
        with pytest.raises(BrokenInvariant, match="still exists"):
            purge()
    workspace.change(DropTable(table=orders.id), DropSource(source=shop.name))
    second = workspace.source("shop")
    workspace.change(
        CreateSource(source=second), CreateTable(table=workspace.table("orders", "shop"))
    )
    seen = workspace.catalog.snapshot()
    assert [table.id for table in seen.dropped_tables] == [orders.id]
    assert [source.id for source in seen.dropped_sources] == [shop.id]
    for _ in range(2):
        workspace.catalog.purge(orders.id)
        workspace.catalog.purge_source(shop.id)
    seen = workspace.catalog.snapshot()
    assert seen.dropped_tables == seen.dropped_sources == ()
    assert seen.source("shop").id == second.id


def test_ids_are_never_given_twice(workspace, url):
    orders = workspace.table("orders")
    workspace.change(CreateTable(table=orders))
    refused(workspace, "42P07", CreateTable(table=workspace.table("orders")))
    workspace.change(DropTable(table=orders.id))
    with pytest.raises(BrokenInvariant, match="not given"):
        workspace.change(CreateTable(table=dataclasses.replace(orders, folder="other")))
    workspace.catalog.purge(orders.id)
    again = Ledger.open(url)
    assert Catalog(again).next_id() == 3
    again.close()
    with pytest.raises(BrokenInvariant, match="not given"):
        workspace.change(CreateTable(table=dataclasses.replace(orders, id=TableId(77))))


def test_a_name_that_is_nearly_right_is_proposed(workspace):
    workspace.change(
        CreateSource(source=workspace.source("shop")), CreateTable(table=workspace.table("orders"))
    )
    seen = workspace.catalog.snapshot()
    with pytest.raises(RelationError, match='table "order" does not exist') as error:
        seen.table("order")
    assert error.value.hint == 'Did you mean "orders"?'
    with pytest.raises(RelationError) as error:
        seen.source("shopp")
    assert error.value.hint == 'Did you mean "shop"?'
    assert error.value.sqlstate == "42704"
    with pytest.raises(RelationError) as error:
        seen.table("nothing like it")
    assert error.value.hint == ""


@pytest.mark.parametrize(
    "statement",
    ["UPDATE hw_table SET columns = '{\"columns\": 7}'", "UPDATE hw_source SET options = '{'"],
)
def test_damaged_definitions_are_found(workspace, statement):
    workspace.change(
        CreateSource(source=workspace.source("shop")), CreateTable(table=workspace.table("orders"))
    )
    with workspace.ledger.transaction() as connection:
        connection.execute(text(statement))
    with pytest.raises(DamagedState):
        workspace.catalog.snapshot()


def view(workspace: Workspace, name: str, *reads: int, **other: object) -> ObjectDef:
    query = Query(
        text="select id from t", reads={f"t{r}": Read(relation=r, columns=("id",)) for r in reads}
    )
    return ObjectDef(
        id=workspace.catalog.next_id(),
        kind=ObjectKind.VIEW,
        name=name,
        query=query,
        columns=(Column("id", BIGINT),),
        **other,
    )


def schema(workspace: Workspace, name: str) -> ObjectDef:
    return ObjectDef(id=workspace.catalog.next_id(), kind=ObjectKind.SCHEMA, name=name)


def test_what_sql_knows_of_a_table_is_read_back(workspace):
    there = workspace.table("t")
    workspace.change(CreateTable(table=there))
    detail = Detail(
        definition="create table orders (...)",
        owner="ann",
        comment="all of them",
        columns={"id": ColumnDetail(default="1 + 1", length=3, comment="the id")},
        conflict="nothing",
        rate_limit=7,
        query=Query(
            text="select 1",
            reads={"public.t": Read(relation=there.id, columns=("id",))},
            aliases=("x",),
            policy="full",
            stores=(TableId(8),),
        ),
        part_of=TableId(3),
    )
    orders = dataclasses.replace(
        workspace.table("orders"), detail=detail, kind=TableKind.MATERIALIZED_VIEW
    )
    workspace.change(CreateTable(table=orders))
    seen = workspace.catalog.snapshot().table("orders")
    assert (seen.detail, seen.kind) == (detail, TableKind.MATERIALIZED_VIEW)


def test_schemas_hold_names_apart(workspace):
    sales = schema(workspace, "sales")
    workspace.change(CreateObject(object=sales), CreateTable(table=workspace.table("orders")))
    orders = dataclasses.replace(workspace.table("orders"), namespace="sales")
    workspace.change(CreateTable(table=orders))
    seen = workspace.catalog.snapshot()
    assert seen.table("orders", "sales").id == orders.id != seen.table("orders").id
    lost = dataclasses.replace(workspace.table("x"), namespace="salse")
    assert "sales" in refused(workspace, "3F000", CreateTable(table=lost)).hint
    refused(workspace, "42P06", CreateObject(object=schema(workspace, "sales")))
    refused(workspace, "42P06", CreateObject(object=schema(workspace, "public")))
    assert "orders" in refused(workspace, "2BP01", DropObject(object=sales.id)).detail
    workspace.change(DropTable(table=orders.id), DropObject(object=sales.id))
    assert workspace.catalog.snapshot().schemas == ("public",)


def test_what_is_read_stays(workspace):
    orders = workspace.table("orders")
    inner = view(workspace, "inner", orders.id)
    outer = view(workspace, "outer", inner.id)
    workspace.change(CreateTable(table=orders), CreateObject(object=inner))
    workspace.change(CreateObject(object=outer))
    seen = workspace.catalog.snapshot()
    assert [each.name for each in seen.dependents([orders.id])] == ["outer", "inner"]
    assert seen.relation("inner") == dataclasses.replace(inner, created=Epoch(1))
    refused(workspace, "2BP01", DropTable(table=orders.id))
    refused(workspace, "2BP01", DropObject(object=inner.id))
    refused(workspace, "42P07", CreateObject(object=view(workspace, "orders")))
    refused(workspace, "42P07", AlterObject(object=dataclasses.replace(inner, name="outer")))
    workspace.change(AlterObject(object=dataclasses.replace(inner, name="core", comment="c")))
    assert workspace.catalog.snapshot().relation("core") is not None
    workspace.change(
        DropObject(object=outer.id), DropObject(object=inner.id), DropTable(table=orders.id)
    )
    assert workspace.catalog.snapshot().objects == ()
    refused(workspace, "42704", DropObject(object=outer.id))


def test_what_is_read_must_be_there_as_it_was_planned_with(workspace):
    orders = workspace.table("orders")
    refused(workspace, "42P01", CreateObject(object=view(workspace, "early", orders.id)))
    workspace.change(CreateTable(table=orders))
    query = Query(text="", reads={"orders": Read(relation=orders.id, columns=("id", "gone"))})
    late = dataclasses.replace(view(workspace, "late"), query=query)
    refused(workspace, "42703", CreateObject(object=late))
    kept = dataclasses.replace(workspace.table("kept"), detail=Detail(query=query))
    refused(workspace, "42703", CreateTable(table=kept))
    index = ObjectDef(
        id=workspace.catalog.next_id(), kind=ObjectKind.INDEX, name="i", table=TableId(99)
    )
    refused(workspace, "42P01", CreateObject(object=index))
    workspace.change(CreateObject(object=view(workspace, "fine", orders.id)))


def test_system_settings_stay(workspace):
    workspace.catalog.set_settings({"barrier_interval_ms": "250", "other": "1"})
    workspace.catalog.set_settings({"barrier_interval_ms": "500", "other": None})
    assert workspace.catalog.snapshot().settings == {"barrier_interval_ms": "500"}

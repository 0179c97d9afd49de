"""The tables of pg_catalog that follow what users create.

Rows of the system relations themselves are the same in every workspace: they are made once and
put in front of the users' rows.
"""

from collections.abc import Callable, Iterator
from functools import cache

import pyarrow as pa

from headwater.system import numbers
from headwater.system.facts import SystemFacts, UserFact
from headwater.system.listing import (
    INDEX,
    MATERIALIZED_VIEW,
    TABLE,
    VIEW,
    Listed,
    ListedColumn,
    ListedIndex,
    Listing,
)
from headwater.system.pg_types import PgType, all_types, by_name
from headwater.system.relations import SystemRelation, known
from headwater.system.rows import rows_of

_ROOT_OID = numbers.user_oid(1)

Build = Callable[[SystemFacts, Listing], pa.Table]


def owner_oid(users: tuple[UserFact, ...], name: str) -> int:
    """The number of an owner; what nobody owns is root's."""
    return next((numbers.user_oid(user.id) for user in users if user.name == name), _ROOT_OID)


_CLASS_NAMES = (
    "oid", "relname", "relnamespace", "relkind", "relowner", "relnatts", "reltype", "relam",
    "relhasindex", "relhasrules", "relfilenode", "relreplident",
)  # fmt: skip
_CLASS_SAME: dict[str, object] = {
    "reltablespace": 0, "reloftype": 0, "relpages": 0, "reltuples": -1.0, "relallvisible": 0,
    "reltoastrelid": 0,
    "relisshared": False, "relpersistence": "p", "relchecks": 0, "relhastriggers": False,
    "relhassubclass": False, "relrowsecurity": False, "relforcerowsecurity": False,
    "relispopulated": True, "relispartition": False, "relrewrite": 0,
    "relfrozenxid": 0, "relminmxid": 0,
}  # fmt: skip


def _class_row(
    each: Listed, facts: SystemFacts, listing: Listing, indexed: bool
) -> tuple[object, ...]:
    stored = each.kind in (TABLE, MATERIALIZED_VIEW)
    return (
        each.oid, each.name, listing.schemas.get(each.namespace, 0), each.kind,
        owner_oid(facts.users, each.owner), len(each.columns), numbers.row_type_oid(each.oid),
        numbers.HEAP if stored else 0, indexed, each.kind != TABLE, each.oid if stored else 0,
        "d" if stored else "n",
    )  # fmt: skip


def _index_class_row(each: ListedIndex, facts: SystemFacts, listing: Listing) -> tuple[object, ...]:
    return (
        each.oid, each.name, listing.schemas.get(each.namespace, 0), INDEX,
        owner_oid(facts.users, each.owner), len(each.columns), 0, numbers.BTREE, False, False,
        each.oid, "n",
    )  # fmt: skip


@cache
def _system_classes() -> pa.Table:
    rows = [
        (
            each.oid, each.name, numbers.SYSTEM_SCHEMAS[each.namespace],
            TABLE if each.kind == "table" else VIEW, _ROOT_OID, len(each.columns), 0,
            numbers.HEAP if each.kind == "table" else 0, False, False,
            each.oid if each.kind == "table" else 0, "n",
        )
        for each in known().values()
    ]  # fmt: skip
    return rows_of("pg_catalog.pg_class", _CLASS_NAMES, rows, _CLASS_SAME)


def pg_class(facts: SystemFacts, listing: Listing) -> pa.Table:
    """Relations and indexes."""
    indexed = {each.table.oid for each in listing.indexes}
    rows = [_class_row(each, facts, listing, each.oid in indexed) for each in listing.relations]
    rows += [_index_class_row(each, facts, listing) for each in listing.indexes]
    users = rows_of("pg_catalog.pg_class", _CLASS_NAMES, rows, _CLASS_SAME)
    return pa.concat_tables([_system_classes(), users])


_ATTRIBUTE_NAMES = (
    "attrelid", "attname", "atttypid", "attlen", "attnum", "attndims", "atttypmod", "attbyval",
    "attalign", "attstorage", "attnotnull", "atthasdef", "attgenerated", "attcollation",
)  # fmt: skip
_ATTRIBUTE_SAME: dict[str, object] = {
    "attstattarget": -1, "attcacheoff": -1, "attcompression": "", "atthasmissing": False,
    "attidentity": "", "attisdropped": False, "attislocal": True, "attinhcount": 0,
}  # fmt: skip


def _attribute(
    oid: int, number: int, column: ListedColumn, *, plain: bool = False
) -> tuple[object, ...]:
    """A column's row; in an index (`plain`) a column has no default and may be null."""
    type_ = column.type
    return (
        oid, column.name, type_.oid, type_.length, number, column.dimensions, column.modifier,
        type_.by_value, type_.alignment, type_.storage, not plain and not column.nullable,
        not plain and column.expression is not None,
        "s" if column.detail.generated and not plain else "", type_.collation,
    )  # fmt: skip


def _form_type(form: str) -> PgType:
    known_type = by_name().get(f"_{form[:-2]}" if form.endswith("[]") else form)
    return known_type or by_name()["text"]


@cache
def _system_attributes() -> pa.Table:
    rows: list[tuple[object, ...]] = []
    for each in known().values():
        for number, column in enumerate(each.columns, 1):
            type_ = _form_type(column.form)
            rows.append((
                each.oid, column.name, type_.oid, type_.length, number,
                1 if column.form.endswith("[]") else 0, -1, type_.by_value, type_.alignment,
                type_.storage, not column.nullable, False, "", type_.collation,
            ))  # fmt: skip
    return rows_of("pg_catalog.pg_attribute", _ATTRIBUTE_NAMES, rows, _ATTRIBUTE_SAME)


def pg_attribute(_facts: SystemFacts, listing: Listing) -> pa.Table:
    """Columns of relations and of indexes."""
    rows = [
        _attribute(each.oid, column.number, column)
        for each in listing.relations
        for column in each.columns
    ]
    rows += [
        _attribute(each.oid, number, column, plain=True)
        for each in listing.indexes
        for number, column in enumerate(each.columns, 1)
    ]
    users = rows_of("pg_catalog.pg_attribute", _ATTRIBUTE_NAMES, rows, _ATTRIBUTE_SAME)
    return pa.concat_tables([_system_attributes(), users])


def pg_namespace(facts: SystemFacts, listing: Listing) -> pa.Table:
    """Schemas."""
    owners = {each.name: each.owner for each in facts.snapshot.objects}
    rows = [
        (oid, name, owner_oid(facts.users, owners.get(name, "")))
        for name, oid in listing.schemas.items()
    ]
    return rows_of("pg_catalog.pg_namespace", ("oid", "nspname", "nspowner"), rows)


def pg_index(_facts: SystemFacts, listing: Listing) -> pa.Table:
    """Indexes."""
    names = (
        "indexrelid", "indrelid", "indnatts", "indnkeyatts", "indisunique", "indisprimary",
        "indkey", "indcollation", "indclass", "indoption",
    )  # fmt: skip
    rows = [
        (
            each.oid, each.table.oid, len(each.columns), len(each.keys), each.unique, each.primary,
            [*each.keys, *each.includes],
            [column.type.collation for column in each.columns[: len(each.keys)]],
            [_operator_class(column.type) for column in each.columns[: len(each.keys)]],
            [0] * len(each.keys),
        )
        for each in listing.indexes
    ]  # fmt: skip
    same: dict[str, object] = {
        "indnullsnotdistinct": False, "indisexclusion": False, "indimmediate": True,
        "indisclustered": False, "indisvalid": True, "indcheckxmin": False, "indisready": True,
        "indislive": True, "indisreplident": False,
    }  # fmt: skip
    return rows_of("pg_catalog.pg_index", names, rows, same)


OPERATOR_CLASSES: dict[str, tuple[int, str, int]] = {
    # type: (number, name, family), all of btree
    "bool": (10003, "bool_ops", 424),
    "bytea": (10006, "bytea_ops", 428),
    "date": (3122, "date_ops", 434),
    "float4": (10012, "float4_ops", 1970),
    "float8": (3123, "float8_ops", 1970),
    "int2": (1979, "int2_ops", 1976),
    "int4": (1978, "int4_ops", 1976),
    "int8": (3124, "int8_ops", 1976),
    "interval": (10022, "interval_ops", 1982),
    "numeric": (3125, "numeric_ops", 1988),
    "text": (3126, "text_ops", 1994),
    "time": (10038, "time_ops", 1996),
    "timestamp": (3128, "timestamp_ops", 434),
    "timestamptz": (3127, "timestamptz_ops", 434),
    "uuid": (10066, "uuid_ops", 2968),
    "jsonb": (10097, "jsonb_ops", 4033),
    "anyarray": (10000, "array_ops", 397),
    "record": (10034, "record_ops", 2994),
}


def _operator_class(type_: PgType) -> int:
    name = "anyarray" if type_.category == "A" else type_.name
    return OPERATOR_CLASSES.get(name, OPERATOR_CLASSES["text"])[0]


def pg_constraint(_facts: SystemFacts, listing: Listing) -> pa.Table:
    """Primary keys; Headwater has no other constraints."""
    names = ("oid", "conname", "connamespace", "conrelid", "conindid", "conkey")
    rows = [
        (
            numbers.key_constraint_oid(each.oid), each.key_name,
            listing.schemas.get(each.namespace, 0), each.oid, numbers.key_index_oid(each.oid),
            list(each.key),
        )
        for each in listing.relations
        if each.key
    ]  # fmt: skip
    same: dict[str, object] = {
        "contype": "p", "condeferrable": False, "condeferred": False, "convalidated": True,
        "contypid": 0, "conparentid": 0, "confrelid": 0, "confupdtype": "", "confdeltype": "",
        "confmatchtype": "", "conislocal": True, "coninhcount": 0, "connoinherit": True,
        "conenforced": True, "conperiod": False,
    }  # fmt: skip
    return rows_of("pg_catalog.pg_constraint", names, rows, same)


def pg_attrdef(_facts: SystemFacts, listing: Listing) -> pa.Table:
    """Defaults and generated columns; the expression is kept as its text."""
    rows = [
        (
            numbers.default_oid(each.oid, column.number), each.oid, column.number, column.expression
        )
        for each in listing.relations
        for column in each.columns
        if column.expression is not None
    ]  # fmt: skip
    return rows_of("pg_catalog.pg_attrdef", ("oid", "adrelid", "adnum", "adbin"), rows)


def comments(listing: Listing) -> Iterator[tuple[int, int, str]]:
    """All comments: relation, column number or 0, and text."""
    for each in listing.all:
        if each.comment is not None:
            yield each.oid, 0, each.comment
    for relation in listing.relations:
        for column in relation.columns:
            if column.detail.comment is not None:
                yield relation.oid, column.number, column.detail.comment


def pg_description(_facts: SystemFacts, listing: Listing) -> pa.Table:
    """Comments."""
    rows = list(comments(listing))
    same = {"classoid": numbers.PG_CLASS}
    return rows_of("pg_catalog.pg_description", ("objoid", "objsubid", "description"), rows, same)


def pg_depend(_facts: SystemFacts, listing: Listing) -> pa.Table:
    """Indexes need their tables, and the rules of views the relations that they read."""
    rows: list[tuple[object, ...]] = []
    for index in listing.indexes:
        owner = numbers.key_constraint_oid(index.table.oid) if index.primary else index.table.oid
        of = numbers.PG_CONSTRAINT if index.primary else numbers.PG_CLASS
        rows.append((numbers.PG_CLASS, index.oid, of, owner, "i" if index.primary else "a"))
    for each in listing.relations:
        if each.key:
            constraint = numbers.key_constraint_oid(each.oid)
            rows.append((numbers.PG_CONSTRAINT, constraint, numbers.PG_CLASS, each.oid, "a"))
        if each.query is not None:
            rule = numbers.rule_oid(each.oid)
            rows.append((numbers.PG_REWRITE, rule, numbers.PG_CLASS, each.oid, "i"))
            for read in sorted(each.reads):
                other = numbers.relation_oid(read)
                rows.append((numbers.PG_REWRITE, rule, numbers.PG_CLASS, other, "n"))
    names = ("classid", "objid", "refclassid", "refobjid", "deptype")
    return rows_of("pg_catalog.pg_depend", names, rows, {"objsubid": 0, "refobjsubid": 0})


def pg_rewrite(_facts: SystemFacts, listing: Listing) -> pa.Table:
    """The rules that make views views."""
    rows = [
        (numbers.rule_oid(each.oid), each.oid, each.query)
        for each in listing.relations
        if each.query is not None
    ]
    same: dict[str, object] = {
        "rulename": "_RETURN", "ev_type": "1", "ev_enabled": "O", "is_instead": True,
        "ev_qual": "<>",
    }  # fmt: skip
    return rows_of("pg_catalog.pg_rewrite", ("oid", "ev_class", "ev_action"), rows, same)


_TYPE_NAMES = (
    "oid", "typname", "typnamespace", "typlen", "typbyval", "typtype", "typcategory",
    "typispreferred", "typdelim", "typrelid", "typelem", "typarray", "typinput", "typoutput",
    "typreceive", "typsend", "typalign", "typstorage", "typcollation",
)  # fmt: skip
_TYPE_SAME: dict[str, object] = {
    "typowner": _ROOT_OID, "typisdefined": True, "typsubscript": 0, "typmodin": 0, "typmodout": 0,
    "typanalyze": 0, "typnotnull": False, "typbasetype": 0, "typtypmod": -1, "typndims": 0,
}  # fmt: skip


@cache
def _system_types() -> pa.Table:
    rows = [
        (
            each.oid, each.name, 11, each.length, each.by_value, each.kind, each.category,
            each.preferred, each.delimiter, 0, each.element, each.array,
            *(function.oid for function in each.functions), each.alignment, each.storage,
            each.collation,
        )
        for each in all_types()
    ]  # fmt: skip
    return rows_of("pg_catalog.pg_type", _TYPE_NAMES, rows, _TYPE_SAME)


def pg_type(_facts: SystemFacts, listing: Listing) -> pa.Table:
    """Built-in types, and the types of the rows of relations."""
    record, array = by_name()["record"], by_name()["_record"]
    rows: list[tuple[object, ...]] = []
    for each in listing.relations:
        schema = listing.schemas.get(each.namespace, 0)
        row, many = numbers.row_type_oid(each.oid), numbers.array_type_oid(each.oid)
        rows.append((
            row, each.name, schema, -1, False, "c", "C", False, ",", each.oid, 0, many,
            *(function.oid for function in record.functions), "d", "x", 0,
        ))  # fmt: skip
        rows.append((
            many, f"_{each.name}", schema, -1, False, "b", "A", False, ",", 0, row, 0,
            *(function.oid for function in array.functions), "d", "x", 0,
        ))  # fmt: skip
    users = rows_of("pg_catalog.pg_type", _TYPE_NAMES, rows, _TYPE_SAME)
    return pa.concat_tables([_system_types(), users])


def system_columns(each: SystemRelation) -> list[tuple[int, str, PgType]]:
    """The columns of a system relation: number, name and type."""
    return [(n, c.name, _form_type(c.form)) for n, c in enumerate(each.columns, 1)]


BUILDERS: dict[str, Build] = {
    "pg_catalog.pg_class": pg_class,
    "pg_catalog.pg_attribute": pg_attribute,
    "pg_catalog.pg_namespace": pg_namespace,
    "pg_catalog.pg_index": pg_index,
    "pg_catalog.pg_constraint": pg_constraint,
    "pg_catalog.pg_attrdef": pg_attrdef,
    "pg_catalog.pg_description": pg_description,
    "pg_catalog.pg_depend": pg_depend,
    "pg_catalog.pg_rewrite": pg_rewrite,
    "pg_catalog.pg_type": pg_type,
}
"""What is made anew when the catalog or the users changed."""

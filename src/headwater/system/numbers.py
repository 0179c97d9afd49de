"""Object identifiers: one number for everything that the system tables name.

    what                          number in pg_*                number in rw_*
    relation, index, schema       16384 + its id                its id
    row type, its array           2^27 + id, 2 * 2^27 + id
    primary key's index           3 * 2^27 + id
    primary key's constraint      4 * 2^27 + id
    rule of a view                5 * 2^27 + id
    user                          9 + its id (root is 10)       its id
    what PostgreSQL has           PostgreSQL's own

Ids are never used again, so neither are these numbers, and they stay the same over restarts. All
are below 2^31: clients may read them as signed.
"""

from headwater.catalog.relation import PUBLIC
from headwater.system.relations import HW_CATALOG, INFORMATION_SCHEMA, PG_CATALOG, RW_CATALOG

_FIRST = 16384
_STEP = 1 << 27

DATABASE_OID = 5
DEFAULT_TABLESPACE = 1663
GLOBAL_TABLESPACE = 1664
BTREE = 403
HEAP = 2
DEFAULT_COLLATION = 100

PG_CLASS = 1259
PG_ATTRDEF = 2604
PG_CONSTRAINT = 2606
PG_NAMESPACE = 2615
PG_REWRITE = 2618
PG_DATABASE = 1262
PG_TYPE = 1247
PG_PROC = 1255

SYSTEM_SCHEMAS = {
    PG_CATALOG: 11,
    PUBLIC: 2200,
    INFORMATION_SCHEMA: 13000,
    RW_CATALOG: 14000,
    HW_CATALOG: 14500,
}


def relation_oid(id_: int) -> int:
    """The number of a relation, an index or a schema."""
    return _FIRST + id_


def row_type_oid(oid: int) -> int:
    """The number of the type that a relation's rows have."""
    return _STEP + oid - _FIRST


def array_type_oid(oid: int) -> int:
    """The number of the array of that type."""
    return 2 * _STEP + oid - _FIRST


def key_index_oid(oid: int) -> int:
    """The number of the index of a relation's primary key."""
    return 3 * _STEP + oid - _FIRST


def key_constraint_oid(oid: int) -> int:
    """The number of a relation's primary key."""
    return 4 * _STEP + oid - _FIRST


def rule_oid(oid: int) -> int:
    """The number of the rule that makes a view a view."""
    return 5 * _STEP + oid - _FIRST


def default_oid(oid: int, column: int) -> int:
    """The number of a column's default; PostgreSQL has at most 1600 columns."""
    return ((oid - _FIRST) * 1600 + column) % (1 << 31)


def user_oid(id_: int) -> int:
    """The number of a user."""
    return 9 + id_

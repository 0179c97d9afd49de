"""What names mean in a workspace: relations of the catalog, as the planner asks for them.

A query that is planned for the first time finds names along the session's search path, and
what it found is written down with it. A stored query is planned by what was written down, so it
keeps its meaning when relations are renamed or get more columns.
"""

from collections.abc import Iterable, Mapping, Sequence

from headwater.catalog.relation import PUBLIC, ObjectDef, ObjectKind, Read, TableDef, TableKind
from headwater.catalog.snapshot import CatalogSnapshot, relation_error
from headwater.errors import DamagedState, RelationError
from headwater.sql.relations import Relation
from headwater.sql.statement import ObjectName


def still_creating(name: str) -> RelationError:
    """The error for a view that is not there yet."""
    return relation_error(
        f'"{name}" is still being created',
        "55000",
        hint="SHOW JOBS says how far it is; WAIT waits until it is there.",
    )


class CatalogRelations:
    """Finds names along a search path, and writes down what it found in `reads`."""

    def __init__(self, snapshot: CatalogSnapshot, path: Sequence[str] = (PUBLIC,)) -> None:
        self._snapshot = snapshot
        self._path = path
        self.reads: dict[str, Read] = {}

    def find(self, name: ObjectName) -> Relation | None:
        """The relation that a name means."""
        for namespace in self._path if name.schema is None else (name.schema,):
            found = self._snapshot.relation(name.name, namespace)
            if found is not None and found.kind is ObjectKind.CREATING:
                raise still_creating(str(name))
            if found is not None and found.kind is not ObjectKind.INDEX:
                relation = as_relation(self._snapshot, found)
                columns = tuple(column.name for column in relation.columns)
                self.reads[str(name)] = Read(relation=found.id, columns=columns)
                return relation
        return None

    def names(self) -> Iterable[str]:
        """All names, for suggestions."""
        return (each.name for each in self._snapshot.everything if each.kind is not TableKind.STORE)


class BoundRelations:
    """Finds names as they were when a query was first planned."""

    def __init__(self, snapshot: CatalogSnapshot, reads: Mapping[str, Read]) -> None:
        self._snapshot = snapshot
        self._reads = reads

    def find(self, name: ObjectName) -> Relation | None:
        """The relation that a name meant."""
        read = self._reads.get(str(name))
        found = None if read is None else self._snapshot.by_id(read.relation)
        if read is None or found is None:
            raise DamagedState(f'a stored query reads "{name}", which the catalog does not have')
        return as_relation(self._snapshot, found, read.columns)

    def names(self) -> Iterable[str]:
        """All names."""
        return self._reads


def as_relation(
    snapshot: CatalogSnapshot,
    definition: TableDef | ObjectDef,
    columns: Sequence[str] | None = None,
) -> Relation:
    """A definition as the planner sees it, with only some of its columns if asked."""
    seen = definition.columns
    if columns is not None:
        by_name = {column.name: column for column in seen}
        seen = tuple(by_name[name] for name in columns if name in by_name)
    if isinstance(definition, ObjectDef):
        assert definition.query is not None
        return Relation(
            name=definition.name,
            schema=definition.namespace,
            columns=seen,
            query=definition.query.text,
            within=BoundRelations(snapshot, definition.query.reads),
        )
    key = definition.schema.key
    wanted = {column.name for column in seen}
    return Relation(
        name=definition.name,
        schema=definition.namespace,
        columns=seen,
        key=key,
        hidden=tuple(c for c in definition.schema.key_columns if c.name not in wanted),
        id=definition.id,
    )

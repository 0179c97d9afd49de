"""Which view may take the place of another, and what stands against it. Pure.

    others read it    the new one's columns and key                      what happens
    no                any                                                it takes the name
    yes               begin with the old ones, and are stored like it    it takes the place
    yes               anything else                                      refused

To take the place is to keep the id, the files and the change log of the one before; to take the
name is to come with its own. An index is no reader: it moves along while its columns are there.
Nothing may come to read itself, by way of others or of what is still being built either.
"""

from collections.abc import Iterable

from headwater.catalog.relation import ObjectDef, ObjectKind, TableDef
from headwater.catalog.snapshot import CatalogSnapshot, relation_error
from headwater.errors import RelationError, SchemaError
from headwater.model.reserved import HIDDEN_PREFIX
from headwater.model.schema import Column, Schema

_IN_USE = "55000"
_READS_ITSELF = "42P17"
_OTHER_COLUMNS = "42P16"


def dependents_of(snapshot: CatalogSnapshot, id_: int) -> list[TableDef | ObjectDef]:
    """Who reads a view, and would notice that it is another."""
    return [
        each
        for each in snapshot.readers(id_)
        if each.kind is not ObjectKind.INDEX
        and not (isinstance(each, ObjectDef) and each.replaces == id_)
    ]


def refuse_reading_itself(snapshot: CatalogSnapshot, view: TableDef, reads: Iterable[int]) -> None:
    """Raise when a view with these reads would need itself."""
    if view.id in _needs(snapshot, reads):
        raise relation_error(
            f'view "{view.name}" would read itself',
            _READS_ITSELF,
            hint="Create a view under another name.",
        )


def refuse_being_replaced(snapshot: CatalogSnapshot, view: TableDef) -> None:
    """Raise when something is already being built to take the view's place."""
    if (building := snapshot.replacement_of(view.id)) is not None:
        raise relation_error(
            f'view "{view.name}" is being replaced',
            _IN_USE,
            hint=f"WAIT MATERIALIZED VIEW {view.name} waits until it is done; "
            f"CANCEL JOBS {building.id} gives it up.",
        )


def takes_place(old: TableDef, schema: Schema, retired: frozenset[str]) -> bool:
    """Whether rows of a schema can be stored where a view's are; `retired` names cannot be used."""
    return _unlike(old, schema, retired) is None


def refuse_unlike(
    snapshot: CatalogSnapshot, old: TableDef, schema: Schema, retired: frozenset[str]
) -> None:
    """Raise when others read a view, and cannot go on with rows of this schema."""
    readers = dependents_of(snapshot, old.id)
    error = _unlike(old, schema, retired) if readers else None
    if error is not None:
        names = ", ".join(sorted(f"{each.kind.value} {each.name}" for each in readers))
        raise relation_error(
            error.message,
            error.sqlstate,
            detail=f"{error.detail} It is read by {names}.".strip(),
            hint=error.hint,
        )


def refuse_swap(snapshot: CatalogSnapshot, first: TableDef, second: TableDef) -> None:
    """Raise when two views cannot exchange their names."""
    if first.id == second.id:
        raise relation_error(f'view "{first.name}" cannot be swapped with itself', "42P07")
    for view, other in ((first, second), (second, first)):
        refuse_being_replaced(snapshot, view)
        if other.id in _needs(snapshot, [view.id]):
            raise relation_error(
                f'view "{view.name}" reads "{other.name}"',
                _READS_ITSELF,
                detail="Swapped, it would read itself.",
            )


def refuse_unequal(snapshot: CatalogSnapshot, first: TableDef, second: TableDef) -> None:
    """Raise when others read one of two views that do not have the same columns."""
    for view, other in ((first, second), (second, first)):
        readers = dependents_of(snapshot, view.id)
        if readers and _named_types(view.columns) != _named_types(other.columns):
            names = ", ".join(sorted(f"{each.kind.value} {each.name}" for each in readers))
            raise relation_error(
                f'"{view.name}" and "{other.name}" do not have the same columns',
                _OTHER_COLUMNS,
                detail=f'"{view.name}" is read by {names}.',
                hint="Drop what reads it, or give both the same columns.",
            )


def _unlike(old: TableDef, schema: Schema, retired: frozenset[str]) -> RelationError | None:
    """Why rows of a schema cannot be stored where a view's are."""
    seen = [c for c in schema.columns if not c.name.startswith(HIDDEN_PREFIX)]
    if _named_types(seen[: len(old.columns)]) != _named_types(old.columns):
        return relation_error(
            f'cannot change or drop columns of view "{old.name}", which others read',
            _OTHER_COLUMNS,
            hint="Columns may only be added at the end; else drop what reads it first.",
        )
    if schema.key != old.schema.key:
        return relation_error(
            f'cannot change the key of view "{old.name}", which others read',
            _OTHER_COLUMNS,
            detail=f"Its rows have the key {_spelled(old.schema)}, and would have "
            f"{_spelled(schema)}.",
            hint="Drop what reads it first.",
        )
    try:
        old.schema.evolve(schema)
    except SchemaError as error:
        return _stored_otherwise(old, str(error))
    back = {name.lower() for name in schema.names if name not in old.schema.names} & retired
    if back:
        return _stored_otherwise(old, f'Stored files still hold an older "{min(back)}".')
    return None


def _stored_otherwise(old: TableDef, why: str) -> RelationError:
    return relation_error(
        f'the rows of view "{old.name}", which others read, would be stored in another way',
        _OTHER_COLUMNS,
        detail=why,
        hint="Drop what reads it first.",
    )


def _named_types(columns: Iterable[Column]) -> list[tuple[str, object]]:
    return [(column.name, column.type) for column in columns]


def _spelled(schema: Schema) -> str:
    if any(name.startswith(HIDDEN_PREFIX) for name in schema.key):
        return "of a hidden column"
    return f"({', '.join(schema.key)})"


def _needs(snapshot: CatalogSnapshot, ids: Iterable[int]) -> set[int]:
    """All that is read, directly or not, also by what is being built to replace it."""
    found: set[int] = set()
    waiting = list(ids)
    while waiting:
        id_ = waiting.pop()
        if id_ in found:
            continue
        found.add(id_)
        for each in (snapshot.by_id(id_), snapshot.replacement_of(id_)):
            waiting += [] if each is None else each.reads
    return found

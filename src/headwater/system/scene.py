"""What the functions of one query look at: the facts, and the names and numbers in them.

`regclass` and its kin are numbers that are written as names. A name without a schema is looked up
along the search path, with the system schemas in front, and is written without one when that
finds the same thing again.
"""

import re
from functools import cached_property

from headwater.errors import BindError, HeadwaterError
from headwater.system import numbers, pg_types
from headwater.system.facts import SizeFact, SystemFacts
from headwater.system.listing import Listed, ListedIndex, Listing, quoted
from headwater.system.pg_fixed import session_settings
from headwater.system.relations import IMPLICIT, PG_CATALOG, SystemRelation, known, nearest

_PART = re.compile(r'"((?:[^"]|"")*)"|([^."\s]+)')


class Scene:
    """The facts of the query that runs now, with what was found out from them."""

    def __init__(self, facts: SystemFacts, listing: Listing) -> None:
        self.facts = facts
        self.listing = listing
        self.problem: HeadwaterError | None = None
        """Why a function refused its arguments; the database only passes on the text."""
        self.changed: dict[str, str] = {}
        """What set_config has set."""
        self._sizes: dict[int, SizeFact] | None = None
        self._settings: dict[str, str] | None = None

    @property
    def path(self) -> list[str]:
        """The schemas that names are looked up in; `$user` and missing ones are left out."""
        return [name for name in self.facts.session.search_path if name in self.listing.schemas]

    @cached_property
    def in_sight(self) -> list[str]:
        """The schemas whose relations are meant by their names alone."""
        return self.schemas(implicit=True)

    def schemas(self, implicit: bool) -> list[str]:
        """What current_schemas says."""
        hidden = [PG_CATALOG] if implicit and PG_CATALOG not in self.path else []
        return [*hidden, *self.path]

    def size(self, oid: int) -> SizeFact | None:
        """The size of a relation; None when it is not known, or it stores nothing."""
        if self._sizes is None:
            self._sizes = dict(self.facts.sizes())
        return self._sizes.get(oid - numbers.relation_oid(0))

    def setting(self, name: str) -> str | None:
        """A setting by its name in any case."""
        if self._settings is None:
            found = session_settings(self.facts)
            self._settings = {each.lower(): value for each, (value, _, _) in found.items()}
        return self.changed.get(name.lower(), self._settings.get(name.lower()))

    def relation(self, oid: int) -> Listed | ListedIndex | None:
        """A user's relation or index by number."""
        return self.listing.by_oid.get(oid)

    def relation_oid(self, text: str) -> int | None:
        """The number of the relation that a text names, or None."""
        if text.isdigit():
            return int(text)
        if text == "-":
            return 0
        parts = split_name(text)
        if len(parts) > 1:
            return self._found(parts[-2], parts[-1])
        # Names of rw_catalog are found without being listed among what is in sight.
        for namespace in (*self.in_sight, *IMPLICIT):
            if (oid := self._found(namespace, parts[-1])) is not None:
                return oid
        return None

    def _found(self, namespace: str, name: str) -> int | None:
        if (system := known().get(f"{namespace}.{name}")) is not None:
            return system.oid
        return self.listing.by_name.get((namespace, name))

    def name_of(self, oid: int) -> tuple[str, str] | None:
        """The schema and the name of a relation by number."""
        found = self.relation(oid) or _system_relations().get(oid)
        return None if found is None else (found.namespace, found.name)

    def visible(self, oid: int) -> bool | None:
        """Whether a relation is meant by its name alone; None for a number that is nothing."""
        named = self.name_of(oid)
        if named is None:
            return None
        # The first schema in sight that has the name decides.
        holders = (self._found(namespace, named[1]) for namespace in self.in_sight)
        return next((each for each in holders if each is not None), None) == oid

    def shown(self, oid: int) -> str:
        """A relation as regclass writes it."""
        if oid == 0:
            return "-"
        named = self.name_of(oid)
        if named is None:
            return str(oid)
        if self.visible(oid):
            return quoted(named[1])
        return f"{quoted(named[0])}.{quoted(named[1])}"

    def type_shown(self, oid: int, modifier: int | None = None) -> str:
        """A type as format_type writes it: built in, or of a relation's rows."""
        if oid == 0:
            return "-"
        if (built_in := pg_types.format_type(oid, modifier)) is not None:
            return built_in
        for each in self.listing.relations:
            if numbers.row_type_oid(each.oid) == oid:
                return self.shown(each.oid)
            if numbers.array_type_oid(each.oid) == oid:
                return f"{self.shown(each.oid)}[]"
        return "???"

    def user_name(self, oid: int) -> str:
        """A user by number, as pg_get_userbyid says it."""
        for user in self.facts.users:
            if numbers.user_oid(user.id) == oid:
                return user.name
        return f"unknown (OID={oid})"

    def refuse(self, message: str, sqlstate: str, hint: str = "") -> HeadwaterError:
        """The error for an argument that does not fit, kept for whoever runs the query."""
        self.problem = BindError(message, hint=hint, sqlstate=sqlstate)
        return self.problem

    def missing_relation(self, text: str) -> HeadwaterError:
        """The error for a relation that is not there."""
        name = split_name(text)[-1]
        close = nearest(None, name)
        hint = f'Did you mean "{close}"?' if close else ""
        return self.refuse(f'relation "{text}" does not exist', "42P01", hint)

    def view_text(self, oid: int) -> str | None:
        """The query of a view."""
        found = self.relation(oid)
        if not isinstance(found, Listed) or found.query is None:
            return None
        text = found.query.strip().rstrip(";")
        return f"{text};"

    def index_text(self, oid: int, column: int, pretty: bool) -> str | None:
        """The statement that creates an index, or one of its columns."""
        found = self.relation(oid)
        if not isinstance(found, ListedIndex):
            return None
        if column == 0:
            table = found.table
            return found.ddl(self.shown(table.oid) if pretty else table.full_name)
        columns = found.columns
        return quoted(columns[column - 1].name) if column <= len(columns) else ""

    def constraint_text(self, oid: int) -> str | None:
        """A primary key as it is written in CREATE TABLE."""
        table = self.listing.by_key.get(oid)
        if table is None:
            return None
        names = (quoted(table.columns[number - 1].name) for number in table.key)
        return f"PRIMARY KEY ({', '.join(names)})"

    def comment(self, oid: int, catalog: str | None) -> str | None:
        """The comment on a relation."""
        if catalog not in (None, "pg_class"):
            return None
        found = self.relation(oid)
        return None if found is None else found.comment

    def column_comment(self, oid: int, number: int) -> str | None:
        """The comment on a column."""
        found = self.relation(oid)
        if isinstance(found, Listed) and 1 <= number <= len(found.columns):
            return found.columns[number - 1].detail.comment
        return None

    def writable(self, oid: int) -> bool:
        """Whether INSERT is for this relation."""
        table = self.facts.snapshot.by_id(oid - numbers.relation_oid(0))
        return bool(getattr(table, "writable", False))

    def row_count(self, oid: int) -> float:
        """Rows as pg_class counts them: -1 when nobody counted."""
        size = self.size(oid)
        return -1.0 if size is None else float(size.rows)

    def bytes(self, oid: int) -> int | None:
        """The bytes of a relation; 0 for one that stores nothing, None for one that is not."""
        if self.name_of(oid) is None:
            return None
        size = self.size(oid)
        return 0 if size is None else size.bytes


def split_name(text: str) -> list[str]:
    """The parts of a name: folded unless quoted."""
    parts = []
    for in_quotes, plain in _PART.findall(text):
        parts.append(plain.lower() if plain else in_quotes.replace('""', '"'))
    return parts or [text]


_BY_OID: dict[int, SystemRelation] = {}


def _system_relations() -> dict[int, SystemRelation]:
    if not _BY_OID:
        _BY_OID.update({each.oid: each for each in known().values()})
    return _BY_OID

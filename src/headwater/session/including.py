"""INCLUDE kind AS name of CREATE TABLE ... FROM: what may be included, and under which names."""

from collections.abc import Iterable

from headwater.cdc.external_table import Origin
from headwater.cdc.included import Included, included
from headwater.errors import BindError, NotSupported
from headwater.model.schema import Column
from headwater.sql import statement as st
from headwater.sql.place import error_at


def included_of(statement: st.CreateTable, origin: Origin, text: str) -> Included:
    """What a statement includes; what the source does not have is refused where it is written."""
    for each in statement.includes:
        try:
            included([(each.kind, each.name)], origin)
        except NotSupported as error:
            raise error_at(
                NotSupported, error.message, text, each.offset, hint=error.hint
            ) from None
    return included([(each.kind, each.name) for each in statement.includes], origin)


def check_included(
    statement: st.CreateTable, columns: Iterable[Column], added: Included, text: str
) -> None:
    """Whether all names differ, also in more than their case."""
    taken = {column.name.lower(): f'{statement.upstream} has a column "{column.name}"'
             for column in columns}  # fmt: skip
    for each, column in zip(statement.includes, added.columns, strict=True):
        name = column.name.lower()
        if name in taken:
            raise error_at(
                BindError,
                f'an included column cannot be called "{column.name}": {taken[name]}',
                text,
                each.offset,
                hint=f"Give it another name: INCLUDE {each.kind.upper()} AS name.",
                sqlstate="42701",
            )
        taken[name] = "another one has that name"

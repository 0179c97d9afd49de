"""How translation says no: with the place in the user's text."""

from typing import Any, NoReturn

from headwater.errors import BindError, NotSupported
from headwater.model.types import DataType
from headwater.sql.place import error_at, offset_of


class Text:
    """The user's text, which errors point into, and the types that its parameters must have."""

    __slots__ = ("parameters", "text")

    def __init__(self, text: str, parameters: dict[int, DataType] | None = None) -> None:
        self.text = text
        self.parameters = {} if parameters is None else parameters

    def refuse(self, message: str, node: Any = None, *, hint: str = "") -> NoReturn:
        """Say that something valid is not supported."""
        raise error_at(NotSupported, message, self.text, _offset(node), hint=hint)

    def mistake(
        self, message: str, node: Any = None, *, hint: str = "", sqlstate: str = "42804"
    ) -> NoReturn:
        """Say that something is wrong."""
        raise error_at(BindError, message, self.text, _offset(node), hint=hint, sqlstate=sqlstate)


def _offset(node: Any) -> int | None:
    return None if node is None else offset_of(node)


def shown(type_: DataType | None) -> str:
    """A type's name in an error."""
    return "unknown" if type_ is None else type_.postgres

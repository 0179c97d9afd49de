"""What is wrong with what a client sent, as errors with PostgreSQL's codes."""

from headwater.errors import UserError


class WireError(UserError):
    """The statement fails; the connection goes on."""

    def __init__(self, message: str, sqlstate: str, *, detail: str = "", hint: str = "") -> None:
        super().__init__(message, detail=detail, hint=hint)
        self.sqlstate = sqlstate


class ProtocolViolation(WireError):
    """The bytes make no sense, so the connection ends."""

    def __init__(self, message: str, sqlstate: str = "08P01", *, hint: str = "") -> None:
        super().__init__(message, sqlstate, hint=hint)


def bad_text(type_name: str, text: str) -> WireError:
    """A value that its type cannot read."""
    shown = text if len(text) <= 100 else text[:100] + "..."
    return WireError(f'invalid input syntax for type {type_name}: "{shown}"', "22P02")


def bad_bytes(what: str) -> WireError:
    """A value in binary format that is not one."""
    return WireError(f"incorrect binary data format: {what}", "22P03")

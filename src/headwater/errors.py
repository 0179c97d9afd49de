"""Every error Headwater raises, as one tree that says who must act.

    HeadwaterError(message, detail, hint)
      UserError              you can fix it
        ConfigError          a setting is unknown or has a wrong value
        SchemaError          a schema or a value does not fit
        RelationError        a relation exists already, is missing, or is in use
        WorkspaceInUse       another engine holds this workspace
        WorkspaceTooNew      a newer Headwater wrote this workspace
        HistoryGone          the epoch asked for is older than what is kept
        ParseError           the text is not SQL, at a place that is shown
          NotSupported       the SQL is valid, and Headwater does not do it
          BindError          a name or a type in the SQL does not fit
      RetryableError         wait and try again
        LedgerConflict       another commit came first; nothing of ours was written
        StorageUnavailable   storage cannot be reached, is full or is read-only
        LedgerUnavailable    the ledger's database cannot be reached
        SourceUnavailable    an upstream cannot be reached
        SinkUnavailable      a sink's target cannot be reached, or refuses for now
          StagedRowsGone     what was prepared at a target is no longer there
        ActorFailed          a job stopped with an error and will be restarted
      CommitUnknown          read the ledger before doing anything else
      Fenced                 another engine owns this ledger; stop
      DamagedState           stored state is missing or corrupt; nothing is guessed
      BrokenInvariant        our bug; carries the story that led to it

An error has three parts: what is wrong (message), the particulars (detail), and what to do
(hint). A test keeps the drawing above equal to the classes below.
"""

from collections.abc import Sequence


class HeadwaterError(Exception):
    """The common base: message, detail and hint."""

    sqlstate = "XX000"

    def __init__(self, message: str, *, detail: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.hint = hint

    def __str__(self) -> str:
        lines = [self.message]
        if self.detail:
            lines.append(f"DETAIL: {self.detail}")
        if self.hint:
            lines.append(f"HINT: {self.hint}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, ...]:
        # Spark tasks send errors between processes; keyword arguments must survive that.
        return (_rebuild, (type(self), self.message, self.__dict__))


def _rebuild(cls: type[HeadwaterError], message: str, fields: dict[str, object]) -> HeadwaterError:
    error = cls.__new__(cls)
    Exception.__init__(error, message)
    error.__dict__.update(fields)
    return error


class UserError(HeadwaterError):
    """You can fix it."""

    sqlstate = "22000"


class ConfigError(UserError):
    """A setting is unknown or has a wrong value."""

    sqlstate = "22023"


class SchemaError(UserError):
    """A schema or a value does not fit."""

    sqlstate = "42804"


class RelationError(UserError):
    """A relation exists already, is missing, or is in use."""

    sqlstate = "42P01"


class WorkspaceInUse(UserError):
    """Another engine holds this workspace."""

    sqlstate = "55006"


class WorkspaceTooNew(UserError):
    """A newer Headwater wrote this workspace."""

    sqlstate = "55000"


class HistoryGone(UserError):
    """The epoch asked for is older than what is kept."""

    sqlstate = "22008"


class ParseError(UserError):
    """The text is not SQL, at a place that is shown."""

    sqlstate = "42601"
    position: int | None
    """The place in the statement's text, from 1, as PostgreSQL counts it."""

    def __init__(
        self,
        message: str,
        *,
        detail: str = "",
        hint: str = "",
        position: int | None = None,
        sqlstate: str = "",
    ) -> None:
        super().__init__(message, detail=detail, hint=hint)
        self.position = position
        if sqlstate:
            self.sqlstate = sqlstate


class NotSupported(ParseError):
    """The SQL is valid, and Headwater does not do it."""

    sqlstate = "0A000"


class BindError(ParseError):
    """A name or a type in the SQL does not fit."""

    sqlstate = "42703"


class RetryableError(HeadwaterError):
    """Wait and try again."""

    sqlstate = "58000"


class LedgerConflict(RetryableError):
    """Another commit came first; nothing of ours was written."""

    sqlstate = "40001"


class StorageUnavailable(RetryableError):
    """Storage cannot be reached, is full or is read-only."""

    sqlstate = "58030"


class LedgerUnavailable(RetryableError):
    """The ledger's database cannot be reached."""

    sqlstate = "08006"


class SourceUnavailable(RetryableError):
    """An upstream cannot be reached."""

    sqlstate = "08006"


class SinkUnavailable(RetryableError):
    """A sink's target cannot be reached, or refuses for now."""

    sqlstate = "08006"


class StagedRowsGone(SinkUnavailable):
    """What was prepared at a target is no longer there."""

    sqlstate = "58030"


class ActorFailed(RetryableError):
    """A job stopped with an error and will be restarted."""

    sqlstate = "58000"


class CommitUnknown(HeadwaterError):
    """The commit was sent and no answer came: read the ledger before doing anything else."""

    sqlstate = "08007"


class Fenced(HeadwaterError):
    """Another engine owns this ledger; stop."""

    sqlstate = "57P01"


class DamagedState(HeadwaterError):
    """Stored state is missing or corrupt; nothing is guessed."""

    sqlstate = "XX001"


class BrokenInvariant(HeadwaterError):
    """Our bug; carries the story that led to it."""

    def __init__(self, message: str, *, story: Sequence[str] = (), hint: str = "") -> None:
        super().__init__(
            message,
            detail="\n".join(story),
            hint=hint or "This is a bug in Headwater. Please report it with the story above.",
        )
        self.story = tuple(story)

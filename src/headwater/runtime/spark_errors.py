"""Say in PostgreSQL's words what went wrong in Spark.

Errors of the rows (a division by zero, a number out of range, text that is no date) get the
message and the SQLSTATE that PostgreSQL has for them. A Spark that is gone is an error that can
be tried again. Everything else keeps the first line of Spark's own message.
"""

from headwater.errors import HeadwaterError, RetryableError, StorageUnavailable, UserError

_CANCELLED = "57014"
_TOO_DEEP = "the statement is nested too deeply"

_CONDITIONS = {
    "DIVIDE_BY_ZERO": ("22012", "division by zero"),
    "REMAINDER_BY_ZERO": ("22012", "division by zero"),
    "INTERVAL_DIVIDED_BY_ZERO": ("22012", "division by zero"),
    "ARITHMETIC_OVERFLOW": ("22003", "value out of range"),
    "BINARY_ARITHMETIC_OVERFLOW": ("22003", "value out of range"),
    "INTERVAL_ARITHMETIC_OVERFLOW": ("22008", "interval out of range"),
    "CAST_OVERFLOW": ("22003", "value out of range"),
    "NUMERIC_VALUE_OUT_OF_RANGE": ("22003", "numeric field overflow"),
    "NUMERIC_OUT_OF_SUPPORTED_RANGE": ("22003", "numeric field overflow"),
    "DATETIME_OVERFLOW": ("22008", "timestamp out of range"),
    "DATETIME_FIELD_OUT_OF_BOUNDS": ("22008", "date/time field value out of range"),
    "SCALAR_SUBQUERY_TOO_MANY_ROWS": (
        "21000",
        "more than one row returned by a subquery used as an expression",
    ),
    "FAILED_TO_PARSE_TOO_COMPLEX": ("54001", _TOO_DEEP),
    "INVALID_ARRAY_INDEX": ("2202E", "array subscript out of range"),
}

_RAISED = (
    ("division by zero", "22012"),
    ("out of range", "22003"),
    ("overflow", "22003"),
    ("invalid input syntax", "22P02"),
    ("negative substring length", "22011"),
    ("not null", "23502"),
)


_STORAGE = ("headwater.errors.StorageUnavailable", "No space left on device")


class SparkGone(RetryableError):
    """The Spark session, or the process behind it, is not there any more."""

    sqlstate = "58000"


class TaskLost(RetryableError):
    """Spark has lost a machine, or the process of a task; nothing is wrong with the work."""

    sqlstate = "58000"


def explained(error: BaseException) -> HeadwaterError:
    """The error as one of ours."""
    if isinstance(error, HeadwaterError):
        return error
    from py4j.protocol import Py4JError, Py4JNetworkError  # noqa: PLC0415  needs pyspark
    from pyspark.errors import PySparkException  # noqa: PLC0415

    if isinstance(error, Py4JNetworkError | ConnectionError):
        return SparkGone("Spark does not answer", hint="It is started again by itself.")
    text = str(error)
    passing = _passing(text)
    if passing is not None:
        return passing
    if isinstance(error, RecursionError) or "java.lang.StackOverflowError" in text:
        return _user(_TOO_DEEP, "54001")
    if isinstance(error, PySparkException):
        return _of_spark(error)
    named = "" if isinstance(error, Py4JError) else f"{type(error).__name__}: "
    return _user(f"{named}{_first_line(text)}", "XX000")


def _passing(text: str) -> HeadwaterError | None:
    """What has nothing to do with the work, and is over some time."""
    if "SparkContext was shut down" in text or "stopped SparkContext" in text:
        return SparkGone("Spark was stopped", hint="It is started again by itself.")
    for line in text.splitlines():
        if any(word in line for word in _STORAGE):
            # A task has met it.
            detail = line.strip().removeprefix(f"{_STORAGE[0]}: ")[:300]
            hint = "The work goes on by itself when it can be reached, and has room."
            return StorageUnavailable("storage cannot be used", detail=detail, hint=hint)
    if "ExecutorLostFailure" in text:
        return TaskLost("Spark has lost an executor", hint="The work is done again by itself.")
    return None


def _of_spark(error: "BaseException") -> HeadwaterError:
    from pyspark.errors import PySparkException  # noqa: PLC0415

    assert isinstance(error, PySparkException)
    condition = (error.getCondition() or "").split(".")[0]
    if condition in _CONDITIONS:
        sqlstate, message = _CONDITIONS[condition]
        return _user(message, sqlstate)
    text = _first_line(str(error))
    if "cancelled" in text and "job group" in text.lower():
        return _user("canceling statement due to user request", _CANCELLED)
    if condition == "USER_RAISED_EXCEPTION":
        message = text.removeprefix("[USER_RAISED_EXCEPTION] ").split(" SQLSTATE:")[0]
        state = next((state for part, state in _RAISED if part in message), "22000")
        return _user(message, state)
    if condition in ("CAST_INVALID_INPUT", "CANNOT_PARSE_TIMESTAMP"):
        parameters = error.getMessageParameters() or {}
        value = str(parameters.get("expression", "")).strip("'\"")
        wanted = str(parameters.get("targetType", "")).strip('"').lower()
        return _user(f'invalid input syntax for type {wanted}: "{value}"', "22P02")
    return _user(text, error.getSqlState() or "XX000")


def _user(message: str, sqlstate: str) -> UserError:
    error = UserError(message)
    error.sqlstate = sqlstate
    return error


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "unknown error")

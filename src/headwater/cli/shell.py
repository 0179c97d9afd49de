"""`headwater sql`: a shell for people without psql.

Talks to a server that runs (`headwater serve`), or runs an engine on a workspace itself. Reads
statements until a semicolon, from the terminal, from `-c`, or from standard input.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from headwater.errors import HeadwaterError, ParseError, UserError
from headwater.sql.dialect import tokens_of

_HELP = """\
Statements end with a semicolon. Also:
  \\d            list relations          \\d NAME       describe one
  \\timing       show how long it takes  \\q            leave"""

Run = Callable[[str], str]


def shell(
    workspace: Path, *, command: str | None, url: str | None, settings: dict[str, str]
) -> None:
    """Run statements from a command, from standard input or from a terminal."""
    with _connected(workspace, url, settings) as run:
        if command is not None:
            print(run(command))
            return
        if not sys.stdin.isatty():
            text = sys.stdin.read()
            if text.strip():
                print(run(text))
            return
        _converse(run)


def _converse(run: Run) -> None:
    with contextlib.suppress(ImportError):
        import readline  # noqa: PLC0415, F401  gives input() a history and editing
    print("Headwater. \\? for help, \\q to leave.")
    timing, waiting = False, ""
    while True:
        try:
            line = input("dev=> " if not waiting else "dev-> ")
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            waiting = ""
            print()
            continue
        if not waiting and line.strip().startswith("\\"):
            words = line.split()
            if words[0] == "\\q":
                return
            if words[0] == "\\timing":
                timing = not timing
                print(f"Timing is {'on' if timing else 'off'}.")
                continue
            line = _meaning(words)
            if not line:
                print(_HELP)
                continue
        waiting = f"{waiting}\n{line}" if waiting else line
        if waiting.strip() and complete(waiting):
            started = time.monotonic()
            _say(run, waiting)
            if timing:
                print(f"Time: {(time.monotonic() - started) * 1000:.1f} ms")
            waiting = ""


def _meaning(words: list[str]) -> str:
    match words:
        case ["\\d"]:
            return (
                "SELECT schema_id::text AS schema, name, relation_type FROM rw_catalog.rw_relations"
                " WHERE relation_type IN ('table', 'materialized view', 'view', 'source', 'sink')"
                " ORDER BY name;"
            )
        case ["\\d", name]:
            return f"DESCRIBE {name};"
        case _:
            return ""


def complete(text: str) -> bool:
    """Whether a text ends with a semicolon that is not inside of something."""
    try:
        tokens = tokens_of(text)
    except ParseError:
        # An open quote or comment: the next line may close it.
        return False
    return bool(tokens) and tokens[-1].text == ";"


def _say(run: Run, text: str) -> None:
    try:
        print(run(text))
    except KeyboardInterrupt:
        print("cancelled")
    except HeadwaterError as error:
        print(f"ERROR: {error}")


@contextlib.contextmanager
def _connected(workspace: Path, url: str | None, settings: dict[str, str]) -> Iterator[Run]:
    if url is not None:
        with _remote(url) as run:
            yield run
        return
    from headwater.session.synchronous import connect  # noqa: PLC0415  needs the engine

    with connect(workspace, settings=settings) as hw:
        yield lambda text: repr(hw.sql(text))


@contextlib.contextmanager
def _remote(url: str) -> Iterator[Run]:
    try:
        import psycopg  # noqa: PLC0415  only for this
    except ImportError as error:
        raise UserError(
            "connecting to a server needs psycopg", hint="pip install psycopg[binary], or use psql."
        ) from error
    try:
        connection = psycopg.connect(url, autocommit=True)
    except psycopg.OperationalError as error:
        raise UserError(f"cannot connect to {url.rpartition('@')[2]}", detail=str(error)) from error

    def run(text: str) -> str:
        try:
            cursor = connection.execute(text.encode())
            return "\n".join(_table(each) for each in _results(cursor))
        except psycopg.Error as error:
            raise UserError(str(error)) from error

    with connection:
        yield run


def _results(cursor: Any) -> Iterator[Any]:
    yield cursor
    while cursor.nextset():
        yield cursor


def _table(cursor: Any) -> str:
    if cursor.description is None:
        return cursor.statusmessage or ""
    names = [column.name for column in cursor.description]
    rows = [["NULL" if v is None else str(v) for v in row] for row in cursor.fetchall()]
    widths = [max(len(row[place]) for row in [names, *rows]) for place in range(len(names))]
    lines = [" | ".join(v.ljust(w) for v, w in zip(row, widths, strict=True)) for row in rows]
    head = " | ".join(name.ljust(width) for name, width in zip(names, widths, strict=True))
    rule = "-+-".join("-" * width for width in widths)
    word = "row" if len(rows) == 1 else "rows"
    return "\n".join([head, rule, *lines, f"({len(rows)} {word})"])

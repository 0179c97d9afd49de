"""What a database's own errors mean in Headwater's tree.

    SQLite                      PostgreSQL                        becomes
    cannot open, busy, locked   connection lost or refused,       LedgerUnavailable
                                lock timeout, shutting down
    full, read-only, I/O error  disk full, read-only server       StorageUnavailable
    corrupt, not a database     corrupt data or index             DamagedState
    anything else               anything else                     BrokenInvariant

Statement parameters are never part of a text, and passwords are struck out of what the driver
says. An error during COMMIT itself is not translated here: see `database.py`.
"""

import sqlite3

from sqlalchemy import URL
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from headwater.errors import (
    BrokenInvariant,
    DamagedState,
    HeadwaterError,
    LedgerUnavailable,
    StorageUnavailable,
)

_SECRET_OPTIONS = ("password", "sslpassword")
_HIDDEN = "***"

_SQLITE_UNAVAILABLE = {
    sqlite3.SQLITE_CANTOPEN: "Check that the folder of the file exists and may be written to.",
    sqlite3.SQLITE_PERM: "Check the permissions of the file and its folder.",
    sqlite3.SQLITE_BUSY: "Another process holds the file; if it is frozen, end it.",
    sqlite3.SQLITE_LOCKED: "Another process holds the file; if it is frozen, end it.",
    sqlite3.SQLITE_PROTOCOL: "Another process holds the file; if it is frozen, end it.",
}
_SQLITE_STORAGE = {
    sqlite3.SQLITE_FULL: "Free some space; nothing is lost, and the engine goes on by itself.",
    sqlite3.SQLITE_READONLY: "Make the file and its folder writable for this user.",
    sqlite3.SQLITE_IOERR: "Check the disk; nothing is lost, and the engine tries again.",
}
_SQLITE_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})

_POSTGRES_STORAGE = {
    "53100": "Free some space on the server; nothing is lost, and the engine goes on by itself.",
    "25006": "Point ledger_url at the primary server, not at a standby.",
    "42501": "Grant the user of ledger_url the right to create and write tables.",
}
_POSTGRES_DAMAGED = frozenset({"XX001", "XX002"})
_POSTGRES_LOCK_TIMEOUT = "55P03"
_POSTGRES_UNAVAILABLE_CLASSES = frozenset({"08", "28", "3D", "40", "53", "57", "58"})


def shown(url: URL) -> str:
    """The URL without any password, for people to read."""
    hidden = {name: _HIDDEN for name in _SECRET_OPTIONS if name in url.query}
    return url.update_query_dict(hidden).render_as_string(hide_password=True)


def translate(error: SQLAlchemyError, url: URL) -> HeadwaterError:
    """Find the error of ours that says the same."""
    if isinstance(error, DBAPIError) and error.orig is not None:
        said = strike_out(str(error.orig).strip(), url)
        if isinstance(error.orig, sqlite3.Error):
            found = _from_sqlite(error.orig, said, url)
        else:
            found = _from_server(error, said, url)
        if found is not None:
            return found
        return BrokenInvariant(f"a statement of the ledger failed: {said}", story=[shown(url)])
    if isinstance(error, PoolTimeout):
        return LedgerUnavailable(
            "the ledger has no free connection", hint="A transaction is held for too long."
        )
    return BrokenInvariant(f"the ledger failed: {type(error).__name__}", story=[shown(url)])


def strike_out(said: str, url: URL) -> str:
    """Remove passwords of `url` from a driver's message."""
    secrets = [url.password, *(url.query.get(name) for name in _SECRET_OPTIONS)]
    for secret in secrets:
        for part in (secret,) if isinstance(secret, str) else secret or ():
            if part:
                said = said.replace(part, _HIDDEN)
    return said


def _from_sqlite(error: sqlite3.Error, said: str, url: URL) -> HeadwaterError | None:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    detail = f"{shown(url)}: {said}."
    if code in _SQLITE_STORAGE:
        return StorageUnavailable(
            "the ledger cannot be written", detail=detail, hint=_SQLITE_STORAGE[code]
        )
    if code in _SQLITE_UNAVAILABLE:
        return LedgerUnavailable(
            "the ledger cannot be opened or is busy", detail=detail, hint=_SQLITE_UNAVAILABLE[code]
        )
    if code in _SQLITE_DAMAGED:
        return DamagedState(
            "the ledger's file is damaged", detail=detail, hint="Restore it from a backup."
        )
    return None


def _from_server(error: DBAPIError, said: str, url: URL) -> HeadwaterError | None:
    sqlstate = getattr(error.orig, "sqlstate", None) or ""
    detail = f"{shown(url)}: {said}"
    if sqlstate in _POSTGRES_STORAGE:
        return StorageUnavailable(
            "the ledger cannot be written", detail=detail, hint=_POSTGRES_STORAGE[sqlstate]
        )
    if sqlstate in _POSTGRES_DAMAGED:
        return DamagedState(
            "the ledger's database is damaged", detail=detail, hint="Restore it from a backup."
        )
    if sqlstate == _POSTGRES_LOCK_TIMEOUT:
        return LedgerUnavailable(
            "the ledger is locked by another session",
            detail=detail,
            hint="An engine holds a transaction open; it is ended by the server if it is frozen.",
        )
    lost = error.connection_invalidated or (not sqlstate and _is_operational(error))
    if lost or sqlstate[:2] in _POSTGRES_UNAVAILABLE_CLASSES:
        return LedgerUnavailable(
            "the ledger's database cannot be reached",
            detail=detail,
            hint="Check ledger_url and that the server runs; the engine tries again.",
        )
    return None


def _is_operational(error: DBAPIError) -> bool:
    return type(error).__name__ in ("OperationalError", "InterfaceError")

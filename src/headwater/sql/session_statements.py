"""SET, SHOW, RESET, DESCRIBE, WAIT, CANCEL JOBS, transactions and the like."""

from headwater.errors import NotSupported, ParseError
from headwater.sql.alter_statements import read_kind
from headwater.sql.statement import (
    CancelJobs,
    Describe,
    Discard,
    ResetVariable,
    Savepoint,
    SavepointVerb,
    SetVariable,
    Show,
    ShowCreate,
    ShowVariable,
    Statement,
    Transaction,
    TransactionVerb,
    Wait,
    Written,
)
from headwater.sql.token_reader import TokenReader

_LISTS = (
    "TABLES", "MATERIALIZED VIEWS", "INTERNAL TABLES", "VIEWS", "SOURCES", "SINKS", "INDEXES",
    "SCHEMAS", "DATABASES", "JOBS", "CONNECTIONS", "FUNCTIONS", "SECRETS", "SUBSCRIPTIONS",
    "USERS", "CLUSTER", "PROCESSLIST", "PARAMETERS", "CURSORS",
)  # fmt: skip
_OF_RELATION = ("COLUMNS", "INDEXES")


def read_set(reader: TokenReader, written: Written) -> Statement:
    """SET [SESSION | LOCAL] name = | TO value, SET TIME ZONE value."""
    reader.expect("SET")
    local = reader.take("LOCAL")
    if not local and not reader.before("SESSION", "="):
        reader.take("SESSION")
    if reader.take("CHARACTERISTICS") or reader.take("TRANSACTION"):
        reader.rest()
        return Transaction(text=written.text, place=written.place, verb=TransactionVerb.BEGIN)
    if reader.take("TIME", "ZONE"):
        name = "timezone"
    else:
        name = reader.name("a setting")
        while reader.take("."):
            name += "." + reader.name()
        if not reader.take("="):
            reader.expect("TO")
    value = None if reader.take("DEFAULT") else _values(reader)
    return SetVariable(text=written.text, place=written.place, name=name, value=value, local=local)


def _values(reader: TokenReader) -> str:
    values = [reader.value()]
    while reader.take(","):
        values.append(reader.value())
    return ", ".join(values)


def read_show(reader: TokenReader, written: Written) -> Statement:
    """SHOW of a list of objects, of a definition, or of a setting."""
    reader.expect("SHOW")
    if reader.take("CREATE"):
        kind = read_kind(reader)
        return ShowCreate(
            text=written.text, place=written.place, kind=kind, name=reader.object_name()
        )
    for what in _OF_RELATION:
        if reader.before(what, "FROM"):
            reader.expect(what, "FROM")
            return Show(
                text=written.text,
                place=written.place,
                what=what.lower(),
                name=reader.object_name(),
                like=_like(reader),
            )
    for what in _LISTS:
        if reader.take(*what.split()):
            schema = None
            if reader.take("FROM"):
                schema = reader.object_name()
            return Show(
                text=written.text,
                place=written.place,
                what=what.lower(),
                name=schema,
                like=_like(reader),
            )
    if reader.take("TIME", "ZONE"):
        return ShowVariable(text=written.text, place=written.place, name="timezone")
    if reader.take("TRANSACTION", "ISOLATION", "LEVEL"):
        return ShowVariable(text=written.text, place=written.place, name="transaction_isolation")
    name = reader.name("what to show")
    while reader.take("."):
        name += "." + reader.name()
    return ShowVariable(text=written.text, place=written.place, name=name)


def _like(reader: TokenReader) -> str | None:
    if reader.take("LIKE"):
        return reader.string()
    if reader.before("ILIKE") or reader.before("WHERE"):
        raise reader.error(NotSupported, "only LIKE is supported here")
    return None


def read_reset(reader: TokenReader, written: Written) -> Statement:
    """RESET name | ALL."""
    reader.expect("RESET")
    if reader.take("TIME", "ZONE"):
        return ResetVariable(text=written.text, place=written.place, name="timezone")
    return ResetVariable(text=written.text, place=written.place, name=reader.name("a setting"))


def read_describe(reader: TokenReader, written: Written) -> Statement:
    """DESCRIBE relation."""
    reader.at += 1
    if reader.before("FRAGMENTS"):
        raise reader.error(NotSupported, "DESCRIBE FRAGMENTS is not supported")
    return Describe(text=written.text, place=written.place, name=reader.object_name())


def read_wait(reader: TokenReader, written: Written) -> Statement:
    """WAIT [kind name]."""
    reader.expect("WAIT")
    if reader.done:
        return Wait(text=written.text, place=written.place)
    kind = read_kind(reader)
    return Wait(text=written.text, place=written.place, kind=kind, name=reader.object_name())


def read_cancel(reader: TokenReader, written: Written) -> Statement:
    """CANCEL JOB[S] n, ..."""
    reader.expect("CANCEL")
    if not reader.take("JOBS"):
        reader.expect("JOB")
    jobs = [reader.number()]
    while reader.take(","):
        jobs.append(reader.number())
    return CancelJobs(text=written.text, place=written.place, jobs=tuple(jobs))


def read_transaction(reader: TokenReader, written: Written) -> Statement:
    """BEGIN, START TRANSACTION, COMMIT, END, ROLLBACK, ABORT, with whatever modes follow."""
    word = reader.word("a verb").upper()
    if word == "START":
        reader.expect("TRANSACTION")
    verb = {
        "BEGIN": TransactionVerb.BEGIN,
        "START": TransactionVerb.BEGIN,
        "COMMIT": TransactionVerb.COMMIT,
        "END": TransactionVerb.COMMIT,
    }.get(word, TransactionVerb.ROLLBACK)
    if not reader.take("TRANSACTION"):
        reader.take("WORK")
    if word == "ROLLBACK" and reader.take("TO"):
        return _savepoint(reader, written, SavepointVerb.ROLLBACK)
    while not reader.done:
        known = ("ISOLATION", "LEVEL", "SERIALIZABLE", "REPEATABLE", "READ", "COMMITTED",
                 "UNCOMMITTED", "ONLY", "WRITE", "DEFERRABLE", "NOT", ",", "AND", "NO",
                 "CHAIN")  # fmt: skip
        if not any(reader.take(each) for each in known):
            raise reader.error(ParseError)
    return Transaction(text=written.text, place=written.place, verb=verb)


def read_savepoint(reader: TokenReader, written: Written) -> Statement:
    """SAVEPOINT name, RELEASE [SAVEPOINT] name."""
    word = reader.word("a verb").upper()
    return _savepoint(reader, written, SavepointVerb(word))


def _savepoint(reader: TokenReader, written: Written, verb: SavepointVerb) -> Savepoint:
    reader.take("SAVEPOINT")
    return Savepoint(text=written.text, place=written.place, verb=verb, name=reader.name())


def read_discard(reader: TokenReader, written: Written) -> Statement:
    """DISCARD, DEALLOCATE, CLOSE, UNLISTEN, of a name or ALL."""
    verb = reader.word("a verb").lower()
    if verb == "deallocate":
        reader.take("PREPARE")
    name = "*" if reader.take("*") else reader.name()
    return Discard(text=written.text, place=written.place, verb=verb, name=name)

"""Statements, as frozen values: what the user asked for, before any name is looked up.

Queries and expressions stay sqlglot trees; `plan.py` gives them their meaning. Names are folded
already: lower case unless quoted. Every statement carries its own text and its place.
"""

from dataclasses import dataclass
from enum import StrEnum

from sqlglot import exp

from headwater.model.types import DataType
from headwater.sql.place import Place
from headwater.sql.sink_format import NO_FORMAT, SinkFormat


@dataclass(frozen=True, slots=True)
class ObjectName:
    """A name with an optional schema and database in front."""

    name: str
    schema: str | None = None
    database: str | None = None

    def __str__(self) -> str:
        parts = (self.database, self.schema, self.name)
        return ".".join(part for part in parts if part is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What every statement has: its text, and where it stands in the whole."""

    text: str
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnDefinition:
    """A column of CREATE TABLE or ADD COLUMN; `length` is the n of varchar(n)."""

    name: str
    type: DataType
    nullable: bool = True
    default: exp.Expr | None = None
    generated: exp.Expr | None = None
    length: int | None = None


class Conflict(StrEnum):
    """What an INSERT of an existing key does."""

    ERROR = "error"
    UPDATE = "update"
    NOTHING = "nothing"
    UPDATE_IF_NOT_NULL = "update if not null"


class ObjectKind(StrEnum):
    """What can be made, dropped, altered and shown."""

    TABLE = "table"
    VIEW = "view"
    MATERIALIZED_VIEW = "materialized view"
    SOURCE = "source"
    SINK = "sink"
    INDEX = "index"
    SCHEMA = "schema"
    DATABASE = "database"
    SUBSCRIPTION = "subscription"
    CONNECTION = "connection"
    SECRET = "secret"
    FUNCTION = "function"
    USER = "user"
    SYSTEM = "system"


Options = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Include:
    """INCLUDE kind [AS name], as written; an empty name is for whoever knows the default."""

    kind: str
    name: str
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTable(Written):
    """CREATE TABLE; `source` and `upstream` for a table of a CDC source, `query` for AS."""

    name: ObjectName
    columns: tuple[ColumnDefinition, ...]
    key: tuple[str, ...] = ()
    conflict: Conflict | None = None
    append_only: bool = False
    if_not_exists: bool = False
    options: Options = ()
    includes: tuple[Include, ...] = ()
    all_columns: bool = False
    source: ObjectName | None = None
    upstream: str | None = None
    query: exp.Query | None = None
    format: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateMaterializedView(Written):
    """CREATE MATERIALIZED VIEW."""

    name: ObjectName
    query: exp.Query
    columns: tuple[str, ...] = ()
    or_replace: bool = False
    if_not_exists: bool = False
    options: Options = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateView(Written):
    """CREATE VIEW."""

    name: ObjectName
    query: exp.Query
    columns: tuple[str, ...] = ()
    or_replace: bool = False
    if_not_exists: bool = False
    options: Options = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateIndex(Written):
    """CREATE INDEX; the columns are expressions with a direction, as written."""

    name: ObjectName | None
    table: ObjectName
    columns: tuple[exp.Expr, ...]
    include: tuple[str, ...] = ()
    unique: bool = False
    if_not_exists: bool = False
    options: Options = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateSource(Written):
    """CREATE SOURCE."""

    name: ObjectName
    options: Options
    columns: tuple[ColumnDefinition, ...] = ()
    key: tuple[str, ...] = ()
    if_not_exists: bool = False
    format: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateSink(Written):
    """CREATE SINK, FROM a relation or AS a query."""

    name: ObjectName
    options: Options
    from_relation: ObjectName | None = None
    query: exp.Query | None = None
    query_text: str = ""
    into: ObjectName | None = None
    into_columns: tuple[str, ...] = ()
    if_not_exists: bool = False
    format: SinkFormat = NO_FORMAT


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateSchema(Written):
    """CREATE SCHEMA."""

    name: str
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop(Written):
    """DROP of any kind."""

    kind: ObjectKind
    names: tuple[ObjectName, ...]
    if_exists: bool = False
    cascade: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Insert(Written):
    """INSERT; `query` is VALUES or a SELECT; None stands for DEFAULT VALUES."""

    table: ObjectName
    columns: tuple[str, ...]
    query: exp.Query | None
    returning: tuple[exp.Expr, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Update(Written):
    """UPDATE; an assignment of None is SET x = DEFAULT."""

    table: ObjectName
    alias: str | None
    assignments: tuple[tuple[str, exp.Expr | None], ...]
    where: exp.Expr | None = None
    returning: tuple[exp.Expr, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete(Written):
    """DELETE."""

    table: ObjectName
    alias: str | None
    where: exp.Expr | None = None
    returning: tuple[exp.Expr, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Select(Written):
    """A query whose rows go to the client."""

    query: exp.Query


@dataclass(frozen=True, slots=True, kw_only=True)
class Rename(Written):
    """ALTER ... RENAME TO, of a relation or of a schema."""

    kind: ObjectKind
    name: ObjectName
    new_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapWith(Written):
    """ALTER MATERIALIZED VIEW a SWAP WITH b."""

    name: ObjectName
    other: ObjectName


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameColumn(Written):
    """ALTER ... RENAME COLUMN a TO b."""

    kind: ObjectKind
    name: ObjectName
    column: str
    new_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddColumn(Written):
    """ALTER TABLE ... ADD COLUMN."""

    name: ObjectName
    column: ColumnDefinition
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DropColumn(Written):
    """ALTER TABLE ... DROP COLUMN."""

    name: ObjectName
    column: str
    if_exists: bool = False
    cascade: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshSchema(Written):
    """ALTER TABLE ... REFRESH SCHEMA."""

    name: ObjectName


@dataclass(frozen=True, slots=True, kw_only=True)
class SetSchema(Written):
    """ALTER ... SET SCHEMA."""

    kind: ObjectKind
    name: ObjectName
    schema: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetOwner(Written):
    """ALTER ... OWNER TO."""

    kind: ObjectKind
    name: ObjectName
    owner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterSetting(Written):
    """ALTER ... SET name = value of a job, a database or the system; None is DEFAULT."""

    kind: ObjectKind
    name: ObjectName | None
    setting: str
    value: str | None
    deferred: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterOptions(Written):
    """ALTER SINK s CONNECTOR WITH (...), and its like."""

    kind: ObjectKind
    name: ObjectName
    options: Options


@dataclass(frozen=True, slots=True, kw_only=True)
class RewindSink(Written):
    """ALTER SINK s REWIND TO EPOCH e | TIMESTAMP t: deliver again what came after."""

    name: ObjectName
    epoch: int | None = None
    timestamp: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comment(Written):
    """COMMENT ON; None takes the comment away."""

    kind: ObjectKind
    name: ObjectName
    column: str | None
    comment: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Show(Written):
    """SHOW of objects: `what` is `tables`, `materialized views`, `jobs`, `columns`, ..."""

    what: str
    name: ObjectName | None = None
    like: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowCreate(Written):
    """SHOW CREATE TABLE x, and its like."""

    kind: ObjectKind
    name: ObjectName


@dataclass(frozen=True, slots=True, kw_only=True)
class Describe(Written):
    """DESCRIBE of a relation."""

    name: ObjectName


@dataclass(frozen=True, slots=True, kw_only=True)
class Explain(Written):
    """EXPLAIN; options are lower-case names with values (`true` where none is written)."""

    options: Options
    statement: "Statement"


@dataclass(frozen=True, slots=True, kw_only=True)
class SetVariable(Written):
    """SET name = value; None is DEFAULT."""

    name: str
    value: str | None
    local: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowVariable(Written):
    """SHOW of one setting, or of `all`."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetVariable(Written):
    """RESET of one setting, or of `all`."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Flush(Written):
    """FLUSH."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait(Written):
    """WAIT, for everything or for one object."""

    kind: ObjectKind | None = None
    name: ObjectName | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recover(Written):
    """RECOVER."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelJobs(Written):
    """CANCEL JOBS."""

    jobs: tuple[int, ...]


class TransactionVerb(StrEnum):
    """The verbs of transactions, which are accepted and change nothing."""

    BEGIN = "BEGIN"
    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction(Written):
    """BEGIN, COMMIT or ROLLBACK."""

    verb: TransactionVerb


class SavepointVerb(StrEnum):
    """What is done with a savepoint."""

    SAVEPOINT = "SAVEPOINT"
    RELEASE = "RELEASE"
    ROLLBACK = "ROLLBACK"


@dataclass(frozen=True, slots=True, kw_only=True)
class Savepoint(Written):
    """SAVEPOINT s, RELEASE s, ROLLBACK TO s."""

    verb: SavepointVerb
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy(Written):
    """COPY FROM STDIN (`incoming`) into a table, or TO STDOUT of a relation or a query."""

    table: ObjectName | None
    columns: tuple[str, ...]
    query: exp.Query | None
    incoming: bool
    options: Options = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Discard(Written):
    """DISCARD ALL, DEALLOCATE, CLOSE, UNLISTEN: what drivers send to clean a session."""

    verb: str
    name: str


Statement = (
    CreateTable | CreateMaterializedView | CreateView | CreateIndex | CreateSource | CreateSink
    | CreateSchema | Drop | Insert | Update | Delete | Select | Rename | SwapWith | RenameColumn
    | RefreshSchema | AddColumn | DropColumn | SetSchema | SetOwner | AlterSetting |
    AlterOptions | RewindSink | Comment | Show | ShowCreate | Describe | Explain | SetVariable |
    ShowVariable | ResetVariable | Flush | Wait | Recover | CancelJobs | Transaction | Savepoint
    | Copy | Discard
)  # fmt: skip

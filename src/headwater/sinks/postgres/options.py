"""The options of a PostgreSQL sink, and where and as whom it connects."""

from dataclasses import dataclass

from headwater.errors import ConfigError
from headwater.sinks.options import Option, Options, checked_options
from headwater.sinks.progress import PROGRESS_TABLE
from headwater.sinks.sink import SinkKind, SinkSpec

CONNECTOR = "postgres"
_SSL_MODES = ("disable", "prefer", "require", "verify-ca", "verify-full")

OPTIONS: tuple[Option, ...] = (
    Option("host", "The server's name or address.", also=("hostname",)),
    Option("port", "The server's port.", "5432"),
    Option("user", "Who connects.", also=("username",)),
    Option("password", "The user's password; empty for none.", "", secret=True),
    Option("database", "The database of the target table.", also=("database.name",)),
    Option("schema", "The schema of the target table.", "public", also=("schema.name",)),
    Option("table", "The target table.", also=("table.name",)),
    Option(
        "create.table",
        "Whether a missing target table is created.",
        "true",
        also=("create_table_if_not_exists",),
    ),
    Option("progress.schema", "Where our own table is kept; empty for the target's schema.", ""),
    Option("ssl.mode", "disable, prefer, require, verify-ca or verify-full.", "prefer",
           also=("ssl_mode",)),
    Option("ssl.root.cert", "A file with the certificates to trust; empty for none.", "",
           also=("ssl_root_cert",)),
    Option("connect.timeout", "Seconds to wait for a connection.", "10"),
    Option("lock.timeout", "Seconds to wait for locks of others at the target.", "60"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Target:
    """A checked set of options; passwords are in no repr of it."""

    options: Options
    host: str
    port: int
    database: str
    schema: str
    table: str
    progress_schema: str
    ssl_mode: str
    create_table: bool
    connect_timeout_s: int
    lock_timeout_s: int

    @property
    def place(self) -> str:
        """Whom we talk to, for people."""
        return f"PostgreSQL at {self.host}:{self.port}"

    @property
    def name(self) -> str:
        """The target table, as SQL has it."""
        return f"{quoted(self.schema)}.{quoted(self.table)}"

    @property
    def progress(self) -> str:
        """Our own table, as SQL has it."""
        return f"{quoted(self.progress_schema)}.{PROGRESS_TABLE}"


def quoted(name: str) -> str:
    """A name, as SQL has it."""
    return '"' + name.replace('"', '""') + '"'


def parse_target(spec: SinkSpec) -> Target:
    """The target of a sink; raises `ConfigError` for what is wrong."""
    if spec.kind is SinkKind.RETRACT:
        raise ConfigError(
            'connector "postgres" takes append-only and upsert', hint="Use type = 'upsert'."
        )
    if spec.kind is SinkKind.UPSERT and not spec.key:
        raise ConfigError("primary key not defined", hint="Give primary_key = 'column, ...'.")
    options = checked_options(CONNECTOR, spec.options, OPTIONS)
    return Target(
        options=options,
        host=options["host"],
        port=options.integer("port", 1, 65_535),
        database=options["database"],
        schema=options["schema"],
        table=options["table"],
        progress_schema=options["progress.schema"] or options["schema"],
        ssl_mode=options.choice("ssl.mode", _SSL_MODES),
        create_table=options.flag("create.table"),
        connect_timeout_s=options.integer("connect.timeout", 1, 3600),
        lock_timeout_s=options.integer("lock.timeout", 1, 3600),
    )

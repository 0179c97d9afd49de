"""The options of a MySQL or MariaDB sink, and where and as whom it connects."""

import ssl
from dataclasses import dataclass

from headwater.errors import ConfigError
from headwater.sinks.options import Option, Options, checked_options
from headwater.sinks.progress import PROGRESS_TABLE
from headwater.sinks.sink import SinkKind, SinkSpec

CONNECTOR = "mysql"
_SSL_MODES = ("disabled", "preferred", "required", "verify_ca", "verify_identity")

OPTIONS: tuple[Option, ...] = (
    Option("host", "The server's name or address.", also=("hostname",)),
    Option("port", "The server's port.", "3306"),
    Option("user", "Who connects.", also=("username",)),
    Option("password", "The user's password; empty for none.", "", secret=True),
    Option("database", "The database of the target table.", also=("database.name",)),
    Option("table", "The target table.", also=("table.name",)),
    Option(
        "create.table",
        "Whether a missing target table is created.",
        "true",
        also=("create_table_if_not_exists",),
    ),
    Option("progress.database", "Where our own table is kept; empty for the target's.", ""),
    Option("ssl.mode", "disabled, preferred, required, verify_ca or verify_identity.", "preferred",
           also=("ssl_mode",)),
    Option("ssl.ca", "A file with the certificates to trust; empty for the system's.", ""),
    Option("ssl.cert", "A file with our own certificate; empty for none.", ""),
    Option("ssl.key", "A file with the key of our own certificate.", ""),
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
    table: str
    progress_database: str
    ssl_mode: str
    create_table: bool
    connect_timeout_s: int
    lock_timeout_s: int

    @property
    def place(self) -> str:
        """Whom we talk to, for people."""
        return f"the server at {self.host}:{self.port}"

    @property
    def name(self) -> str:
        """The target table, as SQL has it."""
        return f"{quoted(self.database)}.{quoted(self.table)}"

    @property
    def progress(self) -> str:
        """Our own table, as SQL has it."""
        return f"{quoted(self.progress_database)}.{PROGRESS_TABLE}"

    def ssl_context(self) -> ssl.SSLContext | None:
        """What TLS has to hold; None where it is the driver's choice."""
        if self.ssl_mode in ("disabled", "preferred"):
            return None
        try:
            context = ssl.create_default_context(cafile=self.options["ssl.ca"] or None)
            if self.options["ssl.cert"]:
                context.load_cert_chain(self.options["ssl.cert"], self.options["ssl.key"] or None)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                "the files of ssl.ca, ssl.cert and ssl.key cannot be used", detail=str(error)
            ) from None
        context.check_hostname = self.ssl_mode == "verify_identity"
        if self.ssl_mode == "required":
            context.verify_mode = ssl.CERT_NONE
        return context


def quoted(name: str) -> str:
    """A name, as SQL has it."""
    return "`" + name.replace("`", "``") + "`"


def parse_target(spec: SinkSpec) -> Target:
    """The target of a sink; raises `ConfigError` for what is wrong."""
    if spec.kind is SinkKind.RETRACT:
        raise ConfigError(
            'connector "mysql" takes append-only and upsert', hint="Use type = 'upsert'."
        )
    if spec.kind is SinkKind.UPSERT and not spec.key:
        raise ConfigError("primary key not defined", hint="Give primary_key = 'column, ...'.")
    options = checked_options(CONNECTOR, spec.options, OPTIONS)
    return Target(
        options=options,
        host=options["host"],
        port=options.integer("port", 1, 65_535),
        database=options["database"],
        table=options["table"],
        progress_database=options["progress.database"] or options["database"],
        ssl_mode=options.choice("ssl.mode", _SSL_MODES),
        create_table=options.flag("create.table"),
        connect_timeout_s=options.integer("connect.timeout", 1, 3600),
        lock_timeout_s=options.integer("lock.timeout", 1, 3600),
    )

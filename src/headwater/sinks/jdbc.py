"""`connector = 'jdbc'`: a URL as Java programs write it, and the database that it means.

    jdbc:postgresql://host:5432/database?user=u&password=p&sslmode=require
    jdbc:mysql://host:3306/database?user=u&password=p
    jdbc:mariadb://host:3306/database?user=u&password=p

There is no Java behind it: the sink is the native one, with its promises. What a URL says about a
driver's own ways (batching, time zones, encodings) has no meaning here and is let pass; what would
change the meaning of a connection and is not known is refused.
"""

from dataclasses import replace
from urllib.parse import parse_qsl, unquote, urlsplit

from headwater.errors import ConfigError
from headwater.sinks.mysql.sink import MySqlSink, mysql_sink
from headwater.sinks.options import Option, checked_options
from headwater.sinks.postgres.sink import PostgresSink, postgres_sink
from headwater.sinks.sink import SinkSpec

OPTIONS: tuple[Option, ...] = (
    Option("jdbc.url", "jdbc:postgresql://, jdbc:mysql:// or jdbc:mariadb:// and so on.",
           secret=True),
    Option("table.name", "The target table.", also=("table",)),
    Option("schema.name", "The schema of the target table; empty for public (PostgreSQL).", "",
           also=("schema",)),
    Option("user", "Who connects; empty where the URL says it.", "", also=("username",)),
    Option("password", "The user's password; empty where the URL says it.", "", secret=True),
    Option("create.table", "Whether a missing target table is created.", "true"),
    Option("lock.timeout", "Seconds to wait for locks of others at the target.", "60"),
)  # fmt: skip

_POSTGRES, _MYSQL = ("postgresql",), ("mysql", "mariadb")
_NAMES = {
    "user": "user",
    "password": "password",
    "sslmode": "ssl.mode",
    "sslrootcert": "ssl.root.cert",
    "currentschema": "schema",
}
_SSL_WORDS = {"trust": "required", "disable": "disabled", "verify-ca": "verify_ca",
              "verify-full": "verify_identity"}  # fmt: skip
_PASSED_OVER = frozenset({
    "rewritebatchedstatements", "rewritebatchedinserts", "useunicode", "characterencoding",
    "servertimezone", "connectiontimezone", "allowpublickeyretrieval", "applicationname",
    "cachepreparestatements", "cacheprepstmts", "usecompression", "zerodatetimebehavior",
    "tinyint1isbit", "useserverprepstmts", "tcpkeepalive", "stringtype", "autoreconnect",
    "sockettimeout", "connecttimeout", "logintimeout", "preparethreshold", "binarytransfer",
    "loggerlevel",
})  # fmt: skip


def jdbc_sink(spec: SinkSpec) -> PostgresSink | MySqlSink:
    """The sink that a URL means; raises `ConfigError` for what is wrong."""
    given = checked_options("jdbc", spec.options, OPTIONS)
    scheme, options = parse_url(given["jdbc.url"])
    options["table"] = given["table.name"]
    options |= {name: given[name] for name in ("user", "password") if given[name]}
    options |= {name: given[name] for name in ("create.table", "lock.timeout")}
    if "user" not in options:
        raise ConfigError(
            'connector "jdbc" needs the option "user"', hint="Give it, or write ?user= in the URL."
        )
    if given["schema.name"]:
        options["schema"] = given["schema.name"]
    if scheme in _POSTGRES:
        return postgres_sink(replace(spec, options=options))
    if "schema" in options:
        raise ConfigError(
            'option "schema.name" has no meaning for MySQL and MariaDB',
            hint="The database stands in the URL.",
        )
    if "ssl.mode" in options:
        word = options["ssl.mode"].lower()
        options["ssl.mode"] = _SSL_WORDS.get(word, word)
    return mysql_sink(replace(spec, options=options))


def parse_url(url: str) -> tuple[str, dict[str, str]]:
    """The kind of database, and the options of its sink; no part of a URL is in an error."""
    if not url.startswith("jdbc:"):
        raise ConfigError('option "jdbc.url" must begin with jdbc:')
    try:
        parts = urlsplit(url.removeprefix("jdbc:"))
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ConfigError('option "jdbc.url" names no single host and port') from None
    if parts.scheme not in (*_POSTGRES, *_MYSQL):
        raise ConfigError(
            'option "jdbc.url" names a database that is not known',
            hint="Use jdbc:postgresql://, jdbc:mysql:// or jdbc:mariadb://.",
        )
    database = unquote(parts.path.strip("/"))
    if not host or not database or "," in parts.netloc or parts.username:
        raise ConfigError(
            'option "jdbc.url" must be jdbc:<kind>://host:port/database?user=...&password=...'
        )
    options = {"host": host, "database": database}
    if port is not None:
        options["port"] = str(port)
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        known = _NAMES.get(name.lower())
        if known is not None:
            options[known] = value
        elif name.lower() in ("usessl", "ssl"):
            options.setdefault("ssl.mode", _ssl(parts.scheme, on=value.lower() in ("true", "")))
        elif name.lower() not in _PASSED_OVER:
            raise ConfigError(
                f'option "jdbc.url" has the parameter "{name}", which is not known',
                hint=f"Known are {', '.join(sorted(_NAMES))} and ssl.",
            )
    return parts.scheme, options


def _ssl(scheme: str, *, on: bool) -> str:
    if scheme in _POSTGRES:
        return "require" if on else "disable"
    return "required" if on else "disabled"

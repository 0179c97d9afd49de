"""The catalog that an Iceberg table is in, reached through pyiceberg.

pyiceberg is an extra of the package. It is imported where it is used, so that all other sinks
do without it.
"""

from typing import TYPE_CHECKING

from headwater.errors import ConfigError
from headwater.sinks.options import Option, Options
from headwater.sinks.target_files import S3_OPTIONS

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

OPTIONS: tuple[Option, ...] = (
    Option("catalog.type", "The kind of the catalog: rest, sql, glue or hive."),
    Option(
        "catalog.uri",
        "The catalog's address; for sql as SQLAlchemy has it.",
        default="",
        secret=True,
    ),
    Option("catalog.name", "The catalog's name.", default="headwater"),
    Option("catalog.credential", "Client id and secret, as id:secret.", default="", secret=True),
    Option("catalog.token", "A bearer token.", default="", secret=True),
    Option("catalog.scope", "The scope that is asked for with the credential.", default=""),
    Option("catalog.oauth2_server_uri", "Who gives out tokens.", default=""),
    Option("warehouse.path", "Where the catalog puts new tables.", default=""),
    Option("database.name", "The table's namespace; levels are parted by dots."),
    Option("table.name", "The table."),
    *S3_OPTIONS,
    Option(
        "create_table_if_not_exists",
        "Whether namespace and table are created where there are none.",
        default="false",
    ),
    Option(
        "commit_retry_num",
        "How often a commit that met another writer's is tried again at once.",
        default="8",
    ),
)

_KINDS = ("rest", "sql", "glue", "hive")
_NEED_URI = ("rest", "sql", "hive")
_NAMED = {
    "uri": "catalog.uri",
    "credential": "catalog.credential",
    "token": "catalog.token",
    "scope": "catalog.scope",
    "oauth2-server-uri": "catalog.oauth2_server_uri",
    "warehouse": "warehouse.path",
    "s3.access-key-id": "s3.access.key",
    "s3.secret-access-key": "s3.secret.key",
    "s3.endpoint": "s3.endpoint",
    "s3.region": "s3.region",
}


def check_catalog(options: Options) -> None:
    """Refuse options from which no catalog can be made."""
    kind = options.choice("catalog.type", _KINDS)
    if kind in _NEED_URI and not options["catalog.uri"]:
        raise ConfigError(f'a catalog of type {kind} needs the option "catalog.uri"')
    try:
        import pyiceberg.catalog  # noqa: F401, PLC0415  an extra; see the header
    except ImportError as error:
        raise ConfigError(
            "sinks into Iceberg need pyiceberg, which is not installed",
            hint="Install it with: pip install 'headwater[iceberg]'",
        ) from error


def open_catalog(options: Options) -> "Catalog":
    """The catalog of these options."""
    from pyiceberg.catalog import load_catalog  # noqa: PLC0415

    given = {name: options[option] for name, option in _NAMED.items() if options[option]}
    return load_catalog(options["catalog.name"], **{"type": options["catalog.type"], **given})

"""ALTER SOURCE ... SET (...): reach the database of a source in another way.

    ALTER SOURCE shop SET (hostname = '10.0.0.7', password = '...');
    ALTER SOURCE shop SET (max_wal_retained = '50GB', on_wal_retained = 'drop');

What is given is tried by connecting before it is taken, and holds from then on without a restart.
Only how the same server is reached can change, and the budget. Options that would mean another
database, another slot, or rows that are read in another way are refused: what is stored came
from the old ones.
"""

import json
from collections.abc import Mapping
from dataclasses import replace

from headwater.catalog.relation import SourceDef
from headwater.catalog.snapshot import missing
from headwater.errors import ConfigError, NotSupported
from headwater.pgwire.session import StatementResult
from headwater.runtime.cdc_budget import OPTIONS as BUDGET
from headwater.runtime.connectors import is_database
from headwater.session.answers import done
from headwater.session.context import Context
from headwater.session.finishing import finished
from headwater.sql import statement as st

_PASSWORDS = ("password", "password.env", "password.file")
_REACHING = (
    "hostname", "port", "username", *_PASSWORDS, "ssl.mode", "ssl.root.cert", "ssl.ca",
    "ssl.cert", "ssl.key", "connect.timeout", "connect.timeout.s", "read.timeout.s",
    "heartbeat.s", "server.id",
)  # fmt: skip
_ANOTHER = (
    "connector", "database.name", "schema.name", "table.name", "slot.name", "publication.name",
    "publication.create.enable",
)  # fmt: skip


async def alter_source(context: Context, statement: st.AlterOptions) -> StatementResult:
    """ALTER SOURCE s SET (...), and RisingWave's CONNECTOR WITH (...)."""
    if statement.kind is not st.ObjectKind.SOURCE:
        raise NotSupported("the options of a connector cannot be altered yet")
    snapshot = await context.snapshot()
    name = statement.name.name
    source = next((each for each in snapshot.sources if each.name == name), None)
    if source is None:
        raise missing("source", name, [each.name for each in snapshot.sources], "42704")
    if not is_database(source.kind):
        raise NotSupported(f'the options of source "{name}" cannot be altered')
    given = dict(statement.options)
    await finished(
        context.engine.ddl.alter_database_source(source.name, lambda now: with_options(now, given))
    )
    return done("ALTER SOURCE")


def with_options(source: SourceDef, given: Mapping[str, str]) -> SourceDef:
    """The source with other options, of those that may be changed."""
    if not given:
        raise ConfigError("ALTER SOURCE ... SET () names no option")
    for name in given:
        if name in _ANOTHER:
            raise NotSupported(
                f'option "{name}" of source "{source.name}" cannot be altered',
                detail="It would be another database or another slot; what is stored came from "
                "the one that it is now.",
                hint="Create another source.",
            )
        if name not in (*_REACHING, *BUDGET):
            raise NotSupported(
                f'option "{name}" of source "{source.name}" cannot be altered',
                detail=f"These can: {', '.join((*_REACHING, *BUDGET))}.",
            )
    kept = dict(source.options)
    if any(name in _PASSWORDS for name in given):
        # There is one password, wherever it stands.
        kept = {name: value for name, value in kept.items() if name not in _PASSWORDS}
    return replace(
        source, options=kept | {name: json.dumps(value) for name, value in given.items()}
    )

"""Which sink a connector's name stands for; nothing is imported before it is asked for.

Names are those that users of other systems know. A package of somebody else's brings more of them
under the entry point group `headwater.sinks`: a name, and a function from `SinkSpec` to a sink.
"""

import difflib
import importlib
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points

from headwater.errors import ConfigError
from headwater.sinks.options import Option
from headwater.sinks.sink import Sink, SinkSpec

GROUP = "headwater.sinks"

SinkFactory = Callable[[SinkSpec], Sink]

_POSTGRES = "headwater.sinks.postgres.sink:postgres_sink"
_MYSQL = "headwater.sinks.mysql.sink:mysql_sink"
_JDBC = "headwater.sinks.jdbc:jdbc_sink"
_KAFKA = "headwater.sinks.kafka.sink:kafka_sink"
_DELTA = "headwater.sinks.delta.sink:delta_sink"
_ICEBERG = "headwater.sinks.iceberg.sink:iceberg_sink"
_FILES = "headwater.sinks.files.sink:file_sink"
_WEBHOOK = "headwater.sinks.webhook:webhook_sink"

CONNECTORS: Mapping[str, str] = {
    "postgres": _POSTGRES,
    "postgresql": _POSTGRES,
    "mysql": _MYSQL,
    "mariadb": _MYSQL,
    "jdbc": _JDBC,
    "kafka": _KAFKA,
    "delta": _DELTA,
    "deltalake": _DELTA,
    "iceberg": _ICEBERG,
    "file": _FILES,
    "fs": _FILES,
    "s3": _FILES,
    "webhook": _WEBHOOK,
    "http": _WEBHOOK,
    "python": "headwater.sinks.python_class:python_sink",
    "blackhole": "headwater.sinks.blackhole:blackhole_sink",
}
"""Every name of ours, and the function behind it."""


def make_sink(kind: str, spec: SinkSpec) -> Sink:
    """A sink of this kind; raises `ConfigError` where there is none, or its options are wrong."""
    return find_sink(kind)(spec)


def secret_options(kind: str) -> frozenset[str]:
    """The names of options that a connector of ours keeps to itself."""
    if kind.lower() not in CONNECTORS:
        return frozenset()
    module = importlib.import_module(CONNECTORS[kind.lower()].partition(":")[0])
    known: tuple[Option, ...] = getattr(module, "OPTIONS", ())
    return frozenset(name for each in known if each.secret for name in (each.name, *each.also))


def find_sink(kind: str) -> SinkFactory:
    """The function that makes a sink of this kind; raises `ConfigError` where there is none."""
    name = kind.lower()
    if name in CONNECTORS:
        return _loaded(name, CONNECTORS[name])
    others = {point.name: point for point in entry_points(group=GROUP)}
    if name in others:
        try:
            found: SinkFactory = others[name].load()
        except (ImportError, AttributeError) as error:
            raise _not_loaded(name, error) from error
        return found
    known = sorted({*CONNECTORS, *others})
    near = difflib.get_close_matches(name, known, n=1)
    raise ConfigError(
        f'there is no sink connector "{kind}"',
        hint=f'Did you mean "{near[0]}"?' if near else f"There are: {', '.join(known)}.",
    )


def _loaded(name: str, place: str) -> SinkFactory:
    module, _, function = place.partition(":")
    try:
        factory: SinkFactory = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise _not_loaded(name, error) from error
    return factory


def _not_loaded(name: str, error: Exception) -> ConfigError:
    return ConfigError(
        f'connector "{name}" cannot be loaded',
        detail=str(error),
        hint="Install what it needs into the environment that the engine runs in.",
    )

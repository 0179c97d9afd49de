"""Settings: every one has a unit, a default, a range and one line of documentation.

Settings come from `headwater.toml` in the workspace, from the environment
(`HEADWATER_BARRIER_INTERVAL_MS=500`), and from the caller, the later ones winning. A name that
does not exist is refused with the nearest that does, a value that does not fit with the reason.
Those marked `live` can change while the engine runs.
"""

import dataclasses
import difflib
import math
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from headwater.errors import ConfigError

_ENVIRONMENT_PREFIX = "HEADWATER_"
_NOT_SETTINGS = frozenset({"HEADWATER_CRASH", "HEADWATER_REQUIRE_ALL", "HEADWATER_JAVA"})

MIB = 1 << 20


def _setting(  # noqa: PLR0913  one argument per property of a setting
    default: Any,
    doc: str,
    *,
    unit: str = "",
    low: float | None = None,
    high: float | None = None,
    live: bool = False,
) -> Any:
    metadata = {"doc": doc, "unit": unit, "low": low, "high": high, "live": live}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings with their values."""

    barrier_interval_ms: int = _setting(
        1000,
        "Time between two periodic barriers.",
        unit="milliseconds",
        low=10,
        high=600_000,
        live=True,
    )
    checkpoint_frequency: int = _setting(
        1,
        "Every how many barriers one is a checkpoint.",
        unit="barriers",
        low=1,
        high=1000,
        live=True,
    )
    in_flight_barriers: int = _setting(
        2,
        "How many barriers may be under way before periodic ones are held back.",
        unit="barriers",
        low=1,
        high=10_000,
        live=True,
    )
    restart_backoff_ms: int = _setting(
        100,
        "Wait before the first restart of a failed job.",
        unit="milliseconds",
        low=1,
        high=60_000,
    )
    restart_backoff_max_ms: int = _setting(
        30_000, "Longest wait between restarts of a failed job.", unit="milliseconds", low=1
    )
    ledger_url: str = _setting(
        "", "SQLAlchemy URL of the ledger; empty means SQLite inside the workspace."
    )
    storage_url: str = _setting(
        "", "Where tables live, a folder or s3://bucket/prefix; empty means inside the workspace."
    )
    storage_fsync: bool = _setting(
        True, "Whether local files are forced to disk before the ledger names them."
    )
    driver_bytes: int = _setting(
        32 * MIB,
        "Largest batch that the driver handles itself; larger ones run as Spark tasks.",
        unit="bytes",
        low=0,
    )
    sink_driver_bytes: int = _setting(
        8 * MIB,
        "Largest delivery to a sink that the driver brings itself; larger ones run as Spark tasks.",
        unit="bytes",
        low=0,
    )
    cache_bytes: int = _setting(
        32768 * MIB, "Room on each machine's disk for the lookup cache.", unit="bytes", low=MIB
    )
    cache_dir: str = _setting(
        "",
        "Folder of the lookup cache; empty means inside the workspace, "
        "or a temporary folder of each machine on a cluster.",
    )
    fetched_bytes: int = _setting(
        4096 * MIB,
        "Room on each machine's disk for files of an object store, which readers share; "
        "0 fetches them every time.",
        unit="bytes",
        low=0,
    )
    target_file_bytes: int = _setting(
        128 * MIB, "Size that folding aims at for a data file.", unit="bytes", low=64 * 1024
    )
    fold_files: int = _setting(
        16, "How many files of similar size are folded into one.", unit="files", low=2, high=1000
    )
    fold_dead_ratio: float = _setting(
        0.3, "Share of dead rows from which a file is rewritten.", low=0.01, high=1.0
    )
    retention_s: int = _setting(
        86_400,
        "How long old epochs can be read; consumers that still need older ones keep them longer.",
        unit="seconds",
        low=0,
        live=True,
    )
    maintenance_interval_s: float = _setting(
        10.0,
        "Time between two rounds of folding and collection.",
        unit="seconds",
        low=0.05,
        live=True,
    )
    delta_checkpoint_every: int = _setting(
        100, "After how many versions a Delta checkpoint is written.", unit="versions", low=2
    )
    manifest_every: int = _setting(
        50, "After how many epochs a table's list of files is stored whole.", unit="epochs", low=1
    )
    fill_at_once_rows: int = _setting(
        100_000,
        "A new view over tables of at most so many rows is filled inside one epoch; "
        "others are filled beside the epochs.",
        unit="rows",
        low=0,
        live=True,
    )
    backfill_slice_bytes: int = _setting(
        16 * MIB,
        "How much of a table's files a new view reads at a time, where it can be read in slices.",
        unit="bytes",
        low=1024,
    )
    background_niceness: int = _setting(
        5,
        "How many steps of `nice` the filling of new views and a Spark on this machine stand back "
        "behind the epochs, on Linux; 0 for none.",
        unit="steps",
        low=0,
        high=19,
    )
    spark_master: str = _setting("local[*]", "Spark master: local[n] or spark://host:port.")
    spark_driver_memory: str = _setting("2g", "Memory of Spark's driver process.")
    spark_java_options: str = _setting("", "More options for the Java of Spark's driver.")
    spark_early: bool = _setting(
        True,
        "Whether `headwater serve` starts Spark as soon as it is ready. Otherwise what needs it "
        "first waits for it, and a server that only follows databases does without its memory.",
    )
    spark_shuffle_partitions: int = _setting(
        0, "Shuffle partitions; 0 means as many as there are cores.", low=0
    )
    cdc_watch_interval_s: float = _setting(
        5.0,
        "How often a followed database is asked how far behind we are and what it keeps for us.",
        unit="seconds",
        low=0.1,
    )
    sink_buffer_bytes: int = _setting(
        32 * MIB,
        "Room in memory for what one sink has not delivered yet; the rest waits in storage.",
        unit="bytes",
        low=64 * 1024,
    )
    sink_chunk_bytes: int = _setting(
        16 * MIB, "Largest part in which a sink's rows are kept.", unit="bytes", low=4 * 1024
    )
    takeover_wait_s: float = _setting(
        15.0,
        "How long an engine on another machine must be silent before its workspace is taken.",
        unit="seconds",
        low=0,
    )

    @classmethod
    def load(
        cls,
        workspace: Path | None = None,
        overrides: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Self:
        """Read settings from all places; the later ones win."""
        values: dict[str, Any] = {}
        if workspace is not None and (file := workspace / "headwater.toml").exists():
            try:
                values.update(tomllib.loads(file.read_text()))
            except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
                raise ConfigError(f"{file.name} is not valid TOML", detail=str(error)) from error
        for variable, text in (os.environ if environment is None else environment).items():
            if variable.startswith(_ENVIRONMENT_PREFIX) and variable not in _NOT_SETTINGS:
                values[variable.removeprefix(_ENVIRONMENT_PREFIX).lower()] = text
        values.update(overrides or {})
        return cls().change(values)

    def change(self, values: Mapping[str, Any], *, running: bool = False) -> Self:
        """Replace some values; `running` allows only the live ones."""
        known = {setting.name: setting for setting in fields(self)}
        checked: dict[str, Any] = {}
        for name, value in values.items():
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                raise ConfigError(
                    f'there is no setting "{name}"',
                    hint=f'Did you mean "{near[0]}"?'
                    if near
                    else "`headwater settings` lists all of them.",
                )
            setting = known[name]
            parsed = _parse(setting, value)
            if running and not setting.metadata["live"] and parsed != getattr(self, name):
                raise ConfigError(
                    f'setting "{name}" cannot change while the engine runs',
                    hint="Change it in headwater.toml and restart.",
                )
            checked[name] = parsed
        return dataclasses.replace(self, **checked)


def _parse(setting: "dataclasses.Field[Any]", value: Any) -> Any:
    wanted: Any = type(setting.default)
    unit = setting.metadata["unit"]
    described = f"{wanted.__name__}" + (f" in {unit}" if unit else "")
    parsed: Any
    try:
        if wanted is bool:
            parsed = _parse_bool(value)
        elif isinstance(value, bool) or (wanted is int and isinstance(value, float)):
            raise ValueError
        elif wanted is str and not isinstance(value, str):
            raise ValueError
        else:
            parsed = wanted(value)
    except (ValueError, TypeError):
        raise ConfigError(
            f'setting "{setting.name}" cannot be {value!r}',
            detail=f"It takes a value of type {described}; its default is {setting.default!r}.",
            hint=setting.metadata["doc"],
        ) from None
    low, high = setting.metadata["low"], setting.metadata["high"]
    endless = isinstance(parsed, float) and not math.isfinite(parsed)
    too_low, too_high = low is not None and parsed < low, high is not None and parsed > high
    if endless or too_low or too_high:
        upper = "any" if high is None else high
        raise ConfigError(
            f'setting "{setting.name}" cannot be {value!r}',
            detail=f"It must be between {low} and {upper}{' ' + unit if unit else ''}.",
            hint=setting.metadata["doc"],
        )
    return parsed


def _parse_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    match str(value).lower():
        case "true" | "on" | "1" | "yes":
            return True
        case "false" | "off" | "0" | "no":
            return False
        case _:
            raise ValueError(value)

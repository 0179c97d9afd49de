"""The settings of one session: what SET, SHOW and RESET are about.

    kind       known from        effect
    ours       RisingWave        decides what statements of this session do
    client     PostgreSQL        reported to the client, or decides how values are spelled
    accepted   both              kept and shown, without a meaning here; SET says so in a notice

A name that nobody knows is refused with the nearest that somebody does.
"""

import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from headwater.catalog.relation import PUBLIC
from headwater.errors import ConfigError

_TRUE = ("t", "true", "on", "yes", "1")
_FALSE = ("f", "false", "off", "no", "0")


def _boolean(value: str) -> str:
    word = value.strip().lower()
    if word in _TRUE:
        return "true"
    if word in _FALSE:
        return "false"
    raise ValueError("a boolean")


def _rate(value: str) -> str:
    if value.strip().lower() == "default":
        return "default"
    number = int(value)
    return "default" if number < 0 else str(number)


def _count(value: str) -> str:
    word = value.strip().lower()
    if word in ("default", "adaptive", "auto"):
        return word
    if int(word) < 0:
        raise ValueError("a number that is not negative")
    return str(int(word))


def _choice(*words: str) -> Callable[[str], str]:
    def checked(value: str) -> str:
        word = value.strip().lower()
        if word not in words:
            raise ValueError(f"one of {', '.join(words)}")
        return word

    return checked


def _zone(value: str) -> str:
    from headwater.pgwire.text import known_zone  # noqa: PLC0415  only when somebody asks

    return known_zone(value)


def _text(value: str) -> str:
    return value


@dataclass(frozen=True, slots=True)
class Variable:
    """A setting of a session."""

    name: str
    default: str
    doc: str
    check: Callable[[str], str] = _text
    reported: str = ""
    """The name under which clients are told of it, when they are."""
    idle: bool = False
    """Whether it is accepted without a meaning here."""


def _known() -> Iterator[Variable]:
    ours = (
        ("rw_implicit_flush", "false", "Commit an epoch after each statement that writes.",
         _boolean),
        ("background_ddl", "false", "Return from CREATE at once; WAIT waits.", _boolean),
        ("search_path", f'"$user", {PUBLIC}', "Schemas in which names are looked for.", _text),
        ("refresh_policy", "auto", "How new materialized views are kept current.",
         _choice("auto", "incremental", "incremental_strict", "full")),
        ("backfill_rate_limit", "default", "Rows a second while a new view is filled.", _rate),
        ("source_rate_limit", "default", "Rows a second of new sources.", _rate),
        ("sink_rate_limit", "default", "Rows a second of new sinks.", _rate),
        ("dml_rate_limit", "default", "Rows a second of INSERT, UPDATE and DELETE.", _rate),
        ("statement_timeout", "0", "Milliseconds after which a statement is cancelled; 0 never.",
         _text),
    )  # fmt: skip
    for name, default, doc, check in ours:
        yield Variable(name, default, doc, check)
    clients = (
        ("timezone", "UTC", "TimeZone", _zone),
        ("application_name", "", "application_name", _text),
        ("client_encoding", "UTF8", "client_encoding", _text),
        ("datestyle", "ISO, MDY", "DateStyle", _text),
        ("intervalstyle", "postgres", "IntervalStyle", _text),
        ("standard_conforming_strings", "on", "standard_conforming_strings", _text),
        ("extra_float_digits", "1", "", _text),
        ("bytea_output", "hex", "", _choice("hex")),
        ("client_min_messages", "notice", "", _text),
        ("server_version", "14.0", "", _text),
        ("server_version_num", "140000", "", _text),
        ("server_encoding", "UTF8", "", _text),
        ("transaction_isolation", "read committed", "", _text),
        ("transaction_read_only", "off", "", _text),
        ("default_transaction_read_only", "off", "", _text),
        ("default_transaction_isolation", "read committed", "", _text),
        ("max_identifier_length", "63", "", _text),
        ("lc_collate", "C", "", _text),
        ("lc_ctype", "C", "", _text),
        ("is_superuser", "on", "is_superuser", _text),
        ("session_authorization", "root", "session_authorization", _text),
        ("integer_datetimes", "on", "integer_datetimes", _text),
        ("jit", "off", "", _text),
        ("lock_timeout", "0", "", _text),
        ("idle_in_transaction_session_timeout", "0", "", _text),
        ("row_security", "on", "", _text),
        ("synchronous_commit", "on", "", _text),
    )
    for name, default, reported, check in clients:
        yield Variable(name, default, "A setting of PostgreSQL clients.", check, reported)
    for name, default, check in _ACCEPTED:
        yield Variable(name, default, "Accepted; has no meaning here.", check, idle=True)


_ACCEPTED: tuple[tuple[str, str, Callable[[str], str]], ...] = (
    ("streaming_parallelism", "default", _count),
    ("streaming_parallelism_for_table", "default", _count),
    ("streaming_parallelism_for_sink", "default", _count),
    ("streaming_parallelism_for_index", "default", _count),
    ("streaming_parallelism_for_source", "default", _count),
    ("streaming_parallelism_for_materialized_view", "default", _count),
    ("streaming_parallelism_for_backfill", "default", _count),
    ("streaming_max_parallelism", "256", _count),
    ("streaming_use_snapshot_backfill", "true", _boolean),
    ("streaming_use_arrangement_backfill", "true", _boolean),
    ("streaming_use_shared_source", "true", _boolean),
    ("streaming_enable_unaligned_join", "false", _boolean),
    ("streaming_enable_delta_join", "false", _boolean),
    ("streaming_enable_bushy_join", "true", _boolean),
    ("streaming_separate_consecutive_join", "false", _boolean),
    ("streaming_over_window_cache_policy", "full", _text),
    ("streaming_force_filter_inside_join", "false", _boolean),
    ("streaming_join_encoding", "memory_optimized", _text),
    ("streaming_unsafe_allow_upsert_sink_pk_mismatch", "false", _boolean),
    ("enable_locality_backfill", "false", _boolean),
    ("sink_decouple", "default", _choice("default", "true", "false")),
    ("query_mode", "auto", _choice("auto", "local", "distributed")),
    ("visibility_mode", "default", _choice("default", "all", "checkpoint")),
    ("batch_parallelism", "default", _count),
    ("batch_enable_distributed_dml", "false", _boolean),
    ("batch_expr_strict_mode", "true", _boolean),
    ("rw_enable_join_ordering", "true", _boolean),
    ("rw_enable_two_phase_agg", "true", _boolean),
    ("rw_force_two_phase_agg", "false", _boolean),
    ("rw_enable_share_plan", "true", _boolean),
    ("rw_force_split_distinct_agg", "false", _boolean),
    ("rw_batch_enable_lookup_join", "true", _boolean),
    ("rw_batch_enable_sort_agg", "true", _boolean),
    ("rw_streaming_allow_jsonb_in_stream_key", "false", _boolean),
    ("rw_streaming_over_window_cache_policy", "full", _text),
    ("create_compaction_group_for_mv", "false", _boolean),
    ("bypass_cluster_limits", "false", _boolean),
    ("max_split_range_gap", "8", _count),
    ("license_key", "", _text),
)

KNOWN = {variable.name: variable for variable in _known()}


class Variables:
    """The values of one session."""

    def __init__(self, given: "dict[str, str] | None" = None) -> None:
        self._values: dict[str, str] = {}
        for name, value in (given or {}).items():
            # What a driver sends at start-up and nobody knows is left alone, as PostgreSQL does
            # with settings of extensions.
            if name.lower() in KNOWN:
                self._values[name.lower()] = self._checked(name.lower(), value)
        self._given = dict(self._values)

    def __getitem__(self, name: str) -> str:
        variable = self.known(name)
        return self._values.get(variable.name, variable.default)

    def set(self, name: str, value: str | None) -> Variable:
        """Change a value; None is the default."""
        variable = self.known(name)
        if value is None:
            self._values.pop(variable.name, None)
            if variable.name in self._given:
                self._values[variable.name] = self._given[variable.name]
        else:
            self._values[variable.name] = self._checked(variable.name, value)
        return variable

    def reset(self) -> None:
        """All values back to what they were at the beginning of the session."""
        self._values = dict(self._given)

    def all(self) -> list[tuple[str, str, str]]:
        """Name, value and meaning of each."""
        return [(name, self[name], KNOWN[name].doc) for name in sorted(KNOWN)]

    def reported(self) -> dict[str, str]:
        """What clients are told of."""
        return {v.reported: self[v.name] for v in KNOWN.values() if v.reported}

    def is_on(self, name: str) -> bool:
        """Whether a boolean setting is true."""
        return self[name] == "true"

    @property
    def path(self) -> tuple[str, ...]:
        """The search path, without names that stand for others."""
        parts = [part.strip().strip('"') for part in self["search_path"].split(",")]
        return tuple(part for part in parts if part and part != "$user") or (PUBLIC,)

    def known(self, name: str) -> Variable:
        """The setting of that name, in any case of letters."""
        variable = KNOWN.get(name.lower())
        if variable is None:
            near = difflib.get_close_matches(name.lower(), KNOWN, n=1)
            error = ConfigError(
                f'unrecognized configuration parameter "{name}"',
                hint=f'Did you mean "{near[0]}"?' if near else "SHOW ALL lists what there is.",
            )
            error.sqlstate = "42704"
            raise error
        return variable

    @staticmethod
    def _checked(name: str, value: str) -> str:
        try:
            return KNOWN[name].check(value)
        except ValueError as error:
            wanted = str(error) if "invalid literal" not in str(error) else "a whole number"
            raise ConfigError(
                f'invalid value for parameter "{name}": "{value}"', detail=f"It takes {wanted}."
            ) from error

"""FORMAT and ENCODE of a sink, as the statement says them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkFormat:
    """FORMAT a ENCODE b (...), in lower case; empty where it is not said."""

    format: str = ""
    encode: str = ""
    options: tuple[tuple[str, str], ...] = ()


NO_FORMAT = SinkFormat()

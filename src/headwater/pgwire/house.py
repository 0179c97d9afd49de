"""What all connections of a server share."""

import ssl
from dataclasses import dataclass

from headwater.pgwire.framing import MESSAGE_BYTES
from headwater.pgwire.scram import Verifier
from headwater.pgwire.session import Sessions


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much a client may take."""

    message_bytes: int = MESSAGE_BYTES
    start_up_s: float = 30.0
    connections: int = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """Who answers, who may come in, and how."""

    sessions: Sessions
    users: dict[str, Verifier | None]
    tls: ssl.SSLContext | None
    limits: Limits
    server_version: str

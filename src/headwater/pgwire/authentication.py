"""Who may come in, and how they prove who they are.

the user's secret    the client is on this machine    it is elsewhere
none                 let in                           refused
a password           SCRAM                            SCRAM
no such user         SCRAM, then refused as for a wrong password
"""

import ipaddress
from collections.abc import Mapping

from headwater.pgwire import answers
from headwater.pgwire.channel import Channel
from headwater.pgwire.messages import Body
from headwater.pgwire.scram import MECHANISM, Exchange, Verifier
from headwater.pgwire.violation import ProtocolViolation, WireError


def verifiers_of(users: Mapping[str, str | None]) -> dict[str, Verifier | None]:
    """What to keep of users and their passwords (or PostgreSQL's verifiers of them)."""
    return {user: None if secret is None else Verifier.of(secret) for user, secret in users.items()}


async def authenticate(channel: Channel, user: str, users: Mapping[str, Verifier | None]) -> None:
    """Let the client in, or raise."""
    known = users.get(user)
    if known is None:
        if user in users:
            _admit_without_password(channel, user)
            return
        if not any(users.values()):
            raise WireError(f'role "{user}" does not exist', "28000")
    exchange = Exchange(known or Verifier.of_nobody(user), user)
    channel.write(answers.sasl_start([MECHANISM]))
    channel.flush()
    body = Body(await _password(channel))
    mechanism = body.string()
    if mechanism != MECHANISM:
        raise ProtocolViolation("client selected an invalid SASL authentication mechanism")
    size = body.int32()
    channel.write(answers.sasl_continue(exchange.challenge(body.bytes(size) if size >= 0 else b"")))
    channel.flush()
    proof = exchange.verify(await _password(channel))
    channel.write(answers.sasl_final(proof))
    channel.write(answers.AUTHENTICATED)


def _admit_without_password(channel: Channel, user: str) -> None:
    try:
        address = ipaddress.ip_address(channel.peer.partition("%")[0])
    except ValueError:
        address = ipaddress.ip_address("0.0.0.0")
    mapped = getattr(address, "ipv4_mapped", None) or address
    if not mapped.is_loopback:
        raise WireError(
            f'user "{user}" has no password and may connect from this machine only',
            "28000",
            hint="Give the user a password.",
        )
    channel.write(answers.AUTHENTICATED)


async def _password(channel: Channel) -> bytes:
    kind, body = await channel.read()
    if kind != ord("p"):
        raise ProtocolViolation(f"expected a password response, got message type {kind}")
    return body

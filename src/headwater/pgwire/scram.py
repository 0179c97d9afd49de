"""Proof of a password without sending it: the server's side of SCRAM-SHA-256 (RFC 5802, 7677).

The server keeps a verifier, from which neither the password nor a proof can be made:

    client                                          server
    user, nonce                               ->
                                              <-    nonce and its own, salt, iterations
    both nonces, proof by the password        ->
                                              <-    proof by the verifier

A user who does not exist is asked the same questions, with a salt that stays the same for a
name, and then refused with the same words as one whose password was wrong.
"""

import base64
import binascii
import hashlib
import hmac
import re
import secrets
import stringprep
import unicodedata
from dataclasses import dataclass, field
from typing import Self

from headwater.pgwire.violation import ProtocolViolation, WireError

MECHANISM = "SCRAM-SHA-256"
ITERATIONS = 4096

_VERIFIER = re.compile(
    r"SCRAM-SHA-256\$(\d{1,9}):([A-Za-z0-9+/=]+)\$([A-Za-z0-9+/=]+):([A-Za-z0-9+/=]+)"
)
_FIRST = re.compile(
    r"(?:n|y|p=[^,]*),(?:a=[^,]*)?,(?P<bare>(?:m=[^,]*,)?n=[^,]*,r=(?P<nonce>[!-+\--~]+)(?:,.*)?)"
)
_FINAL = re.compile(
    r"(?P<unproved>c=(?P<binding>[^,]*),r=(?P<nonce>[^,]*)(?:,.*)?),p=(?P<proof>[^,]*)"
)
_SECRET = secrets.token_bytes(32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verifier:
    """What the server keeps of a password."""

    salt: bytes
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    @classmethod
    def of(cls, secret: str) -> Self:
        """From a password, or from the text that PostgreSQL keeps of one."""
        match = _VERIFIER.fullmatch(secret)
        if match is None:
            return cls.of_password(secret)
        try:
            salt, stored, server = (
                base64.b64decode(part, validate=True) for part in match.groups()[1:]
            )
        except binascii.Error:
            return cls.of_password(secret)
        return cls(salt=salt, iterations=int(match[1]), stored_key=stored, server_key=server)

    @classmethod
    def of_password(cls, password: str, *, salt: bytes | None = None) -> Self:
        """With a fresh salt."""
        salt = salt or secrets.token_bytes(16)
        salted = hashlib.pbkdf2_hmac("sha256", prepared(password), salt, ITERATIONS)
        client_key = _hmac(salted, b"Client Key")
        return cls(
            salt=salt,
            iterations=ITERATIONS,
            stored_key=hashlib.sha256(client_key).digest(),
            server_key=_hmac(salted, b"Server Key"),
        )

    @classmethod
    def of_nobody(cls, user: str) -> Self:
        """Of a user who does not exist; no password fits it."""
        salt = _hmac(_SECRET, user.encode())[:16]
        return cls(
            salt=salt,
            iterations=ITERATIONS,
            stored_key=secrets.token_bytes(32),
            server_key=secrets.token_bytes(32),
        )


class Exchange:
    """One client's proof: `challenge` answers its first words, `verify` its last."""

    def __init__(self, verifier: Verifier, user: str) -> None:
        self._verifier = verifier
        self._user = user
        self._transcript = ""
        self._nonce = ""
        self._header = ""

    def challenge(self, first: bytes) -> bytes:
        """The server's first answer."""
        text = _text(first)
        match = _FIRST.fullmatch(text)
        if match is None or match["bare"].startswith("m="):
            raise ProtocolViolation("malformed SCRAM message")
        if text.startswith("p="):
            raise ProtocolViolation("SCRAM channel binding is not offered")
        self._header = text[: match.start("bare")]
        self._nonce = match["nonce"] + base64.b64encode(secrets.token_bytes(18)).decode()
        salt = base64.b64encode(self._verifier.salt).decode()
        answer = f"r={self._nonce},s={salt},i={self._verifier.iterations}"
        self._transcript = f"{match['bare']},{answer}"
        return answer.encode()

    def verify(self, final: bytes) -> bytes:
        """The server's proof, once the client's was right."""
        match = _FINAL.fullmatch(_text(final))
        if match is None:
            raise ProtocolViolation("malformed SCRAM message")
        try:
            proof = base64.b64decode(match["proof"], validate=True)
            binding = base64.b64decode(match["binding"], validate=True)
        except binascii.Error:
            raise ProtocolViolation("malformed SCRAM message") from None
        if match["nonce"] != self._nonce or binding != self._header.encode():
            raise ProtocolViolation("SCRAM nonce or channel binding does not match")
        transcript = f"{self._transcript},{match['unproved']}".encode()
        signature = _hmac(self._verifier.stored_key, transcript)
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=False))
        right = hmac.compare_digest(hashlib.sha256(client_key).digest(), self._verifier.stored_key)
        if not right or len(proof) != len(signature):
            raise WireError(f'password authentication failed for user "{self._user}"', "28P01")
        ours = _hmac(self._verifier.server_key, transcript)
        return b"v=" + base64.b64encode(ours)


def prepared(password: str) -> bytes:
    """The password after SASLprep; as it is, where that forbids it, as PostgreSQL does."""
    mapped = "".join(
        " " if stringprep.in_table_c12(char) else char
        for char in password
        if not stringprep.in_table_b1(char)
    )
    normal = unicodedata.normalize("NFKC", mapped)
    forbidden = (
        stringprep.in_table_a1,
        stringprep.in_table_c12,
        stringprep.in_table_c21_c22,
        stringprep.in_table_c3,
        stringprep.in_table_c4,
        stringprep.in_table_c5,
        stringprep.in_table_c6,
        stringprep.in_table_c7,
        stringprep.in_table_c8,
        stringprep.in_table_c9,
    )
    if not normal or any(table(char) for char in normal for table in forbidden):
        return password.encode()
    if any(map(stringprep.in_table_d1, normal)) and (
        any(map(stringprep.in_table_d2, normal))
        or not (stringprep.in_table_d1(normal[0]) and stringprep.in_table_d1(normal[-1]))
    ):
        return password.encode()
    return normal.encode()


def _hmac(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "sha256")


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ProtocolViolation("malformed SCRAM message") from None

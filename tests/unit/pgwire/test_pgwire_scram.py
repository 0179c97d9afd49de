"""SCRAM: the example of RFC 7677, wrong proofs, and passwords that are not kept."""

import base64
import hashlib
import hmac

import pytest

from headwater.pgwire.scram import Exchange, Verifier, prepared
from headwater.pgwire.violation import ProtocolViolation, WireError


def client_proof(
    password: str, first: str, challenge: str, header: str = "n,,"
) -> tuple[bytes, bytes]:
    """What an honest client says last, and what it expects to hear."""
    fields = dict(part.split("=", 1) for part in challenge.split(","))
    salt = base64.b64decode(fields["s"])
    salted = hashlib.pbkdf2_hmac("sha256", prepared(password), salt, int(fields["i"]))
    key = hmac.digest(salted, b"Client Key", "sha256")
    unproved = f"c={base64.b64encode(header.encode()).decode()},r={fields['r']}"
    transcript = f"{first},{challenge},{unproved}".encode()
    signature = hmac.digest(hashlib.sha256(key).digest(), transcript, "sha256")
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True))).decode()
    server = hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), transcript, "sha256")
    return f"{unproved},p={proof}".encode(), b"v=" + base64.b64encode(server)


def test_the_example_of_the_standard(monkeypatch):
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    exchange = Exchange(Verifier.of_password("pencil", salt=salt), "user")
    nonce = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    monkeypatch.setattr(base64, "b64encode", _fixed_nonce(base64.b64encode, nonce))
    challenge = exchange.challenge(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert challenge == f"r=rOprNGfwEbeRWgbNEkqO{nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
    final = f"c=biws,r=rOprNGfwEbeRWgbNEkqO{nonce},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    assert exchange.verify(final.encode()) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def _fixed_nonce(real, nonce):
    def encode(data):
        return nonce.encode() if len(data) == 18 else real(data)

    return encode


@pytest.mark.parametrize(
    "password", ["x", "pässword", "I\u00adX", "\u00aa", "a\u00a0b", "\u0627\u0031", "\x07"]
)
def test_honest_and_wrong_clients(password):
    for said, right in ((password, True), (password + "x", False)):
        exchange = Exchange(Verifier.of(password), "ann")
        challenge = exchange.challenge(b"y,,n=,r=abc").decode()
        final, expected = client_proof(said, "n=,r=abc", challenge, "y,,")
        if right:
            assert exchange.verify(final) == expected
        else:
            with pytest.raises(WireError, match='failed for user "ann"') as raised:
                exchange.verify(final)
            assert raised.value.sqlstate == "28P01"


def test_a_stored_verifier_of_postgres():
    whole = Verifier.of_password("pencil", salt=b"0123456789abcdef")
    b64 = [
        base64.b64encode(part).decode() for part in (whole.salt, whole.stored_key, whole.server_key)
    ]
    assert Verifier.of(f"SCRAM-SHA-256$4096:{b64[0]}${b64[1]}:{b64[2]}") == whole
    assert "pencil" not in repr(whole)
    assert b64[1] not in repr(whole)


def test_nobody_is_asked_the_same_questions():
    first, again = Verifier.of_nobody("eve"), Verifier.of_nobody("eve")
    assert first.salt == again.salt != Verifier.of_nobody("mallory").salt
    assert len(first.salt) == len(Verifier.of_password("x").salt)


@pytest.mark.parametrize(
    "first", [b"", b"\xff", b"n,,", b"p=tls-unique,,n=,r=abc", b"n,,m=x,n=,r=abc", b"n,,n=,r="]
)
def test_first_words_that_make_no_sense(first):
    with pytest.raises(ProtocolViolation):
        Exchange(Verifier.of("x"), "ann").challenge(first)


@pytest.mark.parametrize("change", [
    lambda text: text.replace("c=biws", "c=eSws"), lambda text: text.replace("r=abc", "r=abd"),
    lambda text: text[: text.index(",p=")], lambda text: text + "!", lambda text: "",
])  # fmt: skip
def test_last_words_that_do_not_fit(change):
    exchange = Exchange(Verifier.of("x"), "ann")
    challenge = exchange.challenge(b"n,,n=,r=abc").decode()
    final, _ = client_proof("x", "n=,r=abc", challenge)
    with pytest.raises(ProtocolViolation):
        exchange.verify(change(final.decode()).encode())


def test_a_short_proof_is_no_proof():
    exchange = Exchange(Verifier.of("x"), "ann")
    challenge = exchange.challenge(b"n,,n=,r=abc").decode()
    final, _ = client_proof("x", "n=,r=abc", challenge)
    head = final.decode().partition(",p=")[0]
    with pytest.raises(WireError):
        exchange.verify(f"{head},p=AAAA".encode())

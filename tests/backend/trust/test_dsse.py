"""Envelopes: the format that other tools read and write, and everything that is none."""

from __future__ import annotations

import base64
import json

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, strategies as st
from securesystemslib.dsse import Envelope as OtherEnvelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer import CryptoSigner, SSlibKey

from topicproof.backend.evidence.attestation import sign_statement
from topicproof.backend.trust.dsse import (
    PAYLOAD_TYPE,
    SIGNATURES_MAX,
    encoded,
    format_envelope,
    parse_envelope,
)
from topicproof.backend.trust.keys import Private, from_private

PRIVATE = Ed25519PrivateKey.generate()
KEY = from_private(PRIVATE)
PUBLIC = KEY.public
EACH = [PRIVATE, ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP384R1())]
TYPES = ["Ed25519", "P-256", "P-384"]


def test_the_encoding_is_that_of_the_specification() -> None:
    """Story: the example in DSSE's own specification."""
    assert encoded("http://example.com/HelloWorld", b"hello world") == (
        b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    )


@pytest.mark.parametrize("private", EACH, ids=TYPES)
def test_another_tool_verifies_what_we_sign(private: Private) -> None:
    """Story: an auditor trusts no program of ours. securesystemslib accepts the signature with our
    public key, and refuses it with another one and for another payload."""
    key = from_private(private)
    text = format_envelope(sign_statement(key, {"subject": "ü"}))
    theirs = OtherEnvelope.from_dict(json.loads(text))
    ours = SSlibKey.from_crypto(key.public, key.id)
    assert theirs.verify([ours], 1) == {key.id: ours}
    other = SSlibKey.from_crypto(Ed25519PrivateKey.generate().public_key(), key.id)
    with pytest.raises(VerificationError):
        theirs.verify([other], 1)
    theirs.payload += b" "
    with pytest.raises(VerificationError):
        theirs.verify([ours], 1)


@pytest.mark.parametrize("private", EACH, ids=TYPES)
def test_we_verify_what_another_tool_signs(private: Private) -> None:
    """Story: the other way round. The payload's type is signed too."""
    made = OtherEnvelope(b"{}", PAYLOAD_TYPE, {})
    made.sign(CryptoSigner(private))
    text, public = json.dumps(made.to_dict()), private.public_key()
    assert parse_envelope(text.encode()).signed_by(public)
    assert not parse_envelope(text.replace("in-toto", "in-tata").encode()).signed_by(public)
    assert not parse_envelope(text.encode()).signed_by(Ed25519PrivateKey.generate().public_key())


def test_base64_may_be_in_either_alphabet() -> None:
    payload = b"\xfb\xff\xfe"
    said = json.loads(format_envelope(sign_statement(KEY, {})))
    said["payload"] = base64.urlsafe_b64encode(payload).decode()
    assert parse_envelope(json.dumps(said).encode()).payload == payload


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "no JSON object"),
        (b'{"payload": "", "payloadType": "x", "signatures": []}', "no DSSE envelope"),
        (b'{"payload": "", "payloadType": "x", "signatures": [1]}', "no DSSE envelope"),
        (b'{"payload": "", "payloadType": "x", "signatures": [{"sig": "%"}]}', "not base64"),
        (b'{"payload": 1, "payloadType": "x", "signatures": [{"sig": ""}]}', "not base64"),
        (
            json.dumps(
                {"payload": "", "payloadType": "x", "signatures": [{}] * (SIGNATURES_MAX + 1)}
            ).encode(),
            "more than 16 signatures",
        ),
        (b" " * 1_000_001, "more than 1,000,000 bytes"),
    ],
    ids=range(9),
)
def test_what_is_no_envelope_is_refused(text: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_envelope(text)


@given(st.data())
def test_no_changed_byte_is_accepted(data: st.DataObject) -> None:
    """Story: one character of a signed file is replaced. It is refused, or it still says the same
    (white space, the key's id, which is a hint)."""
    signed = sign_statement(KEY, {"verdict": "VIOLATED"})
    text = bytearray(format_envelope(signed).encode())
    text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 127))
    try:
        found = parse_envelope(bytes(text))
    except ValueError:
        return
    assert not found.signed_by(PUBLIC) or found.payload == signed.payload

"""Signed envelopes in the format DSSE 1.0 (Dead Simple Signing Envelope).

A signature covers the payload's type and the payload, joined by the pre-authentication encoding.
So a payload cannot be passed off as one of another type. in-toto, cosign and securesystemslib read
the same format.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any, NamedTuple

from topicproof.backend.trust.keys import PublicKey, verifies

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT = "https://in-toto.io/Statement/v1"
"""The type of each payload of ours."""
ENVELOPE_BYTES_MAX = 1_000_000
"""Ours have a few thousand bytes."""
SIGNATURES_MAX = 16


class Signature(NamedTuple):
    key_id: str
    """A hint only: it is not signed."""
    signature: bytes


class Envelope(NamedTuple):
    payload: bytes
    payload_type: str
    signatures: tuple[Signature, ...]

    def signed_by(self, public: PublicKey) -> bool:
        """Return whether one of the signatures is by this key."""
        text = encoded(self.payload_type, self.payload)
        return any(verifies(public, signature.signature, text) for signature in self.signatures)


def encoded(payload_type: str, payload: bytes) -> bytes:
    """Return the bytes to sign: the pre-authentication encoding (PAE) of DSSE."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def format_envelope(envelope: Envelope) -> str:
    fields = {
        "payloadType": envelope.payload_type,
        "payload": base64.b64encode(envelope.payload).decode(),
        "signatures": [
            {"keyid": signature.key_id, "sig": base64.b64encode(signature.signature).decode()}
            for signature in envelope.signatures
        ],
    }
    return json.dumps(fields, indent=1) + "\n"


def parse_envelope(text: bytes) -> Envelope:
    """Parse an envelope. Raises ValueError with the reason as a clause."""
    if len(text) > ENVELOPE_BYTES_MAX:
        raise ValueError(f"it has more than {ENVELOPE_BYTES_MAX:,} bytes")
    fields = _fields(text)
    signatures = fields.get("signatures")
    kind = fields.get("payloadType")
    if not isinstance(signatures, list) or not signatures or not isinstance(kind, str):
        raise ValueError("it is no DSSE envelope with a signature")
    if len(signatures) > SIGNATURES_MAX:
        raise ValueError(f"it has more than {SIGNATURES_MAX} signatures")
    signatures_parsed = []
    for signature in signatures:
        key_id = signature.get("keyid", "") if isinstance(signature, dict) else None
        if not isinstance(key_id, str):
            raise ValueError("it is no DSSE envelope with a signature")
        signatures_parsed.append(Signature(key_id, _decoded(signature.get("sig"))))
    return Envelope(_decoded(fields.get("payload")), kind, tuple(signatures_parsed))


def payload_fields(envelope: Envelope) -> dict[str, Any]:
    """Return the payload, a JSON object. Raises ValueError with the reason as a clause."""
    return _fields(envelope.payload)


def _fields(text: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(text, object_pairs_hook=_once_each)
    except (ValueError, RecursionError) as error:
        raise ValueError("it is not JSON") from error
    if not isinstance(fields, dict):
        raise ValueError("it is no JSON object")
    return fields


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a name that is there twice, since two readers may take different ones of the two."""
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a name is there twice")
    return fields


def _decoded(text: object) -> bytes:
    """Decode base64 in either alphabet, as DSSE demands of readers."""
    try:
        return base64.b64decode(str(text).translate({45: "+", 95: "/"}), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError("it is not base64 where DSSE has base64") from error

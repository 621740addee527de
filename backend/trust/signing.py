"""The key of this installation, wherever it is: in a file, in a device, or in a key service."""

from __future__ import annotations

from topicproof.backend.settings import Settings
from topicproof.backend.trust.key_service import key_of_service, public_of_service
from topicproof.backend.trust.keys import (
    PublicKey,
    SigningKey,
    from_private,
    key_path,
    make_key,
    read_private,
)


def signing_key(settings: Settings) -> SigningKey:
    """Return the key of this installation; make it at its first use. Raises UsageError for an
    unusable key, EvidenceError if none can be made."""
    if settings.signing_uri is not None:
        return key_of_service(settings)
    path = key_path(settings)
    if settings.signing_key is None and not path.exists():
        make_key(path)
    return from_private(read_private(path))


def own_public(settings: Settings) -> PublicKey | None:
    """Return the public key of this installation without asking a device or a service; None before
    its first use. Raises UsageError."""
    if settings.signing_uri is not None:
        return public_of_service(settings)
    path = key_path(settings)
    if settings.signing_key is None and not path.exists():
        return None
    return read_private(path).public_key()

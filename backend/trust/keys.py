"""Ed25519 keys in PEM files: the key of this installation, and the public keys of others.

The installation's key is made when something is first signed, in the home, readable by its owner
alone. TOPICPROOF_SIGNING_KEY names a key of your own instead. Keys in hardware or in a cloud's key
service (PKCS#11, KMS) are not supported: a signature needs the key in a file.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from topicproof.backend.errors import EvidenceError, UsageError
from topicproof.backend.settings import Settings

KEY = "key.pem"
COOKIE = "cookie-secret"
PEM_BYTES_MAX = 10_000
"""An Ed25519 key takes 120 bytes."""


def trust_folder(settings: Settings) -> Path:
    return settings.home / "trust"


def key_path(settings: Settings) -> Path:
    """Return where the signing key is, or will be when something is signed."""
    return settings.signing_key or trust_folder(settings) / KEY


def signing_key(settings: Settings) -> Ed25519PrivateKey:
    """Return the key of this installation; make it at its first use. Raises UsageError for an
    unusable key, EvidenceError if none can be made."""
    path = key_path(settings)
    if settings.signing_key is None and not path.exists():
        made = Ed25519PrivateKey.generate()
        _make(path, made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return read_private(path)


def cookie_secret(settings: Settings) -> str:
    """Return the secret by which the dashboard knows its own cookies; make it at its first use.
    Raises EvidenceError, UsageError."""
    path = trust_folder(settings) / COOKIE
    if not path.exists():
        _make(path, secrets.token_hex(32).encode())
    found = _read(path).decode()
    if path.stat().st_mode & 0o077:
        raise UsageError(f"Other users can read the secret in {path}. Allow only you: chmod 600.")
    return found


def read_private(path: Path) -> Ed25519PrivateKey:
    """Read a private key. Raises UsageError if it is none, or if other users can read it."""
    text = _read(path)
    if path.stat().st_mode & 0o077:
        raise UsageError(f"Other users can read the key {path}. Allow only its owner: chmod 600.")
    try:
        found = load_pem_private_key(text, password=None)
    except TypeError as error:
        raise UsageError(
            f"The key {path} is encrypted, and Topicproof asks for no passwords. Name a key that is"
            " not."
        ) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UsageError(f"{path} is no private key in PEM format.") from error
    if not isinstance(found, Ed25519PrivateKey):
        raise UsageError(
            f"The key {path} is not of type Ed25519. Make one with `openssl genpkey -algorithm"
            " ed25519`."
        )
    return found


def read_public(path: Path) -> Ed25519PublicKey:
    """Read a public key. Raises UsageError if it is none."""
    return parse_public(_read(path), str(path))


def parse_public(pem: bytes, where: str) -> Ed25519PublicKey:
    """Parse a public key from `where`. Raises UsageError."""
    try:
        found = load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UsageError(
            f"{where} is no public key in PEM format. `topicproof keys export` writes one."
        ) from error
    if not isinstance(found, Ed25519PublicKey):
        raise UsageError(f"The public key {where} is not of type Ed25519.")
    return found


def key_id(public: Ed25519PublicKey) -> str:
    """Return the SHA-256 of the key's DER encoding, which OpenSSL can compute too."""
    der = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()


def public_pem(public: Ed25519PublicKey) -> str:
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def _make(path: Path, text: bytes) -> None:
    """Write a new key. If another process writes one at the same time, the first one stays."""
    fresh = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(text)
        try:
            # Unlike a rename, a link never replaces a key that is already there.
            path.hardlink_to(fresh)
        except FileExistsError:
            pass
        finally:
            fresh.unlink()
    except OSError as error:
        raise EvidenceError(f"The key {path} cannot be made: {error.strerror}.") from error


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            text = file.read(PEM_BYTES_MAX + 1)
    except OSError as error:
        raise UsageError(f"The key {path} cannot be read: {error.strerror}.") from error
    if len(text) > PEM_BYTES_MAX:
        raise UsageError(f"{path} is no key in PEM format: it is larger than any.")
    return text

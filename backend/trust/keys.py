"""Keys in PEM files: the key of this installation, and the public keys of others.

The installation's key is made when something is first signed, in the home, readable by its owner
alone. It is of type Ed25519. TOPICPROOF_SIGNING_KEY names a key of your own instead, which may also
be of type ECDSA on the curves P-256 and P-384. TOPICPROOF_SIGNING_URI names one that never leaves
its device or service (key_service.py).
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDSA,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
)
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256, SHA384
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
HASHES: dict[str, SHA256 | SHA384] = {"secp256r1": SHA256(), "secp384r1": SHA384()}
"""The curves that are supported, each with the hash that belongs to it."""

PublicKey = Ed25519PublicKey | EllipticCurvePublicKey
Private = Ed25519PrivateKey | EllipticCurvePrivateKey


@dataclass(frozen=True)
class SigningKey:
    """A key to sign with, wherever its secret is."""

    public: PublicKey
    sign: Callable[[bytes], bytes]
    """Returns the signature of a message. Raises EvidenceError if a key service does not sign."""

    @property
    def id(self) -> str:
        return key_id(self.public)


def trust_folder(settings: Settings) -> Path:
    return settings.home / "trust"


def key_path(settings: Settings) -> Path:
    """Return where the signing key is, or will be when something is signed."""
    return settings.signing_key or trust_folder(settings) / KEY


def from_private(private: Private) -> SigningKey:
    """Return a key whose secret is in this process."""
    if isinstance(private, Ed25519PrivateKey):
        return SigningKey(private.public_key(), private.sign)
    algorithm = ECDSA(HASHES[private.curve.name])
    return SigningKey(private.public_key(), lambda text: private.sign(text, algorithm))


def verifies(public: PublicKey, signature: bytes, text: bytes) -> bool:
    """Return whether a signature of a text is by this key."""
    try:
        if isinstance(public, Ed25519PublicKey):
            public.verify(signature, text)
        else:
            public.verify(signature, text, ECDSA(HASHES[public.curve.name]))
    except InvalidSignature:
        return False
    return True


def cookie_secret(settings: Settings) -> str:
    """Return the secret by which the dashboard knows its own cookies; make it at its first use.
    Raises EvidenceError, UsageError."""
    path = trust_folder(settings) / COOKIE
    if not path.exists():
        _make(path, secrets.token_hex(32).encode())
    return read_secret(path)


def make_key(path: Path) -> None:
    """Make a private key, unless another process makes it first. Raises EvidenceError."""
    key = Ed25519PrivateKey.generate()
    _make(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def read_secret(path: Path) -> str:
    """Read a secret from a file of its own. Raises UsageError if it cannot be read, if it is empty,
    or if other users can read it."""
    try:
        secret = _read(path).decode().strip()
    except UnicodeDecodeError as error:
        raise UsageError(f"The secret in {path} is not a text.") from error
    require_own(path)
    if not secret:
        raise UsageError(f"The file {path} is empty; it should hold a secret.")
    return secret


def require_own(path: Path) -> None:
    """Raises UsageError if other users can read the secret in a file."""
    if path.stat().st_mode & 0o077:
        raise UsageError(f"Other users can read the secret in {path}. Allow only you: chmod 600.")


def read_private(path: Path) -> Private:
    """Read a private key. Raises UsageError if it is none, or if other users can read it."""
    text = _read(path)
    if path.stat().st_mode & 0o077:
        raise UsageError(f"Other users can read the key {path}. Allow only its owner: chmod 600.")
    try:
        key = load_pem_private_key(text, password=None)
    except TypeError as error:
        raise UsageError(
            f"The key {path} is encrypted, and Topicproof asks for no passwords. Name a key that is"
            " not."
        ) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UsageError(f"{path} is not a private key in PEM format.") from error
    if isinstance(key, Ed25519PrivateKey) or (
        isinstance(key, EllipticCurvePrivateKey) and key.curve.name in HASHES
    ):
        return key
    raise UsageError(
        f"The key {path} is neither Ed25519 nor ECDSA on P-256 or P-384. Make one with `openssl"
        " genpkey -algorithm ed25519`."
    )


def read_public(path: Path) -> PublicKey:
    """Read a public key. Raises UsageError if it is none."""
    return parse_public(_read(path), str(path))


def parse_public(pem: bytes, where: str) -> PublicKey:
    """Parse a public key from `where`. Raises UsageError."""
    try:
        key = load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UsageError(
            f"{where} is not a public key in PEM format. `topicproof keys export` writes one."
        ) from error
    if isinstance(key, Ed25519PublicKey) or (
        isinstance(key, EllipticCurvePublicKey) and key.curve.name in HASHES
    ):
        return key
    raise UsageError(f"The public key {where} is neither Ed25519 nor ECDSA on P-256 or P-384.")


def key_id(public: PublicKey) -> str:
    """Return the SHA-256 of the key's DER encoding, which OpenSSL can compute too."""
    der = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()


def public_pem(public: PublicKey) -> str:
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
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from error
    if len(text) > PEM_BYTES_MAX:
        raise UsageError(f"{path} is neither a key nor a secret: it is larger than any.")
    return text

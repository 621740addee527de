"""Keys that never leave their device (PKCS#11) or their service (AWS, Google, Azure, Vault).

TOPICPROOF_SIGNING_URI names the key as securesystemslib does:

    hsm:2?label=topicproof        a PKCS#11 token; PYKCS11LIB names the module of its maker
    awskms:alias/topicproof       AWS KMS, with the credentials of the AWS SDK
    gcpkms:projects/…             Google Cloud KMS
    azurekms://NAME.vault.azure.net/keys/KEY/VERSION
    hv:KEY/VERSION                HashiCorp Vault, transit engine

TOPICPROOF_SIGNING_PUBLIC_KEY is its public key, so that verifying asks neither device nor service.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from topicproof.backend.errors import EvidenceError, UsageError
from topicproof.backend.settings import Settings
from topicproof.backend.trust.keys import PublicKey, SigningKey, read_public, read_secret, verifies

if TYPE_CHECKING:
    from securesystemslib.signer import Signer

EXTRAS = ("hsm", "awskms", "gcpkms", "azurekms", "hv")
"""The schemes of a key's URI. Others of securesystemslib read keys from files."""


def public_of_service(settings: Settings) -> PublicKey:
    """Return the public key that belongs to TOPICPROOF_SIGNING_URI. Raises UsageError."""
    if settings.signing_public_key is None:
        raise UsageError(
            "TOPICPROOF_SIGNING_URI needs the public key of that key, in a PEM file:"
            " TOPICPROOF_SIGNING_PUBLIC_KEY."
        )
    return read_public(settings.signing_public_key)


def key_of_service(settings: Settings) -> SigningKey:
    """Return the key that TOPICPROOF_SIGNING_URI names. Raises UsageError if it is incomplete, or
    if what it needs is not installed."""
    uri = settings.signing_uri or ""
    scheme = uri.partition(":")[0]
    if scheme not in EXTRAS:
        raise UsageError(
            f"TOPICPROOF_SIGNING_URI must begin with {', '.join(EXTRAS[:-1])} or {EXTRAS[-1]}, and"
            " a colon."
        )
    public = public_of_service(settings)

    def sign(text: bytes) -> bytes:
        try:
            signature = bytes.fromhex(_signer(settings, uri).sign(text).signature)
        except (UsageError, EvidenceError):
            raise
        # The libraries of devices and services have no exception in common.
        except Exception as error:
            why = f"{type(error).__name__}: {error}".rstrip(": .")
            raise EvidenceError(f"The key {uri} did not sign ({why}).") from error
        if not verifies(public, signature, text):
            raise UsageError(
                f"The key {uri} is not the one in {settings.signing_public_key}: its signature"
                " does not verify."
            )
        return signature

    return SigningKey(public, sign)


def _signer(settings: Settings, uri: str) -> Signer:
    scheme = uri.partition(":")[0]
    extra = "vault" if scheme == "hv" else scheme
    try:
        from securesystemslib.exceptions import UnsupportedLibraryError
        from securesystemslib.signer import Signer, SSlibKey
    except ImportError as error:
        raise _not_installed(uri, extra) from error
    try:
        public = SSlibKey.from_crypto(public_of_service(settings))
        return Signer.from_priv_key_uri(uri, public, lambda _what: _pin(settings))
    except UnsupportedLibraryError as error:
        raise _not_installed(uri, extra) from error


def _not_installed(uri: str, extra: str) -> UsageError:
    return UsageError(f"The key {uri} needs: pip install 'securesystemslib[{extra}]'.")


def _pin(settings: Settings) -> str:
    if settings.signing_pin_file is None:
        raise UsageError(
            "The device asks for its PIN. Name a file with it: TOPICPROOF_SIGNING_PIN_FILE."
        )
    return read_secret(settings.signing_pin_file)

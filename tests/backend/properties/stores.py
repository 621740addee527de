"""Certificates and keys in each form that people have, made by Java's own keytool where it is
Java's form."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)

from topicproof.backend.services.processes import java

STORE_PASSWORD, KEY_PASSWORD = "store-hidden", "key-hidden"


@dataclass(frozen=True)
class Issued:
    key: str
    """PKCS#8, not encrypted: the one form of a key that Java reads from PEM without a password
    (KIP-651)."""
    chain: str
    """The certificate, then the intermediate authority's."""


@dataclass
class Authority:
    """A certificate authority with an intermediate one, as companies have them."""

    root: trustme.CA = field(default_factory=trustme.CA)

    def __post_init__(self) -> None:
        self.middle = self.root.create_child_ca()

    @property
    def pem(self) -> str:
        return self.root.cert_pem.bytes().decode()

    def issue(self, name: str, common_name: str | None = None, expired: bool = False) -> Issued:
        ended = datetime.now(UTC) - timedelta(days=1) if expired else None
        leaf = self.middle.issue_cert(name, common_name=common_name, not_after=ended)
        key = load_pem_private_key(leaf.private_key_pem.bytes(), None)
        own_key = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return Issued(own_key.decode(), b"".join(c.bytes() for c in leaf.cert_chain_pems).decode())


def keytool(*arguments: str) -> None:
    command = str(Path(java()).resolve().with_name("keytool"))
    subprocess.run([command, *arguments], check=True, capture_output=True, text=True)


def write_stores(folder: Path, authority: Authority, me: Issued) -> None:
    """Write every form of the authority and of the client's identity.

    ca.pem, ca.jks, ca.p12; me.pem with me.key, me.pkcs1.key, me.encrypted.key; both.pem, me.p12,
    me.jks. Stores open with STORE_PASSWORD, keys with KEY_PASSWORD.
    """
    (folder / "ca.pem").write_text(authority.pem)
    (folder / "authorities").mkdir()
    (folder / "authorities" / "ours.crt").write_text(authority.pem)
    for kind, name in (("JKS", "ca.jks"), ("PKCS12", "ca.p12")):
        keytool(
            *("-importcert", "-noprompt", "-alias", "ours", "-file", str(folder / "ca.pem")),
            *("-storetype", kind, "-keystore", str(folder / name), "-storepass", STORE_PASSWORD),
        )
    key = load_pem_private_key(me.key.encode(), None)
    assert isinstance(key, EllipticCurvePrivateKey | RSAPrivateKey)
    own, *others = x509.load_pem_x509_certificates(me.chain.encode())
    sealed = BestAvailableEncryption(KEY_PASSWORD.encode())
    encrypted = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, sealed).decode()
    (folder / "me.pem").write_text(me.chain)
    (folder / "me.key").write_text(me.key)
    (folder / "me.encrypted.key").write_text(encrypted)
    (folder / "both.pem").write_text(encrypted + me.chain)
    (folder / "me.pkcs1.key").write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    )
    store = pkcs12.serialize_key_and_certificates(
        b"me", key, own, others, BestAvailableEncryption(STORE_PASSWORD.encode())
    )
    (folder / "me.p12").write_bytes(store)
    keytool(
        *("-importkeystore", "-noprompt", "-srckeystore", str(folder / "me.p12")),
        *("-srcstoretype", "PKCS12", "-srcstorepass", STORE_PASSWORD),
        *("-destkeystore", str(folder / "me.jks"), "-deststoretype", "JKS"),
        *("-deststorepass", STORE_PASSWORD, "-srcalias", "me", "-destkeypass", KEY_PASSWORD),
    )

"""Certificates and keys, from the stores of Java and from PEM, as PEM text.

A store is recognised by its content, as Java does since version 9: a file called .jks often is
PKCS#12. The package `cryptography` is imported only for PKCS#12, JKS and the keys that Java cannot
read from PEM, so the sink's workers do without it.
"""

from __future__ import annotations

import base64
import re
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from topicproof.backend.errors import UsageError
from topicproof.backend.properties import jks
from topicproof.backend.properties.properties_file import read_bytes

_BODY = r"(?>(?:(?!-----).)*)"
"""Up to the next dashes, so that a beginning without an end is not looked for to the end of all. An
atomic group: a group with `*+` matches nothing in Python 3.11.2, which Debian 12 has."""
_CERTIFICATE = re.compile(
    rf"-----BEGIN (TRUSTED |X509 |)CERTIFICATE-----{_BODY}-----END \1CERTIFICATE-----", re.DOTALL
)
_KEY = re.compile(
    rf"-----BEGIN ([A-Z0-9 ]*)PRIVATE KEY-----{_BODY}-----END \1PRIVATE KEY-----", re.DOTALL
)
_DER_SEQUENCE, _JCEKS = b"\x30", b"\xce\xce\xce\xce"


@dataclass(frozen=True)
class Identity:
    """A certificate with its chain, and its private key."""

    chain: str
    key: str = field(repr=False)
    key_password: str | None = field(default=None, repr=False)
    """None if the key is not encrypted."""
    place: str = field(default="Client property ssl.key.password", compare=False)
    """Where its password is given, or the key."""


def authorities(path: str, password: str | None, place: str) -> str:
    """Return the certificates of a trust store, or of a PEM file or folder of them, as PEM."""
    if Path(path).expanduser().is_dir():
        files = sorted(file for file in Path(path).expanduser().iterdir() if file.is_file())
        data = b"\n".join(read_bytes(file, place) for file in files)
        return pem_certificates(data.decode("utf-8", "replace"), place, path)
    data = read_bytes(Path(path), place)
    if data.startswith(jks.MAGIC):
        ders = jks.read(data, password, None, place).certificates
        return _joined([_pem("CERTIFICATE", der) for der in ders], place, path)
    if data.startswith((_JCEKS, _DER_SEQUENCE)):
        _key, certificate, others = _pkcs12(data, password, place)
        certificates = [link for link in (certificate, *others) if link is not None]
        return _joined([_cert_pem(link) for link in certificates], place, path)
    return pem_certificates(data.decode("utf-8", "replace"), place, path)


def pem_certificates(text: str, place: str, path: str = "it") -> str:
    return _joined([match.group() for match in _CERTIFICATE.finditer(text)], place, path)


def identity(path: str, password: str | None, key_password: str | None, place: str) -> Identity:
    """Return the key of a key store, or of a PEM file with both, and its certificates."""
    data = read_bytes(Path(path), place)
    if data.startswith(jks.MAGIC):
        store = jks.read(data, password, key_password or password, place)
        if store.key is None:
            raise UsageError(f"{place}: {path} holds no private key.")
        chain = [_pem("CERTIFICATE", der) for der in store.chain]
        return Identity(_joined(chain, place, path), _pem("PRIVATE KEY", store.key))
    if data.startswith((_JCEKS, _DER_SEQUENCE)):
        key, certificate, others = _pkcs12(data, password, place)
        if key is None or certificate is None:
            raise UsageError(f"{place}: {path} holds no private key.")
        chain = [_cert_pem(link) for link in (certificate, *others)]
        return Identity(_joined(chain, place, path), _plain_pem(key))
    text = data.decode("utf-8", "replace")
    chain_pem, key_pem = pem_certificates(text, place, path), pem_key(text, place, path)
    return Identity(chain_pem, key_pem, key_password, place)


def pem_key(text: str, place: str, path: str = "it") -> str:
    match = _KEY.search(text)
    if match is None:
        raise UsageError(f"{place}: {path} holds no private key in PEM.")
    return match.group() + "\n"


def plain_key(pem: str, password: str | None, place: str) -> str:
    """Return the key as PKCS#8 without encryption, the one form that every client reads inline
    (Java reads no other form without a password, KIP-651).

    Raises UsageError if the password is missing or wrong.
    """
    if pem.startswith("-----BEGIN PRIVATE KEY-----"):
        return pem
    serialization = _cryptography("serialization", place)
    try:
        key = serialization.load_pem_private_key(
            pem.encode(), password.encode() if password and _is_encrypted(pem) else None
        )
    except TypeError as error:
        raise UsageError(f"{place}: the key is encrypted. Set ssl.key.password.") from error
    except ValueError as error:
        why = "it is the wrong password" if _is_encrypted(pem) else "the key is damaged"
        raise UsageError(f"{place}: {why}.") from error
    return _plain_pem(key)


def _is_encrypted(pem: str) -> bool:
    return "ENCRYPTED" in pem


def _pkcs12(data: bytes, password: str | None, place: str) -> tuple[Any, Any, list[Any]]:
    if data.startswith(_JCEKS):
        raise UsageError(f"{place}: stores of type JCEKS are not supported. Convert it to PKCS12.")
    pkcs12 = _cryptography("serialization.pkcs12", place)
    try:
        store = pkcs12.load_pkcs12(data, password.encode() if password else None)
    except ValueError as error:
        why = "wrong, or it is not a store" if password else "missing"
        raise UsageError(f"{place}: the store cannot be opened: its password is {why}.") from error
    certificate = store.cert.certificate if store.cert else None
    return store.key, certificate, [extra.certificate for extra in store.additional_certs]


def _cryptography(module: str, place: str) -> ModuleType:
    """Import lazily: only stores and encrypted keys need it."""
    from importlib import import_module

    try:
        return import_module(f"cryptography.hazmat.primitives.{module}")
    except ImportError as error:
        raise UsageError(
            f"{place}: reading this needs the package cryptography (pip install cryptography)."
        ) from error


def _plain_pem(key: Any) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    text: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return text.decode()


def _cert_pem(certificate: Any) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding

    text: bytes = certificate.public_bytes(Encoding.PEM)
    return text.decode()


def _pem(kind: str, der: bytes) -> str:
    body = "\n".join(textwrap.wrap(base64.b64encode(der).decode(), 64))
    return f"-----BEGIN {kind}-----\n{body}\n-----END {kind}-----\n"


def _joined(certificates: list[str], place: str, path: str) -> str:
    if not certificates:
        raise UsageError(f"{place}: {path} holds no certificate.")
    return "".join(pem.strip() + "\n" for pem in certificates)

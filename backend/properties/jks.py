"""Java's own key store, JKS: its certificates, and its private key.

The format has not changed since 1998 (sun.security.provider.JavaKeyStore and KeyProtector): a
header, entries, and a digest that the store's password seeds. Keys are XORed with a stream of SHA-1
digests. The readers on PyPI have had no release for years and need a compiler, so this one is ours.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field

from topicproof.backend.errors import UsageError

MAGIC = b"\xfe\xed\xfe\xed"
_SALT = b"Mighty Aphrodite"
_KEY, _CERTIFICATE = 1, 2
_DIGEST_BYTES = 20
_SUN_KEY_PROTECTOR = bytes.fromhex("2b060104012a02110101")
"""The object identifier 1.3.6.1.4.1.42.2.17.1.1, DER."""


@dataclass(frozen=True)
class JavaKeyStore:
    certificates: tuple[bytes, ...]
    """The trusted certificates, DER."""
    chain: tuple[bytes, ...] = ()
    """The certificates of the first private key, DER, its own first."""
    key: bytes | None = field(default=None, repr=False)
    """The first private key, PKCS#8 DER."""


class _Cursor:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        piece = self.data[self.at : self.at + count]
        if len(piece) != count:
            raise EOFError
        self.at += count
        return piece

    def number(self, count: int = 4) -> int:
        return int.from_bytes(self.take(count), "big")

    def text(self) -> bytes:
        return self.take(self.number(2))

    def certificate(self, version: int) -> bytes:
        if version == 2:
            self.text()  # Its type, X.509.
        return self.take(self.number())


def read(data: bytes, password: str | None, key_password: str | None, place: str) -> JavaKeyStore:
    """Read a store. Without a password its digest is not checked, as in Java. Without a key
    password no private key is read.

    Raises UsageError for a wrong password or a damaged file.
    """
    try:
        cursor = _Cursor(data[:-_DIGEST_BYTES])
        cursor.take(len(MAGIC))
        version, entries = cursor.number(), cursor.number()
        certificates: list[bytes] = []
        first_key: tuple[bytes, tuple[bytes, ...]] | None = None
        for _ in range(entries):
            tag = cursor.number()
            cursor.text()  # The alias.
            cursor.take(8)  # The time of creation.
            if tag == _KEY:
                protected = cursor.take(cursor.number())
                chain = tuple(cursor.certificate(version) for _ in range(cursor.number()))
                first_key = first_key or (protected, chain)
            elif tag == _CERTIFICATE:
                certificates.append(cursor.certificate(version))
            else:
                raise EOFError
    except EOFError as error:
        raise UsageError(f"{place}: the key store is damaged.") from error
    if password is not None:
        digest = hashlib.sha1(_utf16(password) + _SALT + data[:-_DIGEST_BYTES]).digest()
        if not hmac.compare_digest(digest, data[-_DIGEST_BYTES:]):
            raise UsageError(f"{place}: the store cannot be opened: its password is wrong.")
    if first_key is None or key_password is None:
        return JavaKeyStore(tuple(certificates), first_key[1] if first_key else ())
    return JavaKeyStore(
        tuple(certificates), first_key[1], _unprotected(first_key[0], key_password, place)
    )


def _utf16(password: str) -> bytes:
    return password.encode("utf-16-be")


def _unprotected(protected: bytes, password: str, place: str) -> bytes:
    """Return the PKCS#8 bytes inside the EncryptedPrivateKeyInfo (RFC 5208, section 6)."""
    at = protected.find(_SUN_KEY_PROTECTOR)
    # The octets end the structure: salt, encrypted key, digest.
    octets = _octets(protected, at + len(_SUN_KEY_PROTECTOR)) if at >= 0 else b""
    salt, check = octets[:_DIGEST_BYTES], octets[-_DIGEST_BYTES:]
    hidden = octets[_DIGEST_BYTES:-_DIGEST_BYTES]
    stream, block = b"", salt
    while len(stream) < len(hidden):
        block = hashlib.sha1(_utf16(password) + block).digest()
        stream += block
    plain = bytes(byte ^ mask for byte, mask in zip(hidden, stream, strict=False))
    if not hmac.compare_digest(hashlib.sha1(_utf16(password) + plain).digest(), check):
        raise UsageError(
            f"{place}: the password of the key in the store (ssl.key.password) is wrong."
        )
    return plain


def _octets(der: bytes, at: int) -> bytes:
    """Return the OCTET STRING that follows the algorithm's parameters (NULL, or none)."""
    if der[at : at + 2] == b"\x05\x00":
        at += 2
    length = der[at + 1]
    at += 2
    if length & 0x80:
        count = length & 0x7F
        length = int.from_bytes(der[at : at + count], "big")
        at += count
    return der[at : at + length]

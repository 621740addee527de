"""Whose signatures count: the installation's own key and imported ones, less those revoked.

Files in the home's folder `trust`: `trusted/NAME.pem` has a public key, and its name is whom
Topicproof says vouches. `revoked.json` has revoked keys with the time and the reason.
TOPICPROOF_TRUSTED_KEYS names a further folder, for example one that a team shares: NAME.pem files,
and a `revoked.json`. Topicproof only reads that one.
"""

from __future__ import annotations

import json
import os
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from topicproof.backend.errors import EvidenceError, UsageError
from topicproof.backend.settings import Settings
from topicproof.backend.trust.key_service import key_of_service, public_of_service
from topicproof.backend.trust.keys import (
    PublicKey,
    SigningKey,
    from_private,
    key_id,
    key_path,
    make_key,
    parse_public,
    public_pem,
    read_private,
    read_public,
    trust_folder,
)

TRUSTED, REVOKED = "trusted", "revoked.json"
OWN, OWN_BEFORE = "this installation", "an earlier key of this installation"
_NAME = re.compile(r"[\w.@+ -]{1,80}")


@dataclass(frozen=True)
class Revocation:
    at: str
    """UTC, as `2026-01-01 10:00:00 UTC`."""
    reason: str


@dataclass(frozen=True)
class KnownKey:
    """A key that this installation knows."""

    id: str
    name: str
    """Who holds it, in the words of this installation."""
    public: PublicKey
    revoked: Revocation | None = None


Keyring = Mapping[str, KnownKey]
"""By id. A revoked key is in it too, so that its signatures are recognized."""


def read_keyring(settings: Settings) -> Keyring:
    """Read all known keys. Raises UsageError or EvidenceError for a damaged file: a revocation must
    never be overlooked."""
    shared = settings.trusted_keys
    if shared is not None and not shared.is_dir():
        raise UsageError(f"The folder of trusted keys {shared} does not exist.")
    keys = [
        KnownKey(key_id(public), _usable_name(path.stem), public)
        for folder in keyring_folders(settings)
        for path in sorted(folder.glob("*.pem"))
        for public in [read_public(path)]
    ]
    home_key = own_key(settings)
    if home_key is not None:
        keys.append(home_key)
    revoked = [
        key
        for folder in (shared, trust_folder(settings))
        if folder is not None
        for key in _read_revoked(folder / REVOKED)
    ]
    return {key.id: key for key in (*keys, *revoked)}


def keyring_folders(settings: Settings) -> tuple[Path, ...]:
    """Return the folders whose public keys are trusted: the shared one, and the home's."""
    shared = () if settings.trusted_keys is None else (settings.trusted_keys,)
    return (*shared, trust_folder(settings) / TRUSTED)


def own_key(settings: Settings) -> KnownKey | None:
    """Return the installation's own key; None before its first use. Raises UsageError."""
    public = own_public(settings)
    return None if public is None else KnownKey(key_id(public), OWN, public)


def import_key(settings: Settings, path: Path, name: str) -> KnownKey:
    """Trust a public key from now on. Raises UsageError for a file that has none, a name that is
    taken, and a revoked key."""
    public = read_public(path)
    _usable_name(name)
    key = KnownKey(key_id(public), name, public)
    before = read_keyring(settings).get(key.id)
    if before is not None and before.revoked is not None:
        raise UsageError(f"The key {key.id[:16]} was revoked on {before.revoked.at}.")
    if before is not None:
        raise UsageError(f"The key {key.id[:16]} is trusted already, as that of {before.name}.")
    target = trust_folder(settings) / TRUSTED / f"{name}.pem"
    if target.exists():
        raise UsageError(f"{name} has a key already. Choose another name, or revoke that key.")
    _write(target, public_pem(public))
    return key


def _usable_name(name: str) -> str:
    """Return the name of somebody's key. Raises UsageError for one with other characters, and for
    one that says it is ours: `verify` tells by this name who vouches."""
    if not _NAME.fullmatch(name) or name.startswith("."):
        raise UsageError(f"The name {name!r} has other characters than letters, digits and . @ + -")
    if " ".join(unicodedata.normalize("NFKC", name).casefold().split()) in (OWN, OWN_BEFORE):
        raise UsageError(f"A trusted key is named {name!r}, as only our own is. Rename it.")
    return name


def revoke(settings: Settings, which: str, reason: str) -> KnownKey:
    """Distrust a key for good: by its name, or by the beginning of its id.

    All its signatures lose their worth, older ones too, because whoever has the key can sign with
    any date. If it is the key made in the home, it is deleted, and the next signature makes another
    one. Raises UsageError for a key that is not known or not one alone, EvidenceError.
    """
    matching = [key for key in read_keyring(settings).values() if _is(key, which)]
    if len(matching) != 1:
        number = "several keys" if matching else "no key"
        raise UsageError(f"{which} names {number}. `topicproof keys show` lists them.")
    if matching[0].revoked is not None:
        raise UsageError(f"The key of {which} was revoked on {matching[0].revoked.at}.")
    if not reason.strip():
        raise UsageError("A revocation needs its reason: --reason TEXT.")
    home_key = own_key(settings)
    path = trust_folder(settings) / REVOKED
    now = Revocation(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC", reason.strip())
    mine = home_key is not None and home_key.id == matching[0].id
    revoked = KnownKey(
        matching[0].id, OWN_BEFORE if mine else matching[0].name, matching[0].public, now
    )
    entries = {
        key.id: {
            "name": key.name,
            "pem": public_pem(key.public),
            "at": key.revoked.at,
            "reason": key.revoked.reason,
        }
        for key in (*_read_revoked(path), revoked)
        if key.revoked is not None
    }
    _write(path, json.dumps(entries, indent=1, ensure_ascii=False) + "\n")
    # A key of the shared folder may have the name of another one here.
    file = trust_folder(settings) / TRUSTED / f"{revoked.name}.pem"
    if file.exists() and key_id(read_public(file)) == revoked.id:
        file.unlink()
    if mine and settings.signing_key is None and settings.signing_uri is None:
        key_path(settings).unlink()
    return revoked


def _is(key: KnownKey, which: str) -> bool:
    return key.name == which or (len(which) >= 8 and key.id.startswith(which.lower()))


def _read_revoked(path: Path) -> list[KnownKey]:
    if not path.exists():
        return []
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        return [
            KnownKey(
                key_id(public), entry["name"], public, Revocation(entry["at"], entry["reason"])
            )
            for entry in entries.values()
            for public in [parse_public(entry["pem"].encode(), str(path))]
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise EvidenceError(
            f"The list of revoked keys {path} cannot be read. Restore it: without it, no signature"
            " counts."
        ) from error


def _write(path: Path, text: str) -> None:
    fresh = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)
    except OSError as error:
        raise EvidenceError(f"{path} cannot be written: {error.strerror}.") from error


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

"""Keys: made once, readable by nobody else, trusted and revoked."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)

from topicproof.backend.errors import EvidenceError, UsageError
from topicproof.backend.evidence.attestation import usable_key
from topicproof.backend.settings import Settings
from topicproof.backend.trust.keyring import (
    OWN,
    import_key,
    own_key,
    read_keyring,
    revoke,
    signing_key,
)
from topicproof.backend.trust.keys import Private, key_id, key_path, public_pem, read_private


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home")


@pytest.fixture
def grace(tmp_path: Path) -> Path:
    """The public key of somebody else."""
    path = tmp_path / "grace.pem"
    path.write_text(public_pem(Ed25519PrivateKey.generate().public_key()))
    return path


def written(
    path: Path,
    key: Private,
    encryption: KeySerializationEncryption | None = None,
    mode: int = 0o600,
) -> Path:
    form = PrivateFormat.PKCS8
    path.write_bytes(key.private_bytes(Encoding.PEM, form, encryption or NoEncryption()))
    path.chmod(mode)
    return path


def test_the_key_is_made_once_and_for_its_owner_alone(settings: Settings) -> None:
    """Story: sixteen processes sign for the first time at once. All sign with one key, which nobody
    else can read, and nothing else is left in the folder."""
    assert own_key(settings) is None, "looking makes no key"
    with ThreadPoolExecutor(16) as pool:
        made = {key.id for key in pool.map(signing_key, [settings] * 16)}
    assert len(made) == 1
    path = key_path(settings)
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
    assert [one.name for one in path.parent.iterdir()] == ["key.pem"]


def test_an_own_key_is_used_instead(tmp_path: Path) -> None:
    own = Ed25519PrivateKey.generate()
    settings = Settings(home=tmp_path, signing_key=written(tmp_path / "own.pem", own))
    assert key_id(signing_key(settings).public) == key_id(own.public_key())
    assert not (tmp_path / "trust").exists()


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda path: written(path, Ed25519PrivateKey.generate(), mode=0o640), "Other users"),
        (
            lambda path: written(path, ec.generate_private_key(ec.SECP521R1())),
            "neither Ed25519 nor ECDSA",
        ),
        (
            lambda path: written(path, Ed25519PrivateKey.generate(), BestAvailableEncryption(b"x")),
            "is encrypted",
        ),
        (lambda path: (path.write_text("no key"), path.chmod(0o600)), "not a private key"),
        (lambda path: (path.write_bytes(b"-" * 20_000), path.chmod(0o600)), "larger than any"),
        (lambda _: None, "No such file"),
    ],
    ids=["readable", "other type", "encrypted", "none", "large", "missing"],
)
def test_an_unusable_key_is_refused_with_its_reason(made: object, why: str, tmp_path: Path) -> None:
    made(tmp_path / "own.pem")  # type: ignore[operator]
    with pytest.raises(UsageError, match=why):
        read_private(tmp_path / "own.pem")


def test_a_key_is_trusted_until_it_is_revoked(settings: Settings, grace: Path) -> None:
    """Story: Grace's key is imported and later revoked. From then on it is known as revoked, and
    cannot come back."""
    made = import_key(settings, grace, "Grace Hopper")
    assert read_keyring(settings)[made.id].name == "Grace Hopper"
    with pytest.raises(UsageError, match="trusted already"):
        import_key(settings, grace, "Admiral Hopper")
    with pytest.raises(UsageError, match="needs its reason"):
        revoke(settings, "Grace Hopper", " ")
    revoke(settings, made.id[:12], "laptop stolen")
    gone = read_keyring(settings)[made.id].revoked
    assert gone is not None and gone.reason == "laptop stolen"
    with pytest.raises(UsageError, match="was revoked on"):
        import_key(settings, grace, "x")
    with pytest.raises(UsageError, match="was revoked on"):
        revoke(settings, made.id, "x")
    with pytest.raises(UsageError, match="names no key"):
        revoke(settings, "Ada", "x")


@pytest.mark.parametrize("name", ["../key", "a/b", ".hidden", "", "x" * 81, "\n"])
def test_a_name_stays_in_the_folder(name: str, settings: Settings, grace: Path) -> None:
    with pytest.raises(UsageError, match="other characters"):
        import_key(settings, grace, name)


@pytest.mark.parametrize("name", [OWN, "This  Installation", "\uff54his installation", "Grace\n"])
def test_no_other_key_calls_itself_ours(name: str, settings: Settings, grace: Path) -> None:
    """Story: somebody who may write the team's folder names a key as `verify` names our own."""
    with pytest.raises(UsageError, match=r"as only our own is|other characters"):
        import_key(settings, grace, name)
    shared = settings.home / "shared"
    shared.mkdir(parents=True)
    (shared / f"{name}.pem").write_bytes(grace.read_bytes())
    with pytest.raises(UsageError, match=r"as only our own is|other characters"):
        read_keyring(Settings(home=settings.home, trusted_keys=shared))


def test_after_a_revocation_another_key_signs(settings: Settings) -> None:
    """Story: the home was copied by a stranger. The key made in the home is replaced; one of your
    own must be replaced by you."""
    before = key_id(signing_key(settings).public)
    revoke(settings, OWN, "home copied")
    after = key_id(usable_key(settings).public)
    known = read_keyring(settings)
    assert after != before and known[before].revoked and known[after].revoked is None
    own = written(settings.home / "own.pem", Ed25519PrivateKey.generate())
    other = Settings(home=settings.home, signing_key=own)
    revoke(other, OWN, "lost")
    with pytest.raises(UsageError, match="TOPICPROOF_SIGNING_KEY"):
        usable_key(other)


def test_a_team_shares_keys_and_revocations(
    settings: Settings, grace: Path, tmp_path: Path
) -> None:
    """Story: one folder for everybody. A key that is revoked there is revoked here, and a folder
    that is not there is an error, not an empty one."""
    other = Settings(home=tmp_path / "other")
    made = import_key(other, grace, "grace")
    shared = tmp_path / "other" / "trust"
    team = Settings(home=settings.home, trusted_keys=shared / "trusted")
    assert read_keyring(team)[made.id].name == "grace"
    revoke(other, "grace", "left the company")
    (shared / "revoked.json").rename(shared / "trusted" / "revoked.json")
    assert read_keyring(team)[made.id].revoked is not None
    with pytest.raises(UsageError, match="does not exist"):
        read_keyring(Settings(home=settings.home, trusted_keys=tmp_path / "none"))


def test_a_damaged_list_of_revoked_keys_trusts_nobody(settings: Settings, grace: Path) -> None:
    import_key(settings, grace, "grace")
    for text in ("", "[]", '{"x": {}}', "[" * 100_000):
        (settings.home / "trust" / "revoked.json").write_text(text)
        with pytest.raises(EvidenceError, match="no signature counts"):
            read_keyring(settings)

"""Where the home is, and who may look into it."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.backend.evidence.test_attestation import made
from tests.test_cli import call
from topicproof.backend.errors import SetupError, UsageError
from topicproof.backend.evidence.attestation import attest
from topicproof.backend.interpreter import python_path
from topicproof.backend.settings import Settings, close_to_others, read_settings
from topicproof.backend.storage import Storage, publish
from topicproof.backend.trust.keyring import read_keyring, signing_key
from topicproof.backend.trust.keys import public_pem


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without settings, who works in a folder that somebody else has packed."""
    for name in [name for name in os.environ if name.startswith(("TOPICPROOF_", "XDG_"))]:
        monkeypatch.delenv(name)
    received = tmp_path / "received"
    received.mkdir()
    monkeypatch.chdir(received)
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    return tmp_path / "user"


def test_the_home_is_the_users_and_not_the_working_folders(
    user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: an archive brings a home with a trusted key. Whoever works in its folder does not
    trust that key."""
    trusted = Path(".topicproof/trust/trusted")
    trusted.mkdir(parents=True)
    pem = public_pem(Ed25519PrivateKey.generate().public_key())
    (trusted / "Grace Hopper.pem").write_text(pem)
    Path("topicproof").symlink_to(".topicproof")
    assert read_settings().home == user / ".local" / "share" / "topicproof"
    assert read_keyring(read_settings()) == {}
    for relative in ("", ".", "data", "../received"):
        monkeypatch.setenv("XDG_DATA_HOME", relative)
        assert read_settings().home == user / ".local" / "share" / "topicproof"
    monkeypatch.setenv("XDG_DATA_HOME", str(user / "data"))
    assert read_settings().home == user / "data" / "topicproof"
    monkeypatch.setenv("TOPICPROOF_HOME", ".topicproof")
    assert read_settings().home == Path.cwd() / ".topicproof"
    assert len(read_keyring(read_settings())) == 1


def test_a_path_that_does_not_exist_is_one_sentence(
    user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not user.exists()
    monkeypatch.setenv("TOPICPROOF_HOME", "~no-such-user/home")
    with pytest.raises(UsageError, match="TOPICPROOF_HOME is wrong: ~no-such-user/home is not"):
        read_settings()


def test_an_open_home_is_closed_at_its_next_use(user: Path) -> None:
    """Story: an earlier version made the home, and everybody on the machine could read payloads."""
    home = user / ".local" / "share" / "topicproof"
    home.mkdir(parents=True)
    home.chmod(0o777)
    read_settings(make_home=False)
    assert stat.S_IMODE(home.stat().st_mode) == 0o777
    read_settings()
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert stat.S_IMODE(read_settings(home=user / "a" / "b").home.stat().st_mode) == 0o700


def test_a_folder_that_others_need_is_no_home(user: Path) -> None:
    user.mkdir()
    shared = user / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    for home in (user, shared, Path("/")):
        before = home.stat().st_mode
        with pytest.raises(SetupError, match="folder of its own"):
            close_to_others(home)
        assert home.stat().st_mode == before


def test_a_command_closes_all_that_it_writes(user: Path) -> None:
    """Story: payloads of a cluster with a password are in the home. Nobody else can read them, even
    if somebody opens the home itself."""
    code = (
        "import sys; from topicproof.__main__ import main;"
        " sys.argv = ['topicproof', 'runs']; main()"
    )
    environment = {**os.environ, "PYTHONPATH": python_path()}
    subprocess.run(
        ["/bin/sh", "-c", 'umask 000; exec "$@"', "sh", sys.executable, "-P", "-c", code],
        env=environment,
        check=True,
        capture_output=True,
    )
    files = [path for path in user.rglob("*") if path.name != "user"]
    assert any(path.name == "history.db" for path in files)
    home = user / ".local" / "share" / "topicproof"
    modes = {path: path.stat().st_mode & 0o077 for path in (home, *home.rglob("*"))}
    assert set(modes.values()) == {0}, modes


def test_a_storage_is_as_open_as_its_folder(user: Path) -> None:
    """Story: Spark is another user of a shared disk. It reads what is published for it, although
    this process closes its files."""
    shared, home = user / "shared", user / "home"
    shared.mkdir(parents=True)
    shared.chmod(0o770)
    (home / "runs" / "a").mkdir(parents=True)
    (home / "runs" / "a" / "plan.yaml").write_text("{}")
    before = os.umask(0o077)
    try:
        publish(Storage(shared.as_uri(), home), home / "runs")
    finally:
        os.umask(before)
    assert stat.S_IMODE((shared / "runs" / "a").stat().st_mode) == 0o770
    assert stat.S_IMODE((shared / "runs" / "a" / "plan.yaml").stat().st_mode) == 0o660


def test_verify_trusts_no_key_that_an_archive_brings(
    user: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Story: a forger signs a folder and packs a home that trusts the forger. `verify` refuses the
    folder, and names where it has looked for keys."""
    forger = Settings(home=user / "forger")
    attest(forger, made(Path("proof")))
    trusted = Path(".topicproof/trust/trusted")
    trusted.mkdir(parents=True)
    (trusted / "Grace Hopper.pem").write_text(public_pem(signing_key(forger).public))
    arguments = ("verify", "proof", "--require-signature", "--hashes-only")
    assert call(*arguments) == 4
    assert "Nobody who is trusted here vouches for it" in _words(capsys)
    team = user / "team"
    team.mkdir()
    monkeypatch.setenv("TOPICPROOF_TRUSTED_KEYS", str(team))
    own = user / ".local" / "share" / "topicproof" / "trust" / "trusted"
    assert call(*arguments) == 4
    assert f"Trusted keys are those in {team} and {own}." in _words(capsys)
    assert call(*arguments, "--json") == 4
    assert json.loads(capsys.readouterr().out)["keyrings"] == [str(team), str(own)]
    monkeypatch.setenv("TOPICPROOF_HOME", ".topicproof")
    assert call(*arguments) == 0
    assert "Grace Hopper" in _words(capsys)


def _words(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())

"""A history in SQLite whose folder others can write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from topicproof.backend.errors import SetupError
from topicproof.backend.history.store import History
from topicproof.backend.settings import Settings, read_settings

PLAIN = "sqlite:///{}"


def _open_history(path: Path, monkeypatch: pytest.MonkeyPatch, address: str = PLAIN) -> None:
    monkeypatch.setenv("TOPICPROOF_DATABASE", address.format(path))
    history = History(read_settings(home=path.parents[1] / "home"))
    history.create("run", "squares", {})
    history.engine.dispose()


@pytest.mark.parametrize("suffix", ["", "-journal", "-wal"])
@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_link_in_a_shared_folder_is_not_followed(
    link: object, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: the history lies in a team's folder. A colleague lays a link to a file of this user
    where the database, or what SQLite keeps beside it, will be. That file stays as it is. In a
    folder that only this user can write, the link is theirs, and is followed."""
    folder, wages = tmp_path / "team", tmp_path / "wages.db"
    folder.mkdir()
    wages.write_bytes(b"")
    assert callable(link)
    link(wages, folder / f"history.db{suffix}")
    folder.chmod(0o770)
    with pytest.raises(SetupError, match="is a link or no plain file"):
        _open_history(folder / "history.db", monkeypatch)
    assert wages.read_bytes() == b""
    if not suffix:
        folder.chmod(0o700)
        _open_history(folder / "history.db", monkeypatch)
        assert wages.read_bytes()


@pytest.mark.parametrize("address", [PLAIN, "sqlite:///file:{}?uri=true"])
@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_a_folder_that_everybody_can_write_holds_no_history(
    mode: int, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: somebody names a file in /tmp or in another folder that everybody can write, where a
    stranger may lay a journal of their own beside it."""
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(SetupError, match="every user can write its folder"):
        _open_history(folder / "history.db", monkeypatch, address)
    assert list(folder.iterdir()) == []
    folder.chmod(0o770)
    _open_history(folder / "history.db", monkeypatch)


def test_a_folder_that_everybody_can_exchange_holds_no_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: the folder of the history is closed, but lies in one where every user may rename it
    and make another. Where the sticky bit is set, as in /tmp, only its owner may."""
    above = tmp_path / "open"
    folder = above / "mine"
    folder.mkdir(parents=True, mode=0o700)
    above.chmod(0o777)
    with pytest.raises(SetupError, match="every user can exchange a folder above it"):
        _open_history(folder / "history.db", monkeypatch)
    assert list(folder.iterdir()) == []
    above.chmod(0o1777)
    _open_history(folder / "history.db", monkeypatch)


def test_a_link_is_not_followed_where_a_group_can_exchange_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: a colleague may write the folder above that of the history, and has put one of the
    same name there, with a link to a file of this user."""
    above, wages = tmp_path / "team", tmp_path / "wages.db"
    folder = above / "mine"
    folder.mkdir(parents=True, mode=0o700)
    wages.write_bytes(b"")
    (folder / "history.db").symlink_to(wages)
    above.chmod(0o770)
    with pytest.raises(SetupError, match="is a link or no plain file"):
        _open_history(folder / "history.db", monkeypatch)
    assert wages.read_bytes() == b""


def test_a_volume_of_a_container_may_be_open(tmp_path: Path) -> None:
    """Story: the home is a volume that its provisioner has made with mode 777. There are no other
    users."""
    home = tmp_path / "volume"
    home.mkdir()
    home.chmod(0o777)
    History(Settings(home=home)).engine.dispose()

"""Every setting with every kind of text that is none: one sentence, and no verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_cli import call
from topicproof.backend.errors import SparkError, TopicproofError
from topicproof.backend.exit_codes import UNJUDGED
from topicproof.backend.history.store import History
from topicproof.backend.services.spark_session import connect
from topicproof.backend.settings import Settings, read_settings

TEXTS = (
    *("x", "~nobody-of-this-name/x", "[", "]\\[/]", "sc://h:x", "sc://[", "http://[::1", "://"),
    *("postgresql://u:planted@host:port/x", "mysql://u:planted@h/x", "sqlite:///", "1e400", "-1"),
    *(
        "s3a://KEY:planted@bucket/x",
        "u:planted@h:9092",
        "https://u:planted@h",
        "sc://h;token=planted",
    ),
    *("a=b=c", "=", ",", ":", "127.0.0.1:1", "\x1b[31m", "\u202e", "{", "%", "%(here)s"),
    "x" * 5_000,
)
VARIABLES = {
    "SPARK_REMOTE" if name == "spark_remote" else f"TOPICPROOF_{name.upper()}": name
    for name in Settings.model_fields
    if name not in ("home", "jars", "client", "registry")
}
"""The variable of each setting, without those that tests need for themselves."""
ADDRESSES = (
    "SPARK_REMOTE",
    *(f"TOPICPROOF_{name}" for name in ("BOOTSTRAP", "DATABASE", "SCHEMA_REGISTRY", "SIGNING_URI")),
    "TOPICPROOF_STORAGE",
)
"""Those in which somebody may write a password."""


@pytest.mark.parametrize("variable", VARIABLES)
def test_a_malformed_setting_is_one_sentence(
    variable: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Story: a variable has a typing error, or somebody else's text. No command ends in a
    traceback, in the exit code of a verdict, or with a password in its message."""
    monkeypatch.setenv("TOPICPROOF_HOME", str(tmp_path / "home"))
    for text in TEXTS:
        monkeypatch.setenv(variable, text)
        code = call("runs")
        words = " ".join("".join(capsys.readouterr()).split())
        assert code in (0, UNJUDGED, 4, 64), (text, words)
        assert "fault of Topicproof" not in words and "Traceback" not in words, (text, words)
        assert variable not in ADDRESSES or "planted" not in words, (text, words)
        assert code == 0 or ": " in words


@pytest.mark.parametrize("home", ["~nobody-of-this-name/x", "/", "/dev/null/x", "/proc/x"])
def test_a_home_that_cannot_be_is_one_sentence(
    home: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOPICPROOF_HOME", home)
    assert call("runs") in (UNJUDGED, 64)
    assert "TOPICPROOF_HOME" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql+psycopg://u:secret@host:port/x", "a number as PORT"),
        ("mysql://u:secret@h/x", "of another database"),
        ("postgresql+psycopg2://u:secret@h/x", "psycopg2"),
        ("sqlite:////tmp/x?timeout=soon", "cannot be read"),
    ],
)
def test_an_address_that_no_history_can_have(url: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(TopicproofError, match=says) as caught:
        History(Settings(home=tmp_path, database=url))
    assert caught.value.exit_code == UNJUDGED
    assert "TOPICPROOF_DATABASE is wrong" in str(caught.value) and "secret" not in str(caught.value)


@pytest.mark.parametrize("remote", ["sc://h:x", "sc://[", "sc://", "http://h", "x", "sc://h:99999"])
def test_an_address_that_no_spark_can_have(
    remote: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TOPICPROOF_HOME", str(tmp_path))
    monkeypatch.setenv("SPARK_REMOTE", remote)
    with pytest.raises(SparkError, match="SPARK_REMOTE"):
        connect(str(read_settings().spark_remote))

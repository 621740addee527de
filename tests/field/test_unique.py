"""One topic alone: does it repeat itself? Everybody asks who has a database, not a topic, at the
other end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.field.test_drafts import produce
from tests.test_cli import call
from topicproof.backend.settings import Settings


@pytest.fixture
def run(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Runs a command; returns its exit code and output."""
    monkeypatch.setenv("TOPICPROOF_HOME", str(settings.home))
    monkeypatch.setenv("COLUMNS", "1000")

    def command(*arguments: str) -> tuple[int, str]:
        code = call(*arguments)
        output = capsys.readouterr()
        return code, output.out + output.err

    return command


@pytest.mark.parametrize(
    ("ids", "code", "says"),
    [
        (range(20), 0, "20 committed records and as many identities: none repeats"),
        ([*range(20), 3, 7, 3], 1, "3 of 23 committed records repeat"),
        ([], 3, "Nothing to look at"),
        ([*range(20), None], 3, "1 of 21 records holds no identity. Name what every record holds."),
    ],
)
def test_a_topic_that_repeats_itself_is_found_without_a_source(
    bootstrap: str,
    new_topic: Callable[..., str],
    run: Callable[..., tuple[int, str]],
    tmp_path: Path,
    ids: Sequence[int | None],
    code: int,
    says: str,
) -> None:
    """Story: rows of a table become records with an id. Each id is there once; three records repeat
    one; nothing is there; one record has no id. Where there is a verdict, the evidence gives the
    same one."""
    topic = new_topic(2)
    values = [
        '{"no": 1}' if one is None else f'{{"id": {one}, "at": {n}}}' for n, one in enumerate(ids)
    ]
    produce(bootstrap, topic, [(n % 2, "row", value) for n, value in enumerate(values)])
    path, evidence = tmp_path / "unique.yaml", str(tmp_path / "proof")
    path.write_text(f"sink: {{topic: {topic}}}\nunique: {{json: $.id}}\n")
    check = run("check", "--contract", str(path), "--out", evidence, "--bootstrap", bootstrap)
    assert check[0] == code and says in check[1], check[1]
    if code == 1:
        # Offset 10 of partition 0 is the 21st record. Its id is first at offset 1 of partition 1.
        assert topic in check[1] and '"3" is committed 3 times' in check[1], check[1]
    if code != 3:
        again = run("verify", evidence)
        assert again[0] == code and says in again[1], again[1]

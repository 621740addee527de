"""The address of a run, to which a login is sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from topicproof.backend.commands.run_commands import where_it_ran
from topicproof.backend.errors import UsageError
from topicproof.backend.history.run_state import Facts, RanOn
from topicproof.backend.history.store import History
from topicproof.backend.settings import read_settings

LOGIN = """security.protocol=SASL_SSL
sasl.mechanism=PLAIN
sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
username="ada" password="x";
"""


def test_no_login_goes_to_an_address_of_the_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: an administrator of a shared database puts their own server in place of a run's
    address, and waits until somebody resumes or cleans it with properties that have no address. An
    address of the person's own is used, and without a login the run's is."""
    monkeypatch.delenv("TOPICPROOF_BOOTSTRAP", raising=False)
    config = tmp_path / "client.properties"
    config.write_text(LOGIN, encoding="utf-8")
    config.chmod(0o600)
    settings = read_settings(home=tmp_path)
    history = History(settings)
    run_id = history.create("run", "squares", {}).id
    history.remember(run_id, Facts(cluster=RanOn(bootstrap="theirs.example:9092")))
    run = history.get(run_id)
    with pytest.raises(UsageError, match="a login is not sent to the one that the history has"):
        where_it_ran(read_settings(home=tmp_path, config=config), run)
    own = read_settings(home=tmp_path, config=config, bootstrap="ours.example:9092")
    assert where_it_ran(own, run).bootstrap == "ours.example:9092"
    assert where_it_ran(settings, run).bootstrap == "theirs.example:9092"
    history.engine.dispose()

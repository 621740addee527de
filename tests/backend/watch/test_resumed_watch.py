"""What the dashboard has listed is watched again once `topicproof up` starts again."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.backend.watch.test_contracts import Pipeline
from tests.backend.watch.test_watch import new_topic
from tests.conftest import wait_until
from tests.ports import free_ports
from topicproof.backend.history.store import History
from topicproof.backend.interpreter import python_environment
from topicproof.backend.services.keeper import Services, services
from topicproof.backend.settings import read_settings
from topicproof.backend.watch.cluster_look import cluster_id
from topicproof.backend.watch.standings import State, read_standings
from topicproof.backend.watch.state_file import FOLDER, is_watched, state_name
from topicproof.backend.watch.watch_list import ListedContract, list_contract, unlist_contract

TERMS = "source: {topic: inputs}\nsink: {topic: outputs}\nwithin: 1ms\n"
READY = "The dashboard is at"
OVER_S = 120.0


@contextmanager
def up(home: Path, spark_remote: str) -> Iterator[Callable[[], str]]:
    """`topicproof up` with an embedded Kafka. Yields what returns its output so far."""
    (port,) = free_ports(1)
    log = home / "up.log"
    command = [sys.executable, "-P", "-m", "topicproof.backend.cli", "up", "--no-demo"]
    environment = {
        **{name: value for name, value in os.environ.items() if name != "TOPICPROOF_BOOTSTRAP"},
        **python_environment(),
        "TOPICPROOF_HOME": str(home),
        "SPARK_REMOTE": spark_remote,
    }
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [*command, "--port", str(port)], env=environment, stdout=output, stderr=output
        ) as process,
    ):
        try:
            wait_until(
                lambda: READY in log.read_text() or process.poll() is not None, OVER_S, "a start"
            )
            assert process.poll() is None, log.read_text()
            yield log.read_text
        finally:
            process.send_signal(signal.SIGINT)
    assert process.returncode == 0, log.read_text()


def test_what_is_listed_is_watched_again_when_the_dashboard_starts(
    cluster: Services, tmp_path: Path
) -> None:
    """Story: a contract is on the list, and nobody watches it. The dashboard starts, and so does
    the watch, in a process of its own, which ends with the embedded Kafka. Started again, it goes
    on by the new address, and tells a copy. Off the list, it ends."""
    home = tmp_path / "home"
    home.mkdir()
    settings = read_settings(home=home, bootstrap=None)
    history = History(settings)

    def states() -> dict[str, State]:
        watched, unreadable = read_standings(home / FOLDER, int(time.time()))
        assert unreadable == []
        return {each.standing.name: each.standing.state for each in watched}

    def log_of_watch() -> str:
        return (home / FOLDER / f"{state_name(kafka_id)}.log").read_text()

    with services(settings, spark=False) as running:
        kafka_id, bootstrap = cluster_id(running.address), running.bootstrap
        pipeline = Pipeline(
            bootstrap, new_topic(bootstrap, "inputs"), new_topic(bootstrap, "outputs")
        )
        pipeline.write_inputs(2)
        pipeline.write_outputs([0, 1])
        contract = ListedContract.at(settings, kafka_id, "orders", TERMS)
        list_contract(history, contract)
        assert not is_watched(settings, kafka_id)
    with up(home, cluster.spark_remote):
        assert is_watched(settings, kafka_id)
        wait_until(lambda: states() == {"orders": State.HOLDS}, OVER_S, "a look")
    wait_until(lambda: not is_watched(settings, kafka_id), OVER_S, "the end of the watch")
    with up(home, cluster.spark_remote) as output:
        (address,) = re.findall(r"Kafka (\S+), Spark", output())
        assert is_watched(settings, kafka_id) and f"watching {address}" in log_of_watch()
        pipeline = Pipeline(address, "inputs", "outputs")
        pipeline.write_outputs([1])
        wait_until(lambda: states() == {"orders": State.VIOLATED}, OVER_S, "the copy")
        assert "Traceback" not in log_of_watch()
        unlist_contract(history, contract)
        wait_until(lambda: not is_watched(settings, kafka_id), OVER_S, "the end of the watch")
    history.engine.dispose()

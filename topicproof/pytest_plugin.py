"""Fixtures for tests of your own pipeline, in any language.

- `topicproof_broker`, `topicproof_brokers`: a real Kafka of one or three brokers;
- `topicproof_topic`: a topic, with committed, aborted and open records;
- `topicproof_program`: a process that is started, killed and restarted;
- `topicproof_proxy`: a network between clients and the broker that loses what you choose;
- `assert_exactly_once`: the verdict on two topics, as an assertion.

Loading this imports neither Kafka nor Spark. docs/TESTING-YOUR-PIPELINE.md shows how to use it.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from topicproof.backend.faults.proxy import Proxy
    from topicproof.backend.harness.assertion import Terms
    from topicproof.backend.harness.broker import Broker
    from topicproof.backend.harness.program import Program
    from topicproof.backend.harness.scratch_topics import Topic
    from topicproof.validators.report import Report

NEEDED = "The fixtures of topicproof need more packages; {} is missing. Run: pip install '{}'"


def pytest_configure(config: pytest.Config) -> None:
    """Let a suite with warnings as errors pass although kafka-python loads further schemas late."""
    config.addinivalue_line(
        "filterwarnings", "ignore:(read_text|open_text) is deprecated:DeprecationWarning"
    )


@pytest.fixture(scope="session")
def topicproof_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of Kafka's and Spark's data: TOPICPROOF_HOME, or a new one for this session. With
    `topicproof up` running in that home, tests share its Kafka and Spark."""
    given = os.environ.get("TOPICPROOF_HOME")
    return Path(given) if given else tmp_path_factory.mktemp("topicproof")


@pytest.fixture(scope="session")
def topicproof_broker(topicproof_home: Path) -> Iterator[Broker]:
    """A Kafka of one broker for this session, or the one that TOPICPROOF_BOOTSTRAP names."""
    with _broker(topicproof_home, 1) as broker:
        yield broker


@pytest.fixture(scope="session")
def topicproof_brokers(topicproof_home: Path) -> Iterator[Broker]:
    """A Kafka of three brokers for this session. Single ones can be killed, paused, isolated."""
    with _broker(topicproof_home / "three", 3) as broker:
        yield broker


@contextmanager
def _broker(home: Path, count: int) -> Iterator[Broker]:
    with _packages():
        from topicproof.backend.harness.broker import open_broker
    with open_broker(home, count) as broker:
        yield broker


@pytest.fixture
def topicproof_topic(topicproof_broker: Broker) -> Iterator[Callable[..., Topic]]:
    """Make a topic: `topicproof_topic("orders", partitions=1, committed=(), aborted=(), open=())`.

    A record is a key and a value; a single value is its own key. `broker=`: another cluster than
    `topicproof_broker`. Further names are topic settings, such as `cleanup_policy="compact"`.
    Transactions that are still open are aborted after the test.
    """
    made: list[Topic] = []

    def make(name: str, partitions: int = 1, broker: Broker | None = None, **further: Any) -> Topic:
        made.append((broker or topicproof_broker).topic(name, partitions, **further))
        return made[-1]

    yield make
    for topic in made:
        topic.close()


@pytest.fixture
def topicproof_program(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Start a program: `topicproof_program(command, env=None, cwd=None)`. Words of the command may
    be topics, paths and numbers. It is killed after the test."""
    with _packages():
        from topicproof.backend.harness.program import Program
    started: list[Program] = []

    def start(
        command: list[object], env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> Program:
        log = tmp_path / f"program-{len(started)}.log"
        started.append(Program([str(word) for word in command], log, env or {}, cwd))
        started[-1].start()
        return started[-1]

    yield start
    for program in started:
        program.kill()


@pytest.fixture
def topicproof_proxy(topicproof_broker: Broker) -> Iterator[Proxy]:
    """A network in front of `topicproof_broker`. Give your program `topicproof_proxy.bootstrap`;
    then `isolate()`, `heal()` and `arm(Rule(Api.PRODUCE, How.LOST))` of `topicproof.testing`."""
    with _packages():
        from topicproof.backend.faults.proxy import Proxy
    with Proxy(topicproof_broker.bootstrap) as proxy:
        yield proxy
        for sentence in proxy.idle_rules():
            print(sentence)  # noqa: T201 (pytest shows it if the test failed)


@pytest.fixture
def assert_exactly_once(
    topicproof_broker: Broker, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Report]:
    """Judge two topics: `assert_exactly_once(source, sink, contract=None, broker=None)`.

    `contract`: the fields of a contract, where records are matched by key unless it says otherwise,
    or a YAML file. The topics replace those of the contract.
    `broker`: the one that has the topics, if it is not `topicproof_broker`. Returns the report.
    """
    with _packages():
        from topicproof.backend.harness.assertion import require_exactly_once
    # Spark starts while the program under test runs.
    topicproof_broker.prepare_spark()

    def judge(
        source: object, sink: object, contract: Terms = None, broker: Broker | None = None
    ) -> Report:
        __tracebackhide__ = True
        folder = tmp_path_factory.mktemp("verdict")
        return require_exactly_once(broker or topicproof_broker, source, sink, contract, folder)

    return judge


@contextmanager
def _packages() -> Iterator[None]:
    """Fail with a sentence if a package is not installed. kafka-python reads its message schemas,
    when it is imported, with functions that Python wants replaced: no error of this suite's."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    except ModuleNotFoundError as error:
        pytest.fail(NEEDED.format(error.name, "topicproof[test]"), pytrace=False)

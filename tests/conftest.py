"""One real Kafka and one real Spark for each process that runs tests; every test makes topics of
its own."""

from __future__ import annotations

import gc
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
from pyspark.errors.exceptions.connect import SparkConnectGrpcException
from pyspark.sql import SparkSession

from tests.runs import SMALL, Finished, run_to_end
from topicproof.backend.address import Address
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.services.keeper import Services, services
from topicproof.backend.services.spark_session import ANY_SETTING, connect, kept_alive
from topicproof.backend.settings import Settings, read_settings

# Rewritten asserts are kept, as without PYTHONDONTWRITEBYTECODE: each process takes ten seconds to
# make them again.
sys.dont_write_bytecode = False
# At its import jsonschema would build parsers of international URLs, which takes four seconds in
# each process. The one test that needs them has a process of its own.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]
# No test asserts a time, also not that of one example on a busy machine.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")

SLOWER = 4
"""How much slower a busy machine may be before a wait fails. It costs a green test nothing."""

LONGEST = (
    "test_tidy.py",
    "test_torture.py",
    "test_broker_faults.py",
    "test_dashboard.py",
    "test_login.py",
    "test_stories.py",
    "test_accessibility.py",
)
"""Files that take a minute or more. If one process began such a file last, the other would wait."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Quick tests first: those that use no process, then Spark, then Kafka, then the browser. The
    longest files of each begin before the others."""
    items.sort(key=lambda item: (_cost(item), item.path.name not in LONGEST))
    for item in items:
        if not _cost(item):
            item.add_marker("quick")


def pytest_collection_finish() -> None:
    """Thousands of tests and modules live as long as the process. Frozen, they cost no later
    collection of garbage a look: each took a second and more."""
    gc.collect()
    gc.freeze()


class _SaysFailuresAtOnce:
    """Names a test when it fails. The details follow at the end, which a run that is stopped does
    not reach."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self.terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            said = str(report.longrepr).strip().splitlines()[-1:]
            self.terminal.write_line(f"\nFAILED {report.nodeid} {' '.join(said)}", flush=True)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_SaysFailuresAtOnce(terminal))


def _cost(item: pytest.Item) -> int:
    needs = set(getattr(item, "fixturenames", ()))
    if item.get_closest_marker("services"):
        return 2
    for cost, fixtures in (
        (3, {"browser"}),
        (2, {"cluster", "bootstrap", "schema_registry"}),
        (1, {"spark_sessions"}),
    ):
        if needs & fixtures:
            return cost
    return 0


@pytest.fixture(scope="session", autouse=True)
def _user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A folder for the data of a user of this session's own. What forgets to name a home must not
    write into the home of the person who runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("user")))
        # Brokers and Sparks of tests live for seconds or minutes. Java's second compiler takes more
        # processor time in them than the better code gives back.
        patch.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
        # Hundreds of processes would each compile our sources again.
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        yield


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Settings with an empty home of this session's own."""
    return read_settings(home=tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="session")
def cluster(settings: Settings) -> Iterator[Services]:
    """Both processes, embedded, held until the session ends."""
    with services(settings) as found:
        yield found


@pytest.fixture(scope="session")
def bootstrap(cluster: Services) -> str:
    return cluster.bootstrap


@pytest.fixture(scope="session")
def spark_sessions(settings: Settings) -> Iterator[Callable[[], SparkSession]]:
    """Gives a Spark Connect session on the server that `cluster` uses too, without asking for
    Kafka."""
    with services(settings, kafka=False) as found:
        open_sessions = [connect(found.spark_remote)]

        def session() -> SparkSession:
            try:
                # A real query: the server answers lesser questions for a session that it has ended.
                open_sessions[-1].range(1).count()
            except SparkConnectGrpcException:
                # The server ends a session that asked nothing for a minute, as it should. An ended
                # one must not stay the active one of the thread.
                open_sessions[-1].stop()
                open_sessions.append(connect(found.spark_remote))
            return open_sessions[-1]

        yield session
        open_sessions[-1].stop()


@pytest.fixture(scope="module")
def spark(spark_sessions: Callable[[], SparkSession]) -> Iterator[SparkSession]:
    """A Spark Connect session for the tests of a module. On a busy machine a test may ask Kafka for
    a minute, after which the server ends a session that asks nothing."""
    session = spark_sessions()
    with kept_alive(lambda: session.conf.get(ANY_SETTING)):
        yield session


@pytest.fixture
def new_topic(bootstrap: str, request: pytest.FixtureRequest) -> Callable[..., str]:
    """Makes an empty topic named after the test: `new_topic(partitions=1, **topic_config)`."""
    cluster = Cluster(Address(bootstrap))

    def make(partitions: int = 1, **config: str) -> str:
        name = f"{request.node.name.split('[')[0].replace('_', '-')}-{uuid.uuid4().hex[:6]}"
        cluster.create_topic(
            name,
            partitions,
            exists_ok=False,
            **{key.replace("_", "."): value for key, value in config.items()},
        )
        return name

    return make


def wait_until(condition: Callable[[], bool], timeout_s: float, message: str) -> None:
    """Wait for a condition; the one place of the tests that waits. `timeout_s` is for a quiet
    machine."""
    timeout_s = min(SLOWER * timeout_s, 400)
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{message} did not happen within {timeout_s} s")
        time.sleep(0.05)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this repository."""
    from tests.wheel import build_wheel

    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """The address of a real PostgreSQL; tests.postgresql.new_database makes a database of one's own
    on it."""
    from tests.postgresql import server

    with server() as address:
        yield address


@pytest.fixture(scope="session")
def schema_registry(settings: Settings) -> Iterator[str]:
    """The address of a real schema registry with Confluent's API."""
    from tests.registry import registry

    with registry(settings) as address:
        yield address


@pytest.fixture(scope="session")
def finished(settings: Settings, cluster: Services) -> Finished:
    """A small run with aborts and a crash of every worker, through to its verdict."""
    return run_to_end(settings, cluster, **SMALL)


@pytest.fixture(scope="session")
def artifacts() -> Path:
    """Folder of what a person should look at after a test run: screenshots."""
    folder = Path("artifacts")
    folder.mkdir(exist_ok=True)
    return folder

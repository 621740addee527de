"""What the given services say: the brokers, this user's rights, the Spark Connect server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version

from confluent_kafka import KafkaException, TopicCollection

from topicproof.backend.address import Address
from topicproof.backend.doctor.diagnosis import Diagnosis, Health, failed, ok, warning
from topicproof.backend.doctor.workers import require_versions
from topicproof.backend.errors import ClusterError, SetupError, SparkError, TopicproofError
from topicproof.backend.kafka.acls import Resource, Right, Task, rights_for
from topicproof.backend.kafka.bounded import TIMEOUT_S, bounded
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.consumers import cluster_error
from topicproof.backend.kafka.coordination.coordinator import sees_every_id
from topicproof.backend.kafka.coordinator_logs import require_coordinator_logs
from topicproof.backend.kafka.log import rawlog
from topicproof.backend.kafka.log.client import require_reachable
from topicproof.backend.services.processes import connect_once
from topicproof.backend.services.spark import given_remote, server_of, without_token
from topicproof.backend.services.spark_session import connect
from topicproof.backend.settings import Settings
from topicproof.validators.shell_words import shell_word

CONNECT_TIMEOUT_S = 3.0
WORKERS_TIMEOUT_S = 60.0
"""How long workers may take to say what they have: a busy Spark lets the question wait."""
PROBE_GROUP = "topicproof-doctor"
"""A group that nobody uses. An ACL on all groups covers it."""


def broker(settings: Settings, task: Task) -> Diagnosis:
    """Ask the given brokers for their version, and for a run whether transactions can begin. Takes
    at most some seconds."""
    if settings.bootstrap is None:
        return ok("broker", "none is given; an embedded Apache Kafka is started when one is needed")
    try:
        require_reachable(settings.address)
        cluster = Cluster(settings.address)
        cluster.check()
        if task is Task.RUN:
            require_coordinator_logs(cluster)
        brokers = len(
            bounded(cluster.admin.describe_cluster(request_timeout=TIMEOUT_S).result).nodes
        )
    except TopicproofError as error:
        return failed("broker", error)
    except KafkaException as error:
        return failed("broker", cluster_error(error, settings.address, "asking for its brokers"))
    count = f"{brokers} broker{'' if brokers == 1 else 's'}"
    return ok("broker", f"{count} at {settings.address.called}; transactions are understood")


def rights(
    settings: Settings, task: Task, topics: Sequence[str], groups: Sequence[str]
) -> Iterator[Diagnosis]:
    """Compare what the brokers allow this user with the least rights for a task. Nothing is
    written."""
    cluster = Cluster(settings.address)
    if not topics:
        count = len(cluster.topics())
        yield warning(
            "rights",
            f"This user may see {count} topic{'' if count == 1 else 's'}; what else it may is not"
            " known.",
            "Name the topics of your task: topicproof doctor --for check --topic T",
        )
        return
    for right in rights_for(task, topics, groups):
        name = f"{right.resource} {right.name}"
        try:
            missing = [
                operation
                for operation in right.operations
                if operation not in _allowed(cluster, right)
            ]
        except TopicproofError as error:
            yield failed("rights", error)
            continue
        if missing:
            lacks = ClusterError(
                f"This user lacks {' and '.join(missing)} on {name}. {right.why} Ask the operators"
                f" for it: topicproof rights --for {shell_word(task)} prints the commands."
            )
            yield failed("rights", lacks)
        else:
            yield ok("rights", f"{' and '.join(right.operations)} on {name}")


def _allowed(cluster: Cluster, right: Right) -> Sequence[str]:
    """Return what the brokers allow on the resource. Raises ClusterError, TopicError."""
    if right.resource is Resource.TOPIC:
        return _of_topic(cluster, right.name)
    if right.resource is Resource.TRANSACTIONAL_ID:
        return _of_transactions(cluster.address)
    return _of_group(cluster, PROBE_GROUP if right.name == "*" else right.name)


def _of_topic(cluster: Cluster, topic: str) -> Sequence[str]:
    cluster.partitions(topic)  # Raises TopicError, with a better sentence, if there is none.
    futures = cluster.admin.describe_topics(
        TopicCollection([topic]), include_authorized_operations=True, request_timeout=TIMEOUT_S
    )
    return _operations(cluster.address, futures[topic].result, f"asking for rights on {topic}")


def _of_group(cluster: Cluster, group: str) -> Sequence[str]:
    futures = cluster.admin.describe_consumer_groups(
        [group], include_authorized_operations=True, request_timeout=TIMEOUT_S
    )
    try:
        doing = f"asking for rights on group {group}"
        return _operations(cluster.address, futures[group].result, doing)
    except ClusterError as error:
        # Whoever may not even describe the group gets no list of operations.
        if "lacks" in str(error):
            return ()
        raise


def _operations(address: Address, ask: Callable[[], object], doing: str) -> Sequence[str]:
    try:
        description = bounded(ask)
    except KafkaException as error:
        raise cluster_error(error, address, doing) from error
    named = getattr(description, "authorized_operations", None) or ()
    # DESCRIBE_CONFIGS is DescribeConfigs in the commands.
    return [operation.name.title().replace("_", "") for operation in named]


def _of_transactions(address: Address) -> Sequence[str]:
    with rawlog.connect(address) as kafka:
        return ("Describe",) if sees_every_id(kafka) else ()


def spark(settings: Settings) -> Diagnosis:
    """Open a session on the given server, and compare versions with it and its workers."""
    if settings.spark_remote is None:
        return ok("spark", "none is given; an embedded one is started when it is needed")
    address = without_token(settings.spark_remote)
    try:
        _require_listening(settings.spark_remote)
        session = bounded(lambda: connect(given_remote(settings)))
        try:
            server_version, client_version = bounded(lambda: session.version), version("pyspark")
            if server_version.split(".")[:2] == client_version.split(".")[:2]:
                bounded(lambda: require_versions(session), stuck_s=WORKERS_TIMEOUT_S)
        finally:
            session.stop()
    except TopicproofError as error:
        return failed("spark", error)
    except TimeoutError:
        why = f"Spark at {address} accepts connections, but answers nothing."
        return failed("spark", SetupError(f"{why} Check SPARK_REMOTE."))
    if server_version.split(".")[:2] != client_version.split(".")[:2]:
        return Diagnosis(
            "spark",
            Health.WARNING,
            f"The server at {address} is Spark {server_version}; this is pyspark {client_version}.",
            f"Install the same version here: pip install 'pyspark[connect]=={server_version}'",
        )
    return ok(
        "spark",
        f"Spark {server_version} at {address}, and its workers have what runs and checks need",
    )


def _require_listening(remote: str) -> None:
    """Raises SparkError. gRPC itself would wait for minutes for a host that drops packets."""
    try:
        connect_once(*server_of(remote), CONNECT_TIMEOUT_S)
    except OSError as error:
        why = getattr(error, "strerror", None) or str(error)
        raise SparkError(
            f"Nothing listens at {without_token(remote)} ({why}). Start a Spark Connect server"
            " there, or check SPARK_REMOTE."
        ) from error

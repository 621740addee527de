"""The question of a contract: its terms, with the topics and the offsets that a cluster has now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from topicproof.backend.contracts.contract import Contract, mistake
from topicproof.backend.errors import ContractError, TopicError
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.coordination.unstable import committed_offsets
from topicproof.backend.kafka.origin import fetch_origin, fetch_origins
from topicproof.backend.yaml_fields import Place
from topicproof.validators.finding import Bounds, Origins
from topicproof.validators.merged_topics import join
from topicproof.validators.question import Question


def question_of(
    contract: Contract, cluster: Cluster, source_cluster: Cluster | None = None
) -> Question:
    """Return the question of a contract for one sink. `source_cluster` is the source's, if it is
    not the sink's; the group is then one of the source's cluster.

    Raises ContractError naming the line of a missing topic, of a group without committed offsets,
    or of a sink that is the source itself; ClusterError.
    """
    if contract.unique is not None:
        return _question_of_sink(contract, cluster)
    if contract.table is not None:
        return _question_of_table(contract, cluster)
    of_source = source_cluster or cluster
    source, sinks = (
        [
            _bounds(contract, where, name, (place, "topic" if side.topics is None else "topics"))
            for name in side.names
        ]
        for place, side, where in (
            ("source", contract.source, of_source),
            ("sink", contract.of, cluster),
        )
    )
    if source_cluster is not None:
        _require_apart(contract, (source_cluster, source), (cluster, sinks))
    origins = fetch_origins(
        cluster.address,
        source_cluster.address if source_cluster else None,
        [topic_bounds.topic for topic_bounds in source],
        [topic_bounds.topic for topic_bounds in sinks],
    )
    if contract.dead_letters is not None:
        place = ("dead_letters", "topic")
        sinks.append(_bounds(contract, cluster, contract.dead_letters.topic, place))
    offsets = None if contract.group is None else _offsets(contract, of_source, join(source))
    return replace(
        _question(contract, join(source), sinks[0].topic, origins, offsets),
        also=tuple(topic_bounds.topic for topic_bounds in sinks[1:]),
        across=source_cluster is not None,
    )


def _question(
    contract: Contract,
    source: Bounds,
    sink: str,
    origins: Origins | None,
    offsets: Mapping[int, int] | None,
) -> Question:
    """Return the question of the contract's terms. `offsets`: those of its group."""
    return Question(
        source=source,
        sink=sink,
        guarantee=contract.guarantee,
        identity=contract.by,
        expected=contract.expected,
        order=contract.order,
        agreed=contract.terms(offsets),
        foreign=True,
        group=contract.group,
        origins=origins,
        due=offsets,
    )


def _question_of_sink(contract: Contract, cluster: Cluster) -> Question:
    """Return the question of a contract without a source. Raises ContractError, ClusterError."""
    place = "sink", "topic" if contract.of.topics is None else "topics"
    bounds = [_bounds(contract, cluster, name, place) for name in contract.of.names]
    topics = [topic_bounds.topic for topic_bounds in bounds]
    origins = fetch_origins(cluster.address, None, (), topics)
    question = _question(contract, join(bounds), topics[0], origins, None)
    return replace(question, also=tuple(topics[1:]))


def _question_of_table(contract: Contract, cluster: Cluster) -> Question:
    """Return the question of a contract about a table. The offsets of its group are taken here,
    before the table is read. Raises ContractError, ClusterError."""
    where = "topic" if contract.source.topics is None else "topics"
    bounds = [_bounds(contract, cluster, name, ("source", where)) for name in contract.source.names]
    source = join(bounds)
    offsets = None if contract.group is None else _offsets(contract, cluster, source)
    origins = fetch_origins(cluster.address, None, contract.source.names, ())
    return _question(contract, source, contract.of.names[0], origins, offsets)


def _require_apart(contract: Contract, *sides: tuple[Cluster, Sequence[Bounds]]) -> None:
    """Raises ContractError if both addresses lead to one cluster, and a topic is on both sides."""
    names = [{topic_bounds.topic for topic_bounds in bounds} for _, bounds in sides]
    if not names[0] & names[1]:
        return
    ids = [fetch_origin(where.address, sorted(names[0] & names[1])) for where, _ in sides]
    if ids[0] == ids[1]:
        addresses = " and ".join(str(where.address) for where, _ in sides)
        why = f"source and sink are the same topic, because {addresses} are one cluster"
        raise _refused(contract, ("sink",), why)


def _bounds(contract: Contract, cluster: Cluster, topic: str, place: Place) -> Bounds:
    try:
        return cluster.bounds(topic)
    except TopicError as error:
        raise _refused(contract, place, str(error)) from error


def _offsets(contract: Contract, cluster: Cluster, source: Bounds) -> dict[int, int]:
    """Return the group's committed offsets of the source, by its consecutive partition numbers."""
    assert contract.group is not None
    offsets = committed_offsets(cluster, contract.group, source)
    if not offsets:
        why = f"group {contract.group} has committed no offset of {source.topic}"
        raise _refused(contract, ("group",), why)
    return offsets


def _refused(contract: Contract, place: Place, why: str) -> ContractError:
    return ContractError(mistake(contract.yaml_fields, place, why))

"""The ids that the topics of a check had when runs wrote them.

Lineage names topics without their ids. Each run records the ids of its topics at its creation, in
the history and as the first entry of its journal. So a check of such topics, also on another
machine, sees that the source was deleted and made again since.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from topicproof.backend.address import Address
from topicproof.backend.errors import ClusterError
from topicproof.backend.history.store import History
from topicproof.backend.kafka.client_configs import READ_UNCOMMITTED
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.origin import fetch_origin
from topicproof.backend.kafka.reading import read_records
from topicproof.backend.sink.entries import RunTopics, decode
from topicproof.validators.lineage.identity import Identity
from topicproof.validators.question import Question

JOURNAL_SUFFIX = "-journal"
TOPIC_ID = re.compile(r"[A-Za-z0-9_-]{22}", re.ASCII)
"""An id as Kafka's tools print it: 16 bytes in base64. It is quoted in verdicts."""
RUNS_MAX = 1_000
"""The latest runs of the history that are looked through."""


def outdated_ids(history: History, address: Address, question: Question) -> Mapping[str, str]:
    """Return the recorded ids of source topics that have other ids now. Empty if records are not
    matched by lineage, if the topics are on two clusters, or if the sink is a table. Raises
    ClusterError, TopicError.

    Only runs that wrote the present sink count: a sink that was made again holds none of their
    outputs."""
    is_table = question.agreed.table is not None
    if question.identity is not Identity.LINEAGE or question.across or is_table:
        return {}
    sources, sinks = question.source.topics, (question.sink, *question.also)
    present: Mapping[str, str | None] = {}
    outdated = {}
    for recorded in _records(history, address, (*sources, *sinks)):
        present = present or fetch_origin(address, (*sources, *sinks)).topics
        if not any(recorded.get(sink) and recorded[sink] == present[sink] for sink in sinks):
            continue
        for source in sources:
            before, now = recorded.get(source), present[source]
            if before is None or TOPIC_ID.fullmatch(before) is None:
                continue
            if now is not None and before != now:
                outdated[source] = before
    return outdated


def _records(
    history: History, address: Address, topics: tuple[str, ...]
) -> Iterator[Mapping[str, str | None]]:
    """Yield the ids that runs of these topics recorded: runs of this history, and runs of others
    whose journals are on the cluster."""
    journals = set()
    for run in history.list(RUNS_MAX):
        if run.kind == "run" and set(topics) & set(run.facts.topic_ids):
            journals.add(run.facts.journal)
            yield run.facts.topic_ids
    cluster = Cluster(address)
    for name in cluster.topics():
        prefix = name.removesuffix(JOURNAL_SUFFIX)
        of_these = any(topic.startswith(f"{prefix}-") for topic in topics)
        if name.endswith(JOURNAL_SUFFIX) and of_these and name not in journals:
            yield first_entry(cluster, name)


def first_entry(cluster: Cluster, journal: str) -> Mapping[str, str | None]:
    """Return the ids in the first entry of a journal, whose other records are not looked at. Empty
    for journals of earlier versions, for journals that this client may not read, and for topics
    that only have such a name."""
    try:
        start, end = next((p.start, p.hw) for p in cluster.bounds(journal).partitions)
        first = {0: (start, min(start + 1, end))}
        records = read_records(cluster.address, journal, READ_UNCOMMITTED, first)
        entries = [decode(record.value() or b"") for record in records]
    except (ClusterError, ValueError):
        return {}
    return entries[0].ids if entries and isinstance(entries[0], RunTopics) else {}

"""The ids that the topics of a check had when runs wrote them.

Lineage names topics without their ids. Each run records the ids of its topics at its creation, in
the history and as the first entry of its journal. So a check of such topics, also on another
machine, sees that the source was deleted and made again since.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing

from topicproof.backend.address import Address
from topicproof.backend.errors import ClusterError
from topicproof.backend.history.store import History
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.origin import fetch_origin
from topicproof.backend.sink.entries import RunTopics
from topicproof.backend.sink.journal import JournalReader
from topicproof.validators.lineage.identity import Identity
from topicproof.validators.question import Question

JOURNAL_SUFFIX = "-journal"
RUNS_MAX = 1_000
"""The latest runs of the history that are looked through."""


def outdated_ids(history: History, address: Address, question: Question) -> Mapping[str, str]:
    """Return the recorded ids of source topics that have other ids now. Empty if records are not
    matched by lineage, or if the topics are on two clusters. Raises ClusterError, TopicError.

    Only runs that wrote the present sink count: a sink that was made again holds none of their
    outputs."""
    if question.identity is not Identity.LINEAGE or question.across:
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
            if before is not None and now is not None and before != now:
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
    for name in Cluster(address).topics():
        prefix = name.removesuffix(JOURNAL_SUFFIX)
        of_these = any(topic.startswith(f"{prefix}-") for topic in topics)
        if name.endswith(JOURNAL_SUFFIX) and of_these and name not in journals:
            yield _first_entry(address, name)


def _first_entry(address: Address, journal: str) -> Mapping[str, str | None]:
    """Return the ids in the first entry of a journal. Empty for journals of earlier versions, for
    journals that this client may not read, and for topics that only have such a name."""
    try:
        with closing(JournalReader(address, journal)) as reader:
            entry = next(reader.news(), None)
    except (ClusterError, ValueError, LookupError, TypeError, AttributeError):
        return {}
    return entry.ids if isinstance(entry, RunTopics) else {}

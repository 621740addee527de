"""Topics that are deleted, or deleted and made again, while they are read.

Spark waits for the records of a deleted topic as it waits for a broker: its consumer for half a
minute, and each task tries several times. Nothing but the topic's id tells the two apart, so the
ids are looked at while Spark reads. If one is gone, Spark's work is interrupted, and what was read
is no basis for a verdict: it may stop anywhere, or mix two topics of one name.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from topicproof.backend.address import Address, Sides
from topicproof.backend.errors import TopicproofError
from topicproof.backend.judging.bounded_question import origins_of
from topicproof.backend.judging.capture_store import COMMITTED, INPUTS, UNCOMMITTED, Capture, empty
from topicproof.backend.judging.circumstances import SINCE_CAPTURED
from topicproof.backend.kafka.log.batches import SCHEMA
from topicproof.backend.kafka.log.rawlog import connect
from topicproof.backend.kafka.origin import find_replaced
from topicproof.backend.storage import keep_in
from topicproof.validators.circumstances import Circumstances
from topicproof.validators.columns import TEXT
from topicproof.validators.decoded import path_of
from topicproof.validators.finding import Bounds, Origins, PartitionBounds
from topicproof.validators.merged_topics import join
from topicproof.validators.question import Question
from topicproof.validators.readings import COLUMNS, Readings

LOOK_S = 2.0
"""How often the ids are looked at."""
AGREEING_LOOKS = 2
"""Spark is interrupted once this many looks in a row miss a topic: a broker that has just started
learns of topics later than the others."""


@contextmanager
def interrupted_without(spark: SparkSession, sides: Sides, origins: Origins) -> Iterator[None]:
    """Interrupt what the session does in Spark as soon as a topic of the question no longer has its
    id. What the block waits for then fails."""
    ended = threading.Event()
    watched = [(sides.sink, origins.sink.topics)]
    if origins.source is not None:
        watched.append((sides.source, origins.source.topics))
    threads = [
        threading.Thread(target=_watch, args=(spark, address, ids, ended), name="presence")
        for address, ids in watched
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def _watch(
    spark: SparkSession, address: Address, ids: Mapping[str, str | None], ended: threading.Event
) -> None:
    misses = 0
    while not ended.wait(LOOK_S):
        # Brokers that do not answer are the lifeline's business, and the reader's.
        with suppress(TopicproofError, PySparkException), connect(address) as kafka:
            while not ended.wait(LOOK_S):
                misses = misses + 1 if find_replaced(kafka, ids, SINCE_CAPTURED) else 0
                if misses >= AGREEING_LOOKS:
                    # Again at each look: the block may begin further work.
                    spark.interruptAll()


def capture_of_nothing(
    spark: SparkSession, question: Question, replaced: tuple[str, ...], evidence: Path
) -> Capture:
    """Return a capture without records, for topics that vanished while they were read: its verdict
    is UNKNOWN and says so. `replaced`: a clause for each of these topics. Raises EvidenceError."""
    origins = origins_of(question)
    empty(spark, evidence)
    nothing = PartitionBounds(0, 0, 0, 0)
    sink = join([Bounds(topic, (nothing,)) for topic in (question.sink, *question.also)])
    committed, uncommitted, inputs = (
        keep_in(spark.createDataFrame([], COLUMNS), evidence / name, 0, COLUMNS)
        for name in (COMMITTED, UNCOMMITTED, INPUTS)
    )
    log = SCHEMA.empty_table().drop_columns("inflated")
    sink_log = log if question.agreed.table is None else None
    return Capture(
        question_of_nothing(question, sink),
        sink,
        Readings(committed, uncommitted, inputs),
        sink_log,
        None,
        log,
        circumstances=Circumstances(looked=True, replaced=replaced, vanished=True),
        origin=origins.sink,
        source_origin=origins.source,
    )


def question_of_nothing(question: Question, sink: Bounds) -> Question:
    """Return the question without records, and without what other witnesses say: none may speak
    about records that were not read. `sink`: its empty bounds."""
    source = replace(
        question.source,
        partitions=tuple(replace(p, lso=p.start, hw=p.start) for p in question.source.partitions),
    )
    agreed = replace(question.agreed, offsets=None)
    if agreed.table is not None:
        # Nobody may have looked at the table. Evidence has a type for each compared column.
        types = dict.fromkeys(map(path_of, agreed.compared), TEXT)
        agreed = replace(agreed, table=replace(agreed.table, types=types))
    return replace(
        question,
        source=sink if agreed.unique else source,
        agreed=agreed,
        group=None,
        due=None,
        sink_from={},
        not_processed=0,
    )

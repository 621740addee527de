"""Packed lineage, which earlier versions wrote, is recognized and never taken for no lineage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from topicproof.backend.address import Address, Sides
from topicproof.backend.errors import PackedLineage
from topicproof.backend.evidence.folded import PIECES_SEEN, read_folded
from topicproof.backend.exit_codes import UNJUDGED
from topicproof.backend.judging.capture_store import PACKS, read_capture
from topicproof.backend.judging.judge import judge_topics
from topicproof.backend.kafka.client_configs import transactional_producer_config
from topicproof.backend.kafka.log.rawlog import fetch_bounds
from topicproof.validators.finding import Outcome
from topicproof.validators.folded.offset_runs import PIECES, WORDS
from topicproof.validators.lineage.headers import (
    PACKED_HEADER,
    TRANSACTION_HEADER,
    Transaction,
    format_transaction,
)
from topicproof.validators.lineage.identity import Identity
from topicproof.validators.question import Question

RECORDS = 4
NewTopic = Callable[..., str]


def write_packed(bootstrap: str, source: str, sink: str) -> None:
    """Inputs, and their outputs in one transaction whose first record has the headers of all, as
    version 0.3.0 wrote them."""
    name = Transaction(f"{sink}-0", 1, 1, "task", RECORDS)
    headers = [(PACKED_HEADER, b"\x01"), (TRANSACTION_HEADER, format_transaction(name))]
    producer = Producer(transactional_producer_config(Address(bootstrap), sink))
    producer.init_transactions(10)
    producer.begin_transaction()
    for number in range(RECORDS):
        key = b"%d" % number
        producer.produce(source, key, key, partition=0)
        producer.produce(
            sink,
            key,
            key,
            partition=0,
            headers=None if number else [*headers],
        )
    producer.commit_transaction(10)
    producer.close()


def test_a_topic_with_packed_lineage_is_judged_by_key_alone(
    bootstrap: str, new_topic: NewTopic, spark: SparkSession, tmp_path: Path
) -> None:
    """Story: a sink was written by version 0.3.0 with packed lineage. By lineage the verdict is
    UNKNOWN and says why, instead of calling each record invented. By key it holds: that the first
    record alone names the transaction of all is no torn transaction."""
    source, sink = new_topic(), new_topic()
    write_packed(bootstrap, source, sink)
    address = Address(bootstrap)
    reports = {
        identity: judge_topics(
            spark,
            Sides(address),
            Question(fetch_bounds(address, source), sink, identity=identity),
            tmp_path / identity,
        )
        for identity in Identity
    }
    assert reports[Identity.LINEAGE].verdict is Outcome.UNKNOWN
    assert "Topicproof 0.3.0 is the last release that does" in reports[Identity.LINEAGE].why
    assert reports[Identity.KEY].verdict is Outcome.HOLDS, reports[Identity.KEY].why


@pytest.mark.parametrize("folder", PACKS)
def test_evidence_of_packed_lineage_names_the_version_that_reads_it(
    spark: SparkSession, tmp_path: Path, folder: str
) -> None:
    """Story: somebody verifies evidence of an earlier version, which has a folder with the
    positions of packs. It is not judged, and not called forged."""
    (tmp_path / folder).mkdir()
    with pytest.raises(PackedLineage, match=r"packed lineage.*Topicproof 0\.3\.0") as refused:
        read_capture(spark, tmp_path)
    assert refused.value.exit_code == UNJUDGED


def test_folded_evidence_of_packed_lineage_is_recognized_by_its_column(tmp_path: Path) -> None:
    """Story: the same evidence was kept without payloads. Its pieces have the header of their pack
    in a column, which is there and empty if lineage was on each record."""
    for packed in (None, b"\x01"):
        pieces = pa.table(
            {
                **{name: pa.array([1], PIECES.field(name).type) for name in PIECES.names[:-2]},
                "origin": pa.array([None if packed else b"numbers/0/0/0"], pa.binary()),
                "name": pa.array([b"id/1/1/task/1"], pa.binary()),
                "packed": pa.array([packed], pa.binary()),
            }
        )
        pq.write_table(pieces.drop_columns("content"), tmp_path / PIECES_SEEN)
        for name in ("sink-read_committed-words.parquet", "source-read_committed-words.parquet"):
            words = pa.table({name: pa.array([1], pa.int64()) for name in WORDS.names})
            pq.write_table(words.drop_columns("content"), tmp_path / name)
        if packed is None:
            assert read_folded(tmp_path).pieces.schema.names == PIECES.names
            continue
        with pytest.raises(PackedLineage):
            read_folded(tmp_path)

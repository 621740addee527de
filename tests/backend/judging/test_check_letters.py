"""A check with dead letters, and its evidence. Spring's are written by hand, as its
DeadLetterPublishingRecoverer writes them; tests/foreign/test_dead_letters.py has those of real
programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from confluent_kafka import Producer
from pyspark.sql import SparkSession

from topicproof.backend.address import Address, Sides
from topicproof.backend.contracts.contract import read_contract
from topicproof.backend.contracts.contract_question import question_of
from topicproof.backend.evidence.copy import copy_evidence
from topicproof.backend.evidence.folder import CONTRACT, EVIDENCE
from topicproof.backend.evidence.manifest import Payloads
from topicproof.backend.judging.judge import JudgeOptions, judge_topics
from topicproof.backend.judging.selftest import self_test
from topicproof.backend.kafka.client_configs import idempotent_producer_config
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.verifying.verify import verify
from topicproof.validators.finding import Outcome
from topicproof.validators.report import Report

INPUTS, ASIDE = 12, (3, 7, 11)
TERMS = """
source: {{topic: {}}}
sink: {{topic: {}}}
identity: key
dead_letters: {{topic: {}, origin: spring}}
"""
Headers = list[tuple[str, str | bytes | None]]
Records = Iterable[tuple[str | None, Headers]]


def write(bootstrap: str, topic: str, records: Records) -> None:
    producer = Producer(idempotent_producer_config(Address(bootstrap)))
    for key, headers in records:
        producer.produce(topic, b"an order", key, partition=0, headers=headers)
    assert producer.flush(30) == 0


def outputs(numbers: Iterable[int]) -> Records:
    return [(str(number), []) for number in numbers]


def letters(source: str, numbers: Iterable[int]) -> Records:
    """As spring-kafka writes them: the numbers are big-endian, of 4 and 8 bytes."""
    return [
        (
            str(number),
            [
                ("kafka_dlt-original-topic", source.encode()),
                ("kafka_dlt-original-partition", (0).to_bytes(4)),
                ("kafka_dlt-original-offset", number.to_bytes(8)),
            ],
        )
        for number in numbers
    ]


def test_evidence_of_a_check_with_dead_letters_proves_it(
    bootstrap: str, new_topic: Callable[..., str], spark: SparkSession, tmp_path: Path
) -> None:
    """Story: a program puts three of twelve orders aside. Each is in the sink or in the dead
    letters, the evidence proves it, and the judge finds the faults that it injects there. Then
    somebody processes one of them again and leaves its dead letter where it is, one is written
    twice, and one names nothing. A masked copy of the evidence proves that."""
    topics = source, sink, dead = [new_topic() for _topic in range(3)]
    write(bootstrap, source, outputs(range(INPUTS)))
    write(bootstrap, sink, outputs(n for n in range(INPUTS) if n not in ASIDE))
    write(bootstrap, dead, letters(source, ASIDE))
    report = judged(spark, bootstrap, topics, tmp_path / "healthy")
    assert report.verdict is Outcome.HOLDS, report.why
    assert report.why == (
        f"9 of 12 inputs committed exactly once, in order; 3 dead letters in {dead}."
    )
    require_proven(spark, tmp_path / "healthy" / EVIDENCE, 0)
    caught = self_test(spark, tmp_path / "healthy").caught
    assert {(fault.kind, fault.found) for fault in caught} == {
        ("duplicate", 1),
        ("gap", 1),
        ("order", 1),
    }

    write(bootstrap, sink, outputs(ASIDE[-1:]))
    nameless: Headers = [("kafka_dlt-original-topic", None)]
    write(bootstrap, dead, [*letters(source, ASIDE[:1]), (None, nameless)])
    report = judged(spark, bootstrap, topics, tmp_path / "broken")
    assert report.verdict is Outcome.VIOLATED, report.why
    assert {each.kind: each.primary for each in report.findings if each.count} == {
        "both_outcomes": 1,
        "letter_repeated": 1,
        "phantom": 1,
    }
    copy_evidence(tmp_path / "broken" / EVIDENCE, tmp_path / "masked", Payloads.MASKED)
    require_proven(spark, tmp_path / "masked", 1)


def judged(spark: SparkSession, bootstrap: str, topics: Sequence[str], folder: Path) -> Report:
    """Judge as `topicproof check` does, which keeps the contract in the evidence."""
    text = TERMS.format(*topics)
    path = folder.with_suffix(".yaml")
    path.write_text(text)
    address = Address(bootstrap)
    question = question_of(read_contract(path), Cluster(address))
    options = JudgeOptions(attachments={CONTRACT: text})
    return judge_topics(spark, Sides(address), question, folder, options)


def require_proven(spark: SparkSession, evidence: Path, exit_code: int) -> None:
    """`verify` says the same as the report."""
    again = verify(spark, evidence)
    assert (again.contradictions, again.forged, again.unsettled) == ((), (), ())
    assert again.exit_code == exit_code

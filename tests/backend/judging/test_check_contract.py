"""A contract on real topics: judged, warned of, and broken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from topicproof.backend.address import Address, Sides
from topicproof.backend.contracts.contract import read_contract
from topicproof.backend.contracts.contract_question import question_of
from topicproof.backend.errors import ContractError
from topicproof.backend.judging.judge import judge_topics
from topicproof.backend.judging.selftest import self_test
from topicproof.backend.kafka.client_configs import transactional_producer_config
from topicproof.backend.kafka.cluster import Cluster
from topicproof.validators.finding import Outcome

INPUTS = 6


def write(bootstrap: str, source: str, sink: str) -> None:
    """Orders as JSON, and their totals with the order's number in a header; one transaction of
    totals is aborted."""
    producer = Producer(transactional_producer_config(Address(bootstrap), f"{sink}-writer"))
    producer.init_transactions(10)
    commit, abort = producer.commit_transaction, producer.abort_transaction
    for topic, end in ((source, commit), (sink, abort), (sink, commit)):
        producer.begin_transaction()
        for number in range(INPUTS):
            if topic == source:
                producer.produce(
                    topic, b'{"id": %d, "price": %d}' % (number, 2 * number), b"k%d" % number
                )
            else:
                headers: list[tuple[str, str | bytes | None]] = [("order", str(number))]
                producer.produce(topic, str(2 * number), b"k%d" % number, headers=headers)
        producer.flush()
        end(10)


def test_a_contract_judges_topics_of_another_program(
    bootstrap: str, new_topic: Callable[..., str], spark: SparkSession, tmp_path: Path
) -> None:
    """Story: another program turns orders into totals. All is as the contract says, but half of the
    sink is aborted. Then its group is set back by two orders, which would be processed again, and a
    second sink joins, which is empty; and a topic of the contract is gone."""
    source, sink = new_topic(), new_topic()
    write(bootstrap, source, sink)
    cluster = Cluster(Address(bootstrap))
    path = tmp_path / "contract.yaml"
    path.write_text(
        f"source: {{topic: {source}}}\nsink: {{topic: {sink}}}\nidentity: {{source: {{json: $.id}},"
        " sink: {header: order}}\nvalue: get_json_object(value, '$.price')\norder: none\ngroup:"
        " totals-app\nwarn: {aborted_share: 0.2}\n"
    )
    contract = read_contract(path)
    with pytest.raises(
        ContractError, match=r"line 6: group: group totals-app has committed no offset of"
    ):
        question_of(contract, cluster)
    cluster.commit_offsets("totals-app", source, {0: INPUTS})
    report = judge_topics(
        spark, Sides(Address(bootstrap)), question_of(contract, cluster), tmp_path / "first"
    )
    assert report.verdict is Outcome.HOLDS, report.why
    assert {check.kind: check.records for check in report.checked}["wrong_value"] == INPUTS
    assert [(one.kind, one.found) for one in self_test(spark, tmp_path / "first").caught] == [
        ("duplicate", 1),
        ("gap", 1),
    ]
    assert report.warnings == ("50.0% of the records are aborted; the contract warns above 20.0%.",)

    cluster.commit_offsets("totals-app", source, {0: INPUTS - 2})
    beside = new_topic()
    path.write_text(
        path.read_text().replace(f"{{topic: {sink}}}", f"{{topics: [{sink}, {beside}]}}")
    )
    contract = read_contract(path)
    report = judge_topics(
        spark,
        Sides(Address(bootstrap)),
        question_of(contract, cluster),
        tmp_path / "second",
    )
    assert {
        one.kind: one.primary for one in report.findings if one.outcome is Outcome.VIOLATED
    } == {"offset_behind": 1}
    assert [part.topic for part in report.sink.parts] == [sink, beside]

    path.write_text(path.read_text().replace(sink, f"{sink}-gone"))
    with pytest.raises(ContractError, match=r"line 2: sink.topics: .*-gone"):
        question_of(read_contract(path), cluster)

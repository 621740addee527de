"""Contracts that `contract init` drafts, checked without a change: losses and repetitions are
found, whatever the sample showed (m2, m4b, u2)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.test_cli import call
from topicproof.backend.address import Address
from topicproof.backend.kafka.client_configs import idempotent_producer_config
from topicproof.backend.settings import Settings

Checked = Callable[[str, str], tuple[str, int, str]]
"""Drafts a contract of source and sink and checks it: the draft, exit code and output."""


@pytest.fixture
def checked(
    bootstrap: str,
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Checked:
    monkeypatch.setenv("TOPICPROOF_HOME", str(settings.home))
    monkeypatch.setenv("COLUMNS", "1000")

    def check(source: str, sink: str) -> tuple[str, int, str]:
        path = tmp_path / "draft.yaml"
        topics = "--source", source, "--sink", sink
        assert call("contract", "init", *topics, str(path), "--bootstrap", bootstrap) == 0
        code = call("check", "--contract", str(path), "--bootstrap", bootstrap)
        output = capsys.readouterr()
        return path.read_text(), code, output.out + output.err

    return check


def produce(bootstrap: str, topic: str, records: Iterable[tuple[int, str, str]]) -> None:
    """Write partition, key and value of each record."""
    producer = Producer(idempotent_producer_config(Address(bootstrap)))
    for partition, key, value in records:
        producer.produce(topic, value, key, partition)
    producer.flush()


@pytest.mark.parametrize(("lost", "code"), [(25, 1), (0, 0)])
def test_m2_the_edge_of_the_sample_is_no_filter(
    bootstrap: str, new_topic: Callable[..., str], checked: Checked, lost: int, code: int
) -> None:
    """Story: a source of three partitions is copied 500 records of a partition at a time, keyed by
    customer. 25 outputs are lost, or none. The draft expects one output of each input; only the
    faithful copy holds."""
    source, sink = new_topic(3), new_topic(3)
    inputs = [
        [(p, f"o-{p}-{n:05}", f"cust-{(n * 7 + p) % 41}") for n in range(1_000)] for p in range(3)
    ]
    produce(bootstrap, source, [one for line in inputs for one in line])
    copies = [one for low in (0, 500) for line in inputs for one in line[low : low + 500]]
    written = copies[:700] + copies[700 + lost :]
    values = [
        (int(customer[5:]) % 3, customer, json.dumps({"order": order, "customer": customer}))
        for _, order, customer in written
    ]
    produce(bootstrap, sink, values)
    draft, exit_code, output = checked(source, sink)
    assert "expect: one_to_one " in draft and "zero_or_one," in draft
    assert exit_code == code, output
    assert not lost or "25 of 3,000 expected outputs are missing (such as" in output


@pytest.mark.parametrize(("instances", "code"), [("ab", 3), ("a", 0)])
def test_m4b_two_instances_are_no_promise(
    bootstrap: str, new_topic: Callable[..., str], checked: Checked, instances: str, code: int
) -> None:
    """Story: two instances process everything, and their outputs differ in a time stamp. The draft
    asks, and a check refuses it by line. With one instance it holds."""
    source, sink = new_topic(), new_topic()
    keys = [f"k{n:03}" for n in range(50)]
    produce(bootstrap, source, [(0, key, json.dumps({"id": key[1:]})) for key in keys])
    outputs = [
        (0, key, json.dumps({"id": key[1:], "by": instance}))
        for key in keys
        for instance in instances
    ]
    produce(bootstrap, sink, outputs)
    draft, exit_code, output = checked(source, sink)
    assert exit_code == code, output
    if code:
        line = next(n for n, text in enumerate(draft.splitlines(), 1) if "count: FILL_IN" in text)
        assert "is two what the pipeline promises, or do two instances run?" in draft
        assert f"draft.yaml, line {line}: count: fill in how many outputs" in output
        assert 'key k000, value {"id": "000", "by": "b"}' in output
    else:
        assert "HOLDS exactly_once: 50 of 50 inputs committed exactly once" in output


def test_u2_lines_of_an_order_are_a_question(
    bootstrap: str, new_topic: Callable[..., str], checked: Checked
) -> None:
    """Story: an order becomes none to three lines under its own key. Nobody can tell lines from
    repetitions, so the draft asks and is not checked."""
    source, sink = new_topic(), new_topic()
    orders = [(0, f"o-{n:03}", f"o-{n:03}|{n % 4}") for n in range(100)]
    produce(bootstrap, source, orders)
    lines = [(0, key, f"{key}/{at}") for _, key, value in orders for at in range(int(value[-1]))]
    produce(bootstrap, sink, lines)
    draft, exit_code, output = checked(source, sink)
    assert exit_code == 3 and "does the pipeline promise several outputs" in draft, output

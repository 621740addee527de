"""The pytest plugin: its fixtures, as a test of somebody's own pipeline uses them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from topicproof.backend.address import Address
from topicproof.backend.errors import TopicproofError, UsageError
from topicproof.backend.harness.broker import Broker
from topicproof.backend.harness.program import Program
from topicproof.backend.harness.scratch_topics import Topic
from topicproof.backend.kafka.client_configs import idempotent_producer_config
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import ROOT, Settings
from topicproof.testing import Api, How, Proxy, Rule
from topicproof.validators.report import Report

pytest_plugins = ["topicproof.pytest_plugin"]
LOOP = ROOT / "tests" / "foreign" / "loop.py"
RECORDS = 200
SCRIPT = [sys.executable, "-c"]


@pytest.fixture(scope="session")
def topicproof_home(cluster: Services, settings: Settings) -> Path:
    """The home of all tests: Kafka and Spark are those of the fixture `cluster`."""
    assert cluster.bootstrap
    return settings.home


def test_a_killed_loop_turns_the_test_red(
    topicproof_broker: Broker,
    topicproof_program: Callable[..., Program],
    assert_exactly_once: Callable[..., Report],
    topicproof_topic: Callable[..., Topic],
) -> None:
    """Story: a loop commits its offsets after each batch, and stands still before it commits the
    first. It is killed when its outputs are ahead of its offsets. The message is a verdict with the
    offsets of the duplicates."""
    source = topicproof_topic("orders", committed=range(RECORDS))
    sink = topicproof_topic("invoices")
    command = [sys.executable, LOOP, topicproof_broker.bootstrap, source, sink, sink, "after"]
    loop = topicproof_program([*command, "1"])
    loop.kill_when(lambda: sink.end() > source.processed(str(sink)), timeout_s=180)
    successor = topicproof_program([*command, "0"])
    successor.wait_until(lambda: source.processed_by(str(sink)), timeout_s=180)
    successor.stop()
    repeated = sink.end() - RECORDS  # no transaction wrote the sink, so it has no markers
    assert repeated > 0
    with pytest.raises(AssertionError) as failed:
        assert_exactly_once(source, sink)
    text = str(failed.value)
    assert text.startswith(f"VIOLATED exactly_once: Not exactly once: {repeated} of "), text
    assert f"\n           {sink}-0@" in text and "[/" not in text
    assert f" (input {source}-0@" in text
    evidence = Path(text.rpartition("evidence: ")[2])
    assert (evidence / "report.json").exists()


def test_records_of_each_fate_are_told_apart(
    topicproof_topic: Callable[..., Topic],
    assert_exactly_once: Callable[..., Report],
) -> None:
    """Story: a sink holds the outputs of all inputs, after an aborted attempt. A second sink has
    the last output in a transaction that is still open, until it is committed."""
    source = topicproof_topic("orders", committed=range(3))
    sink = topicproof_topic("invoices", committed=[0, 1], aborted=[2], open=[2])
    assert not sink.settled() and sink.end() == 6  # four records and two markers
    with pytest.raises(AssertionError, match=r"^(VIOLATED|UNKNOWN) "):
        assert_exactly_once(source, sink)
    sink.transactions[-1].commit()
    report = assert_exactly_once(source, sink, {"order": "none"})
    assert report.fates["committed"] == 3 and report.fates["aborted"] == 1


def test_the_network_loses_what_a_rule_names(
    topicproof_proxy: Proxy, topicproof_topic: Callable[..., Topic]
) -> None:
    """Story: the answer to a Produce request is lost. The idempotent producer repeats it, and the
    topic has each record once."""
    topic = topicproof_topic("orders")
    rule = topicproof_proxy.arm(Rule(Api.PRODUCE, How.UNANSWERED, topic=str(topic)))
    topicproof_proxy.arm(Rule(Api.END_TXN, How.LOST))
    (idle,) = [one for one in topicproof_proxy.idle_rules() if "END_TXN" in one]
    assert idle.endswith("does the program use the proxy's bootstrap?")
    producer = Producer(idempotent_producer_config(Address(topicproof_proxy.bootstrap)))
    producer.produce(str(topic), b"once")
    assert producer.flush(30) == 0
    assert rule.struck == 1 and topic.end() == 1
    (idle,) = topicproof_proxy.idle_rules()
    assert re.search(r"END_TXN lost hit no request\. These came: \d PRODUCE, \d INIT_", idle)


def test_records_with_another_key_need_a_contract(
    assert_exactly_once: Callable[..., Report], topicproof_topic: Callable[..., Topic]
) -> None:
    """Story: the program changes the key, and the test gives no contract. The message says how
    records were matched, and how to match them."""
    payments = topicproof_topic("payments", committed=[(b"1", b'{"id": 1}'), (b"2", b'{"id": 2}')])
    receipts = topicproof_topic(
        "receipts", committed=[(b"ann", b'{"payment": 1}'), (b"bob", b'{"payment": 2}')]
    )
    with pytest.raises(AssertionError, match=r"UNKNOWN(?s:.)*Records were matched by key\. If"):
        assert_exactly_once(payments, receipts)
    identity = {"source": {"json": "$.id"}, "sink": {"json": "$.payment"}}
    assert assert_exactly_once(payments, receipts, {"identity": identity}).fates["committed"] == 2


def test_a_program_is_killed_at_random_moments_of_its_work(
    topicproof_program: Callable[..., Program], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Story: a program counts lines into a file and is killed three times. It goes on each time."""
    count = tmp_path / "count"
    script = "import sys, time\nwhile True:\n open(sys.argv[1], 'a').write('x')\n time.sleep(.001)"
    program = topicproof_program([*SCRIPT, script, count])

    def done() -> int:
        return count.stat().st_size if count.exists() else 0

    program.kill_randomly(done, until=300, times=3, seed=7)
    program.wait_until(lambda: done() >= 300)
    assert "(seed=7)" in capsys.readouterr().out and program.running
    program.kill()
    assert not program.running


def test_a_program_that_ends_early_shows_its_last_words(
    topicproof_program: Callable[..., Program],
) -> None:
    """Story: the program under test crashes at its start. The test fails at once, with its output,
    and not after a timeout."""
    program = topicproof_program([*SCRIPT, "print('no such table'); raise SystemExit(4)"])
    with pytest.raises(AssertionError, match=r"(?s)ended before all rows.*no such table"):
        program.wait_until(lambda: False, what="all rows")
    assert program.wait() == 4
    with pytest.raises(AssertionError, match="ended before the moment to be killed"):
        program.kill_when(lambda: True)
    with pytest.raises(TypeError, match="the figure that progress"):
        program.kill_randomly(lambda: 0, lambda: True)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="cannot be started: No such file"):
        topicproof_program(["no-such-program"])


@pytest.mark.parametrize(
    ("sink", "contract", "sentence"),
    [
        (["ledger", "rejects"], {}, "Judge each sink by itself"),
        ("ledger", {"sinks": [{"topic": "ledger"}]}, "The contract names sinks"),
        ("ledger", {"expct": "one_to_one"}, "expct: there is no such field"),
    ],
    ids=["two sinks", "sinks in the contract", "a typing error"],
)
def test_a_question_that_makes_no_sense_is_refused_in_a_sentence(
    topicproof_broker: Broker,
    assert_exactly_once: Callable[..., Report],
    sink: Any,
    contract: dict[str, Any],
    sentence: str,
) -> None:
    """Story: somebody tries what seems natural. The message says what to do instead, without the
    errors of the library that found the mistake."""
    assert topicproof_broker.bootstrap
    with pytest.raises(TopicproofError, match=sentence) as raised:
        assert_exactly_once("orders", sink, contract)
    assert raised.value.__cause__ is None


def test_a_given_kafka_is_not_struck(
    bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: TOPICPROOF_BOOTSTRAP names a shared cluster. Tests use it, and may not kill it."""
    from topicproof.backend.harness.broker import open_broker

    monkeypatch.setenv("TOPICPROOF_BOOTSTRAP", bootstrap)
    with open_broker(tmp_path) as broker:
        assert broker.bootstrap == bootstrap
        with pytest.raises(UsageError, match="Only brokers of the embedded Kafka can be struck"):
            broker.kill()


def test_the_plugin_is_cheap_to_load() -> None:
    """Story: a company installs Topicproof, and all of its test suites load the plugin."""
    asked = (
        "import sys, topicproof.pytest_plugin\nprint(*sorted({one.split('.')[0] for one in"
        " sys.modules} & {'confluent_kafka', 'kafka', 'pyspark', 'pydantic', 'rich', 'numpy'}))\n"
    )
    answer = subprocess.run(
        [sys.executable, "-W", "error", "-c", asked], capture_output=True, text=True, check=True
    )
    assert answer.stdout == "\n"

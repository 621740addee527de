"""The Kafka Streams application is killed in the middle of its work. Its successor must not write
an invoice twice."""

from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "Invoices.java"
ORDERS = 500


@pytest.fixture(scope="module")
def classpath(compiled):
    return compiled(SOURCE)


@pytest.mark.parametrize("variant", ["bug", "fixed"])
def test_every_order_has_one_invoice(
    variant,
    classpath,
    tmp_path,
    topicproof_broker,
    topicproof_topic,
    topicproof_program,
    assert_exactly_once,
):
    orders = topicproof_topic("orders", committed=range(ORDERS))
    invoices = topicproof_topic("invoices")
    group = f"{invoices}-app"
    java = ["java", "-Xmx192m", "-cp", classpath, "Invoices"]
    streams = topicproof_program(
        [*java, topicproof_broker.bootstrap, orders, invoices, group, tmp_path / "state", variant]
    )
    # The dangerous moment: outputs are written, and their offsets are not committed.
    streams.kill_when(
        lambda: invoices.end() >= 50 and invoices.end() != orders.processed(group), timeout_s=120
    )
    streams.start()
    streams.wait_until(lambda: orders.processed_by(group) and invoices.settled(), timeout_s=120)
    streams.stop()
    assert_exactly_once(orders, invoices)

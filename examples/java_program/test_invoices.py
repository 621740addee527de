"""The Java program is killed in the middle of its work. Its successor must not skip an order."""

from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "Invoices.java"
ORDERS = 300


@pytest.fixture(scope="module")
def classpath(compiled):
    return compiled(SOURCE)


@pytest.mark.parametrize("variant", ["bug", "fixed"])
def test_every_order_has_one_invoice(
    variant, classpath, topicproof_broker, topicproof_topic, topicproof_program, assert_exactly_once
):
    orders = topicproof_topic("orders", committed=range(ORDERS))
    invoices = topicproof_topic("invoices")
    group = f"{invoices}-app"
    java = ["java", "-Xmx128m", "-cp", classpath, "Invoices"]
    program = topicproof_program(
        [*java, topicproof_broker.bootstrap, orders, invoices, group, variant]
    )
    # The dangerous moment: offsets and outputs differ.
    program.kill_when(
        lambda: invoices.end() >= 20 and invoices.end() != orders.processed(group), timeout_s=120
    )
    program.start()
    program.wait_until(lambda: orders.processed_by(group) and invoices.settled(), timeout_s=120)
    program.stop()
    assert_exactly_once(orders, invoices)

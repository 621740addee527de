"""The loop is killed in the middle of its work. Its successor must not write an invoice twice."""

import sys
from pathlib import Path

import pytest

LOOP = Path(__file__).parent / "loop.py"


@pytest.mark.parametrize("variant", ["bug", "fixed"])
def test_every_order_has_one_invoice(
    variant, topicproof_broker, topicproof_topic, topicproof_program, assert_exactly_once
):
    orders = topicproof_topic("orders", committed=range(500))
    invoices = topicproof_topic("invoices")
    group = f"{invoices}-app"
    # The program starts here.
    loop = topicproof_program(
        [sys.executable, LOOP, topicproof_broker.bootstrap, orders, invoices, group, variant]
    )
    # The dangerous moment: outputs are written, and their offsets are not committed.
    loop.kill_when(lambda: invoices.end() >= 50 and invoices.end() != orders.processed(group))
    # Its successor starts here. Nothing restarts a killed program for you.
    loop.start()
    loop.wait_until(lambda: orders.processed_by(group) and invoices.settled())
    loop.stop()
    assert_exactly_once(orders, invoices)

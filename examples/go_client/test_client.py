"""The Go program is killed in the middle of its work. Its successor must not write an invoice
twice."""

import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
ORDERS = 500


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    found = tmp_path_factory.mktemp("go") / "invoices"
    subprocess.run(["go", "build", "-o", found, "."], cwd=FOLDER, check=True)
    return found


@pytest.mark.parametrize("variant", ["bug", "fixed"])
def test_every_order_has_one_invoice(
    variant, program, topicproof_broker, topicproof_topic, topicproof_program, assert_exactly_once
):
    orders = topicproof_topic("orders", committed=range(ORDERS))
    invoices = topicproof_topic("invoices")
    group = f"{invoices}-app"
    client = topicproof_program(
        [program, topicproof_broker.bootstrap, orders, invoices, group, variant]
    )
    # The dangerous moment: outputs are written, and their offsets are not committed.
    client.kill_when(lambda: invoices.end() >= 50 and invoices.end() != orders.processed(group))
    client.start()
    client.wait_until(lambda: orders.processed_by(group))
    client.stop()
    assert_exactly_once(orders, invoices)

"""The job runs twice, and its checkpoint is lost in between, as with a new volume. The second run
must not write an invoice twice."""

import sys
from pathlib import Path

import pytest

JOB = Path(__file__).parent / "job.py"
ORDERS = 200


@pytest.mark.parametrize("variant", ["bug", "fixed"])
def test_every_order_has_one_invoice(
    variant,
    tmp_path,
    topicproof_broker,
    topicproof_topic,
    topicproof_program,
    assert_exactly_once,
):
    orders = topicproof_topic("orders", committed=range(ORDERS))
    invoices = topicproof_topic("invoices")
    group = f"{invoices}-app"
    orders.start_group(group)
    command = [sys.executable, JOB, topicproof_broker.bootstrap, orders, invoices, group]
    for checkpoint in ("first", "second"):
        job = topicproof_program(
            [*command, (tmp_path / checkpoint).as_uri(), variant],
            env={"SPARK_REMOTE": topicproof_broker.spark_remote},
        )
        assert job.wait(timeout_s=180) == 0, job.output
    assert_exactly_once(orders, invoices)

"""The program dies between its outputs and its offsets. No payment may have two receipts."""

import json
import sys
from pathlib import Path

import pytest

from topicproof.testing import Api, How, Rule

PROGRAM = Path(__file__).parent / "receipts.py"
PAYMENTS = [
    json.dumps({"id": number, "cents": 100 + number, "customer": f"customer {number % 7}"})
    for number in range(200)
]
CONTRACT = {
    "identity": {"source": {"json": "$.id"}, "sink": {"json": "$.payment"}},
    "order": "none",  # receipts are partitioned by customer
}


@pytest.mark.parametrize("variant", ["bug", "fixed"])
def test_every_payment_has_one_receipt(
    variant, topicproof_proxy, topicproof_topic, topicproof_program, assert_exactly_once
):
    payments = topicproof_topic("payments", committed=PAYMENTS)
    receipts = topicproof_topic("receipts", partitions=2)
    group = f"{receipts}-app"
    # The network loses the request that commits the offsets, whichever way the program commits.
    rules = [
        topicproof_proxy.arm(Rule(api, How.LOST))
        for api in (Api.OFFSET_COMMIT, Api.TXN_OFFSET_COMMIT)
    ]
    program = topicproof_program(
        [sys.executable, PROGRAM],
        env={
            "BOOTSTRAP": topicproof_proxy.bootstrap,
            "SOURCE": str(payments),
            "SINK": str(receipts),
            "GROUP": group,
            "VARIANT": variant,
        },
    )
    program.kill_when(lambda: any(rule.struck for rule in rules))
    program.start()
    program.wait_until(lambda: payments.processed_by(group) and receipts.settled())
    program.stop()
    assert_exactly_once(payments, receipts, CONTRACT)

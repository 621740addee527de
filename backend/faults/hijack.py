"""Hijack: another process takes over the worker's transactional id, begins a transaction, and ends.

The broker fences the worker, and its task fails. The task's next attempt takes the id back.
"""

from __future__ import annotations

from collections.abc import Mapping

from topicproof.backend.address import Address
from topicproof.backend.errors import InjectedError
from topicproof.backend.faults.other import read_arguments, start
from topicproof.backend.kafka.transaction import TransactionalProducer

DONE_WITHIN_S = 60.0


def hijack(address: Address, transactional_id: str) -> None:
    """Wait until another process has taken the id. Raises InjectedError if it failed."""
    ended = start(
        __name__,
        bootstrap=address.bootstrap,
        client=dict(address.client),
        transactional_id=transactional_id,
    )
    if ended.wait(DONE_WITHIN_S) != 0:
        raise InjectedError(
            f"{transactional_id}: it could not be hijacked; its process ended with"
            f" {ended.returncode}."
        )


def _take_over(bootstrap: str, client: Mapping[str, str], transactional_id: str) -> None:
    with TransactionalProducer(Address(bootstrap, client), transactional_id) as successor:
        successor.producer.begin_transaction()


if __name__ == "__main__":
    _take_over(**read_arguments())

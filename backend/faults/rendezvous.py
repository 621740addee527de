"""Rendezvous: a worker waits at a step until the run's own process has carried out a fault.

Damage from outside the worker (a cut network, a killed broker) must also happen at a known step. So
the worker claims the fault in the journal and waits there for the director's answer. The answer
also proves that the fault fired.
"""

from __future__ import annotations

import time
from contextlib import suppress

from topicproof.backend.address import Address
from topicproof.backend.errors import ClusterError, InjectedError
from topicproof.backend.sink.entries import FaultPhase, FaultReport
from topicproof.backend.sink.journal import JournalReader

DONE_WITHIN_S = 120.0
LOOK_S = 0.05


def wait_for_the_run(address: Address, journal: str, fault: str) -> None:
    """Wait until the fault is under way. Raises InjectedError when the run's process cannot do
    it."""
    reader = JournalReader(address, journal)
    deadline = time.monotonic() + DONE_WITHIN_S
    try:
        while time.monotonic() < deadline:
            # The fault may strike the brokers.
            with suppress(ClusterError):
                for entry in reader.news():
                    if isinstance(entry, FaultReport) and entry.fault == fault:
                        if entry.what is FaultPhase.FAILED:
                            raise InjectedError(f"{fault}: {entry.said}")
                        return
            time.sleep(LOOK_S)
    finally:
        reader.close()
    raise InjectedError(f"{fault}: the run's process did not answer within {DONE_WITHIN_S:.0f} s.")

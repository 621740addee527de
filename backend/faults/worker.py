"""Faults that a worker inflicts on itself, each at its transaction and step, and random aborts.

Each fault strikes once in a source partition. The worker first claims it in the journal, so the
next task finds the claim whatever happens to this one.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Never

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource

from topicproof.backend.address import Address
from topicproof.backend.errors import ClusterError, InjectedError, TransactionAborted
from topicproof.backend.faults import zombie
from topicproof.backend.faults.by_hand import Presence
from topicproof.backend.faults.cluster_faults import move_offset
from topicproof.backend.faults.fault import Fault, Side
from topicproof.backend.faults.kinds import CRASH, ERROR, HIJACK, NETWORK, OFFSETS, REFUSED, ZOMBIE
from topicproof.backend.faults.other_process import hijack
from topicproof.backend.kafka.client_configs import REQUEST_TIMEOUT_MS, admin_config
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.sink.entries import Entry, FaultFired, FaultPhase, FaultReport, last_attempt
from topicproof.backend.sink.hooks import Step
from topicproof.backend.sink.journal import JournalReader, JournalWriter, read_journal
from topicproof.backend.sink.options import SinkOptions


@dataclass
class Injector:
    """The hooks of one source partition within one task."""

    by_hand: bool
    """Whether the journal gets this task's process, so that somebody can kill it."""
    slow_motion_ms: int
    """How long a transaction stays open when its records are in the log."""
    faults: tuple[Fault, ...]
    abort_probability: float
    seed: int
    sink: SinkOptions
    source: tuple[str, int]
    name: str
    """The writer's name in the journal: the transactional id if there is one."""
    task: str
    entries: list[Entry] = field(default_factory=list)
    """The journal's entries when this task began, and this task's claims."""
    padding: bytes = b""
    """An oversized value for the first input."""
    paddings: int = 0
    """Number of attempts that still get it."""
    presence: Presence | None = None

    def prepare(self) -> None:
        """Read the claims of earlier tasks."""
        if self.by_hand and self.sink.journal:
            self.presence = Presence(self.sink.address, self.sink.journal, self.task, self.source)
        if (self.faults or self.abort_probability > 0) and self.sink.journal:
            self.entries = read_journal(self.sink.address, self.sink.journal, on_worker=True)

    def client_settings(self) -> Mapping[str, int]:
        if any(fault.kind == REFUSED for fault in self.faults):
            return {"message_max_bytes": CLIENT_TAKES_BYTES}
        return {}

    def defended(self) -> bool:
        return not any(
            fault.kind == NETWORK and fault.word("defence") == "no" for fault in self.faults
        )

    def is_due(self, step: Step, sequence: int) -> bool:
        """Return whether a fault strikes at this step, claimed or not."""
        return any((fault.transaction, fault.step) == (sequence, step) for fault in self.faults)

    def reach(
        self,
        step: Step,
        sequence: int,
        inputs: tuple[int, int],
        journal: JournalWriter | None,
        flush: Callable[[], None],
    ) -> None:
        """Fire the plan's faults of this step. Raises whatever a fault raises."""
        if step is Step.PRODUCED and self.slow_motion_ms:
            flush()
            time.sleep(self.slow_motion_ms / 1000)
        for fault in self.faults:
            if fault.kind.side is Side.RUN and self.source[1] != 0:
                continue  # Outside damage happens once, at source partition 0.
            claim = FaultFired(self.task, str(fault), *self.source, sequence)
            if (fault.transaction, fault.step) == (sequence, step) and not self._fired(
                fault, claim
            ):
                flush()
                if journal is not None:
                    journal.append_acknowledged(claim)
                    self.entries.append(claim)
                self._fire(fault, *inputs)

    def maybe_abort(self, sequence: int, attempt: int, flush: Callable[[], None]) -> None:
        """Abort at random, from the plan's seed. Raises TransactionAborted."""
        draw = random.Random(f"{self.seed}/{self.source[1]}/{sequence}/{attempt}").random()
        if draw < self.abort_probability:
            flush()
            raise TransactionAborted("drawn by the plan's abort probability")

    def take_extra_value(self) -> bytes | None:
        """Return the oversized value, in as many attempts as the fault asks for."""
        if self.paddings == 0:
            return None
        self.paddings -= 1
        return self.padding

    def drop_extra_value(self) -> None:
        self.paddings = 0

    def close(self) -> None:
        if self.presence is not None:
            self.presence.close()

    def _fire(self, fault: Fault, first: int, following: int) -> None:
        sink = self.sink
        if fault.kind == CRASH:
            crash()
        elif fault.kind == ERROR:
            raise_error(fault, self._where)
        elif fault.kind == ZOMBIE and sink.journal is not None:
            zombie.stop_until_succeeded(sink.address, sink.journal, self.name, self.task)
        elif fault.kind == HIJACK:
            hijack(sink.address, self.name)
        elif fault.kind == REFUSED and sink.topic is not None:
            self.padding = oversized(sink.address, sink.topic)
            # Attempts of earlier tasks count.
            self.paddings = max(
                0,
                fault.number("times") - last_attempt(self.entries, *self.source, fault.transaction),
            )
        elif fault.kind.side is Side.RUN and sink.journal is not None:
            wait_for_the_run(sink.address, sink.journal, str(fault))
        elif fault.kind == OFFSETS:
            move_offset(
                fault,
                Cluster(sink.address),
                sink.group,
                self.source,
                first,
                following,
            )
            if fault.word("replay") == "yes":
                raise_error(fault, self._where)

    def _fired(self, fault: Fault, claim: FaultFired) -> bool:
        return any(
            isinstance(entry, FaultFired)
            and (entry.fault, entry.source_topic, entry.source_partition)
            == (claim.fault, claim.source_topic, claim.source_partition)
            and (fault.kind != REFUSED or entry.task == claim.task)
            for entry in self.entries
        )

    @property
    def _where(self) -> str:
        return f"{self.source[0]}-{self.source[1]}"


def crash() -> None:
    """End this process without flushing or closing anything."""
    os.kill(os.getpid(), signal.SIGKILL)


def raise_error(fault: Fault, where: str) -> Never:
    raise InjectedError(f"{where}: raised on purpose ({fault}).")


CLIENT_TAKES_BYTES = 1_000_000_000
"""The client's own limit, raised so that the broker refuses the record."""


def oversized(address: Address, topic: str) -> bytes:
    """Return a random value that is larger than the topic allows, even compressed."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    admin = AdminClient(admin_config(address))
    settings = admin.describe_configs([resource], request_timeout=REQUEST_TIMEOUT_MS / 1000)[
        resource
    ].result()
    return os.urandom(int(settings["max.message.bytes"].value) + 1)


DONE_WITHIN_S = 120.0
LOOK_S = 0.05


def wait_for_the_run(address: Address, journal: str, fault: str) -> None:
    """Wait until the fault is under way. Raises InjectedError when the run's process cannot do
    it."""
    reader = JournalReader(address, journal, on_worker=True)
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

"""The rows of the matrix: a trouble is a fault, and what theory expects of each promise under it.

Damage that only exactly-once can prevent is an expectation of the table, never a later exception.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from topicproof.backend.matrix.proofs import (
    Trial,
    aborted,
    arrived_late,
    claimed,
    fenced,
    nothing_fired,
    reported,
    source_has_attempts,
    taken_over,
)
from topicproof.backend.sink.entries import FaultPhase
from topicproof.backend.sink.hooks import Step

BROKERS = 3
"""Number of brokers with which a cluster survives the loss of one."""


@dataclass(frozen=True)
class Trouble:
    """A row of the matrix: a fault, and what theory expects of each promise under it."""

    name: str
    title: str
    plan: Mapping[str, Any]
    proof: Callable[[Trial], str | None]
    """Returns proof that the fault fired, or None."""
    expected: tuple[str | None, ...]
    """For each promise without `like`: the damages that must be found; a question mark means may.
    None: there is nothing to strike. `refused`: the sink must refuse to continue."""
    attempts: bool = False
    """Whether every transaction of the source was aborted once before it committed."""
    brokers: int = 1
    """Number of brokers that the cluster must have. If more than one, brokers of the embedded Kafka
    are struck."""
    brokers_max: int = BROKERS
    """Number of brokers that the cluster may have."""
    resumes: int = 0
    """How often a run that fails is resumed, as its user would when the cause is gone."""

    def possible(self, brokers: int) -> bool:
        """Return whether it can strike a cluster of so many brokers."""
        return self.brokers <= brokers <= self.brokers_max


def _at_each_step(
    kind: str, does: str, expected: Mapping[Step, tuple[str | None, ...]]
) -> Iterator[Trouble]:
    """Yield a fault inside the worker at each step of the second transaction."""
    for step in (possible for possible in Step if possible in expected):
        name = f"{kind}-{step}".replace("_", "-")
        plan = {"faults": [f"{kind}@transaction=2,step={step}"]}
        yield Trouble(name, f"{does} {_WHEN[step]}", plan, taken_over, expected[step])


_WHEN: Mapping[Step, str] = {
    Step.BEGUN: "before it has produced",
    Step.PRODUCING: "with half of its records in the log",
    Step.PRODUCED: "with all of its records in the log",
    Step.OFFSET_SENT: "with its source offset handed over",
    Step.COMMITTING: "with its commit sent and no answer received",
    Step.COMMITTED: "after the commit, before it is reported",
}

_WORKER_LOST: Mapping[Step, tuple[str, ...]] = {
    Step.BEGUN: ("", "", "", "", ""),
    Step.PRODUCING: ("hidden", "duplicates", "duplicates", "gaps", "gaps"),
    Step.PRODUCED: ("hidden", "duplicates", "duplicates", "", ""),
    Step.OFFSET_SENT: ("hidden", "", "", "gaps", "gaps"),
    Step.COMMITTED: ("", "", "", "", ""),
}
"""Exactly-once aborts the open transaction, which hides its records. At-least-once repeats records
that reached the log before their offset. At-most-once loses records whose offset reached the log
before them."""

_NO_TRANSACTIONS = (None, None, None, None)


def _network(request: str, how: str, expected: tuple[str | None, ...], **plan: Any) -> Trouble:
    """Damage a request of the second transaction on its way."""
    fault = f"network@transaction=2,request={request},how={how}"
    title = f"a request ({request}) is {how}"
    return Trouble(
        f"{request}-{how}",
        title,
        {"faults": [fault], **plan},
        reported(FaultPhase.STRUCK),
        expected,
    )


def _ghost(request: str, title: str, expected: tuple[str | None, ...], **plan: Any) -> Trouble:
    """Let a request of the second transaction arrive when the third one has written
    (KAFKA-17754)."""
    fault = f"network@transaction=2,request={request},how=ghost,seconds=60"
    plan["faults"] = [fault, *plan.get("faults", ())]
    # One partition: without transactions, nothing else shows which requests follow in the same
    # producer.
    return Trouble(f"ghost-{request}", title, {**plan, "partitions": 1}, arrived_late, expected)


def _broker(role: str, how: str) -> Trouble:
    """Strike the leader of a role's partition in the second transaction. Without transactions,
    timing decides whether records are repeated or lost."""
    keeps = {
        "source": "leads the source",
        "sink": "leads the sink",
        "offsets": "keeps the group's offsets",
    }
    says = {
        "kill": "is killed and comes back",
        "pause": "pauses for a while",
        "isolate": "is cut off from its peers until they have replaced it",
    }
    # A controller misses a broker after 9 s without a heartbeat (broker.session.timeout.ms).
    # Electing another controller first took up to 13 s.
    seconds = ",seconds=16" if how == "isolate" else ""
    others = (
        ("duplicates?", None, "gaps?", None)
        if how == "kill" and role in keeps
        else _NO_TRANSACTIONS
    )
    return Trouble(
        f"broker-{role}-{how}",
        f"the broker that {keeps.get(role, 'keeps the transactions')} {says[how]}",
        {"faults": [f"broker@transaction=2,role={role},how={how}{seconds}"]},
        reported(FaultPhase.DONE),
        ("hidden?", *others),
        brokers=BROKERS,
    )


TABLE: tuple[Trouble, ...] = (
    Trouble("none", "nothing goes wrong", {}, nothing_fired, ("", "", "", "", "")),
    Trouble(
        "abort",
        "transactions fail at random, by the seed",
        {"abort_probability": 0.4},
        aborted,
        ("hidden", "duplicates", "duplicates", "gaps", "gaps"),
    ),
    *_at_each_step(
        "crash",
        "the worker is killed",
        {**_WORKER_LOST, Step.COMMITTING: ("hidden?", *_NO_TRANSACTIONS)},
    ),
    *_at_each_step("error", "the worker's code fails", _WORKER_LOST),
    Trouble(
        "zombie",
        "the worker pauses while its successor begins, then continues",
        {"faults": ["zombie@transaction=2"]},
        fenced,
        # Without transactions nothing fences a zombie: it writes beside its successor.
        (
            "hidden",
            "duplicates inversions?",
            "duplicates inversions?",
            "duplicates?",
            "duplicates?",
        ),
    ),
    Trouble(
        "hijack",
        "another process takes the transactional id over",
        {"faults": ["hijack@transaction=2"]},
        fenced,
        ("hidden", *_NO_TRANSACTIONS),
    ),
    Trouble(
        "refused",
        "the broker refuses a record",
        {"faults": ["refused@transaction=2"]},
        aborted,
        ("hidden?", *_NO_TRANSACTIONS),
    ),
    *(
        Trouble(
            f"offsets-{how}",
            f"the group's offset is {how} behind the sink's back",
            {"faults": [f"offsets@transaction=2,how={how}"]},
            claimed,
            ("refused",) * 5,
        )
        for how in ("rewound", "forwarded", "deleted")
    ),
    _network("produce", "unanswered", ("", "", "duplicates", "", "")),
    _network("produce", "lost", ("", "", "", "", "gaps")),
    _network("partitions", "unanswered", ("", *_NO_TRANSACTIONS)),
    _network("offset", "unanswered", ("", "duplicates?", "duplicates?", "gaps?", "gaps?")),
    _network("end", "unanswered", ("", *_NO_TRANSACTIONS)),
    _network("end", "late", ("", *_NO_TRANSACTIONS)),
    # Several requests in flight need a transaction of several batches.
    _network(
        "produce",
        "overtaken",
        ("hidden?", "", "inversions", "", "inversions"),
        records=60_000,
        partitions=1,
        per_transaction=30_000,
    ),
    _ghost(
        "end",
        "a repeated commit arrives in the next transaction, which then fails",
        ("hidden", *_NO_TRANSACTIONS),
        faults=["error@transaction=3,step=produced"],
    ),
    # The seed aborts the second transaction once.
    _ghost(
        "abort",
        "a repeated abort arrives in the next attempt",
        ("hidden", *_NO_TRANSACTIONS),
        abort_probability=0.3,
        seed=2,
    ),
    _ghost(
        "partitions",
        "a repeated request to add partitions arrives in the next transaction",
        ("", *_NO_TRANSACTIONS),
    ),
    _ghost(
        "offset",
        "a repeated offset arrives after the next one, whose worker then fails",
        ("", "duplicates", "duplicates", "duplicates", "duplicates"),
        faults=["error@transaction=3,step=committed"],
    ),
    _ghost(
        "produce",
        "a repeated batch arrives in the next transaction",
        ("", "", "duplicates", "", "inversions"),
    ),
    Trouble(
        "isolated",
        "the worker is cut off from the brokers for a moment",
        {"faults": ["isolated@transaction=2,seconds=3"]},
        reported(FaultPhase.HEALED),
        ("", "", "", "", ""),
    ),
    Trouble(
        "isolated-expired",
        "the worker is cut off from the brokers until they have aborted its transaction",
        {"faults": ["isolated@transaction=2,seconds=20"], "transaction_timeout_ms": 2_000},
        reported(FaultPhase.HEALED),
        ("hidden", *_NO_TRANSACTIONS),
    ),
    Trouble(
        "open",
        "a foreign transaction is left open in the sink, and aborted",
        {"faults": ["open@transaction=2,seconds=1"]},
        reported(FaultPhase.HEALED),
        ("hidden", "hidden", "hidden", "hidden", "hidden"),
    ),
    Trouble(
        "open-expired",
        "a foreign transaction is left open in the sink until the coordinator aborts it",
        {"faults": ["open@transaction=2,end=expiry,seconds=2"]},
        reported(FaultPhase.HEALED),
        ("hidden", *_NO_TRANSACTIONS),
    ),
    Trouble(
        "member",
        "another consumer joins the run's group for a moment",
        {"faults": ["member@transaction=2,seconds=1"]},
        reported(FaultPhase.HEALED),
        # While a group has a member, Kafka refuses offsets from others outside of transactions: the
        # other guarantees stop after as many attempts as the plan allows.
        ("", *_NO_TRANSACTIONS),
    ),
    *(
        Trouble(
            f"restart-{name}",
            f"the query is stopped and started again {how}",
            {"faults": [f"restart@transaction=2,{words}"]},
            reported(FaultPhase.DONE),
            # The stopped worker may still write beside its successor.
            (
                "hidden?",
                "duplicates? inversions?",
                "duplicates? inversions?",
                "gaps? duplicates?",
                "gaps? duplicates?",
            ),
        )
        for name, how, words in (
            ("kept", "with its checkpoint", "checkpoint=kept"),
            ("lost", "without its checkpoint", "checkpoint=lost"),
            ("more", "with more partitions", "checkpoint=lost,partitions=more"),
        )
    ),
    *(
        Trouble(
            f"rights-{to}",
            f"the right to {what} is denied until the run fails; then the run is resumed",
            {"faults": [f"rights@transaction=2,step=begun,to={to},seconds=60"]},
            reported(FaultPhase.HEALED),
            ("hidden?", *_NO_TRANSACTIONS),
            brokers_max=1,  # More embedded brokers keep no ACLs.
            resumes=1,
        )
        for to, what in (
            ("sink", "write to the sink"),
            ("id", "use the transactional ids"),
            ("group", "commit offsets of the group"),
        )
    ),
    Trouble(
        "uncommitted",
        "a source full of aborted attempts is read at read_uncommitted",
        {"source": {"isolation": "read_uncommitted"}},
        source_has_attempts,
        ("aborted-inputs",) * 5,
        attempts=True,
    ),
    *(
        _broker(role, how)
        for how in ("kill", "pause", "isolate")
        for role in ("source", "sink", "transactions", "offsets")
    ),
    Trouble(
        "unclean",
        "a replica of the sink is elected that missed what its leader had acknowledged",
        # One partition: it strikes partition 0, and others may write last.
        {"faults": ["unclean@transaction=2,step=produced,seconds=20"], "partitions": 1},
        reported(FaultPhase.HEALED),
        # Kafka loses records and markers. Timing decides which. A lost ABORT marker lets the next
        # COMMIT marker of the same producer commit what was aborted. A lost COMMIT marker lets it
        # commit what should have been committed before: every record is there, by a wrong marker.
        ("gaps? duplicates? hidden? hanging? misattributed?", *("gaps? duplicates?",) * 4),
        brokers=BROKERS,
    ),
)

RESTARTED = next(one for one in TABLE if one.name == "restart-kept")

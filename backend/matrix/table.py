"""The matrix as data: what theory expects of each guarantee under each fault, and the proof that a
fault fired.

A column is a promise: a guarantee and how its producer keeps it. A row is a trouble: a fault, and
its damage to each promise. Damage that only exactly-once can prevent is an expectation of the
table, never a later exception.

Two columns combine at-least-once with a step that drops repeats. Theory expects no damage there
where at-least-once has duplicates:

- `at_least_once-upsert` writes into a table (SQLite) by lineage. A repeated row replaces itself.
- `at_least_once-deduplicated` is the topic of `at_least_once` for a reader that keeps the first
  record of every lineage (source topic, partition, offset and output index, from the sink's
  header). This also restores the order, because an input's offset is committed only after its
  output is in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from topicproof.backend.errors import UsageError
from topicproof.backend.faults.proxy import IN_NEXT
from topicproof.backend.sink.hooks import Step
from topicproof.backend.sink.journal import (
    Declared,
    Entry,
    FaultFired,
    FaultTold,
    TaskStarted,
    Told,
    TransactionEnded,
)
from topicproof.validators.finding import Guarantee
from topicproof.validators.report import Report

SIZE: Mapping[str, Any] = {"records": 600, "partitions": 2, "per_transaction": 100, "seed": 3}
"""The plan of every cell: at least three transactions in each of two partitions, so that one
follows the fault."""
BROKERS = 3
"""Number of brokers with which a cluster survives the loss of one."""


class Damage(StrEnum):
    """What a sink may show. `HIDDEN` (records of aborted transactions) is harmless."""

    DUPLICATES = "duplicates"
    GAPS = "gaps"
    INVERSIONS = "inversions"
    PHANTOMS = "phantoms"
    ABORTED_INPUTS = "aborted-inputs"
    """Outputs of aborted inputs."""
    HANGING = "hanging"
    """Partitions that a transaction holds which nothing will end."""
    HIDDEN = "hidden"


KINDS: Mapping[Damage, str] = {
    Damage.DUPLICATES: "duplicate",
    Damage.GAPS: "gap",
    Damage.INVERSIONS: "order",
    Damage.PHANTOMS: "phantom",
    Damage.ABORTED_INPUTS: "aborted_input",
    Damage.HANGING: "hanging",
}
"""The kind of finding for each damage. Only rows that no other kind explains count."""


@dataclass(frozen=True)
class Promise:
    """A column of the matrix: a guarantee and how its producer keeps it."""

    name: str
    plan: Mapping[str, Any]
    like: str | None = None
    """Another promise with the same expectations, except repeats."""
    under: frozenset[str] = frozenset()
    """With `like`: the troubles that it is tried under."""
    deduplicated: bool = False
    """Whether the sink is judged from the view of a reader that drops repeats."""

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE if self.deduplicated else Guarantee(self.plan["guarantee"])


@dataclass(frozen=True)
class Trial:
    """The events of a cell: evidence for its proof."""

    entries: Sequence[Entry]
    """The run's journal."""
    report: Report
    partitions: int
    """Number of source partitions. A fault inside the worker fires once in each."""


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


@dataclass(frozen=True)
class Cell:
    """A promise under a trouble: the plan of its run, and the damage that theory expects."""

    promise: Promise
    trouble: Trouble
    plan: Mapping[str, Any]
    must: frozenset[Damage]
    may: frozenset[Damage]
    refused: bool
    may_refuse: bool = False

    @property
    def guarantee(self) -> str:
        return self.promise.name

    @property
    def fault(self) -> str:
        return self.trouble.name


_LIKE = "at_least_once"
_REPEATS = frozenset(
    {"abort", "crash-producing", "crash-produced", "crash-offset-sent", "error-produced", "zombie"}
)
"""Troubles under which at-least-once repeats inputs."""

PROMISES: tuple[Promise, ...] = (
    Promise("exactly_once", {"guarantee": "exactly_once"}),
    Promise("at_least_once", {"guarantee": "at_least_once"}),
    Promise("at_least_once-plain", {"guarantee": "at_least_once", "idempotence": False}),
    Promise("at_most_once", {"guarantee": "at_most_once"}),
    Promise("at_most_once-unacknowledged", {"guarantee": "at_most_once", "acks": "0"}),
    Promise(
        "at_least_once-upsert",
        {"scenario": "table", "guarantee": "at_least_once"},
        like=_LIKE,
        under=_REPEATS | {"none"},
    ),
    Promise(
        "at_least_once-deduplicated",
        {"guarantee": "at_least_once"},
        like=_LIKE,
        under=_REPEATS | {"none", "produce-unanswered", "isolated"},
        deduplicated=True,
    ),
)
"""Those without `like` first, in the order of `Trouble.expected`."""


def _quiet(trial: Trial) -> str | None:
    """Prove that no fault was planned and none fired."""
    loud = _fired(trial) or any(_is(entry, Declared.ABORTED) for entry in trial.entries)
    return None if loud else "no fault fired and no transaction was aborted"


def _aborted(trial: Trial) -> str | None:
    declared = sum(_is(entry, Declared.ABORTED) for entry in trial.entries)
    return f"the journal declares {declared} aborted transactions" if declared else None


def _taken_over(trial: Trial) -> str | None:
    """Prove that the fault fired in every partition, and another task took over each of them."""
    for number, fired in enumerate(trial.entries):
        if isinstance(fired, FaultFired) and not any(
            isinstance(later, TaskStarted)
            and later.source_partition == fired.source_partition
            and later.task != fired.task
            for later in trial.entries[number:]
        ):
            return None
    struck = len(_fired(trial))
    if struck < trial.partitions:
        return None
    return f"it fired in {struck} partitions, and another task took each of them over"


def _fenced(trial: Trial) -> str | None:
    """Prove the same. With transactions, the journal must also declare the replaced worker
    fenced."""
    taken = _taken_over(trial)
    if taken is None or trial.report.guarantee is not Guarantee.EXACTLY_ONCE:
        return taken
    fenced = {
        entry.source_partition
        for entry in trial.entries
        if isinstance(entry, TransactionEnded) and entry.outcome is Declared.FENCED
    }
    return f"{taken}; the journal declares it fenced" if len(fenced) == trial.partitions else None


def _claimed(trial: Trial) -> str | None:
    struck = len(_fired(trial))
    return f"it fired in {struck} partitions" if struck else None


def _fired(trial: Trial) -> set[int]:
    """Return the partitions in which a fault fired."""
    return {entry.source_partition for entry in trial.entries if isinstance(entry, FaultFired)}


def _told(what: Told) -> Callable[[Trial], str | None]:
    """Prove a fault by the reports of the run's own process."""

    def proof(trial: Trial) -> str | None:
        said = [
            entry.said
            for entry in trial.entries
            if isinstance(entry, FaultTold) and entry.what is what
        ]
        # Retries repeat entries when the fault struck the journal's own leader.
        return "; ".join(dict.fromkeys(said)) or None

    return proof


def _haunted(trial: Trial) -> str | None:
    """Prove that a request was struck and arrived late; with transactions, in the next one."""
    struck, arrived = _told(Told.STRUCK)(trial), _told(Told.HEALED)(trial)
    if struck is None or arrived is None:
        return None
    transactional = trial.report.guarantee is Guarantee.EXACTLY_ONCE
    return f"{struck}; {arrived}" if IN_NEXT in arrived or not transactional else None


def _attempted(trial: Trial) -> str | None:
    """Prove that the source holds aborted records besides committed ones and markers."""
    held = sum(p.lso - p.start for p in trial.report.source.partitions)
    aborted = held - trial.report.source_records
    return (
        f"{aborted} of {held} offsets of the source are not committed records"
        if aborted > held / 3
        else None
    )


def _is(entry: Entry, outcome: Declared) -> bool:
    return isinstance(entry, TransactionEnded) and entry.outcome is outcome


def _at_each_step(
    kind: str, does: str, expected: Mapping[Step, tuple[str | None, ...]]
) -> Iterator[Trouble]:
    """Yield a fault inside the worker at each step of the second transaction."""
    for step in (one for one in Step if one in expected):
        name = f"{kind}-{step}".replace("_", "-")
        plan = {"faults": [f"{kind}@transaction=2,step={step}"]}
        yield Trouble(name, f"{does} {_WHEN[step]}", plan, _taken_over, expected[step])


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


def _network(request: str, how: str, *expected: str | None, **plan: Any) -> Trouble:
    """Damage a request of the second transaction on its way."""
    fault = f"network@transaction=2,request={request},how={how}"
    title = f"a request ({request}) is {how}"
    return Trouble(
        f"{request}-{how}", title, {"faults": [fault], **plan}, _told(Told.STRUCK), expected
    )


def _ghost(request: str, title: str, *expected: str | None, **plan: Any) -> Trouble:
    """Let a request of the second transaction arrive when the third one has written
    (KAFKA-17754)."""
    fault = f"network@transaction=2,request={request},how=ghost,seconds=60"
    plan["faults"] = [fault, *plan.get("faults", ())]
    # One partition: without transactions, nothing else shows which requests follow in the same
    # producer.
    return Trouble(f"ghost-{request}", title, {**plan, "partitions": 1}, _haunted, expected)


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
        _told(Told.DONE),
        ("hidden?", *others),
        brokers=BROKERS,
    )


TABLE: tuple[Trouble, ...] = (
    Trouble("none", "nothing goes wrong", {}, _quiet, ("", "", "", "", "")),
    Trouble(
        "abort",
        "transactions fail at random, by the seed",
        {"abort_probability": 0.4},
        _aborted,
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
        _fenced,
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
        _fenced,
        ("hidden", *_NO_TRANSACTIONS),
    ),
    Trouble(
        "refused",
        "the broker refuses a record",
        {"faults": ["refused@transaction=2"]},
        _aborted,
        ("hidden?", *_NO_TRANSACTIONS),
    ),
    *(
        Trouble(
            f"offsets-{how}",
            f"the group's offset is {how} behind the sink's back",
            {"faults": [f"offsets@transaction=2,how={how}"]},
            _claimed,
            ("refused",) * 5,
        )
        for how in ("rewound", "forwarded", "deleted")
    ),
    _network("produce", "unanswered", "", "", "duplicates", "", ""),
    _network("produce", "lost", "", "", "", "", "gaps"),
    _network("partitions", "unanswered", "", *_NO_TRANSACTIONS),
    _network("offset", "unanswered", "", *("duplicates?",) * 2, *("gaps?",) * 2),
    _network("end", "unanswered", "", *_NO_TRANSACTIONS),
    _network("end", "late", "", *_NO_TRANSACTIONS),
    # Several requests in flight need a transaction of several batches.
    _network(
        *("produce", "overtaken", "hidden?", "", "inversions", "", "inversions"),
        records=60_000,
        partitions=1,
        per_transaction=30_000,
    ),
    _ghost(
        *("end", "a repeated commit arrives in the next transaction, which then fails"),
        *("hidden", *_NO_TRANSACTIONS),
        faults=["error@transaction=3,step=produced"],
    ),
    # The seed aborts the second transaction once.
    _ghost(
        *("abort", "a repeated abort arrives in the next attempt"),
        *("hidden", *_NO_TRANSACTIONS),
        abort_probability=0.3,
        seed=2,
    ),
    _ghost(
        *("partitions", "a repeated request to add partitions arrives in the next transaction"),
        *("", *_NO_TRANSACTIONS),
    ),
    _ghost(
        *("offset", "a repeated offset arrives after the next one, whose worker then fails"),
        *("", "duplicates", "duplicates", "duplicates", "duplicates"),
        faults=["error@transaction=3,step=committed"],
    ),
    _ghost(
        *("produce", "a repeated batch arrives in the next transaction"),
        *("", "", "duplicates", "", "inversions"),
    ),
    Trouble(
        "isolated",
        "the worker is cut off from the brokers for a moment",
        {"faults": ["isolated@transaction=2,seconds=3"]},
        _told(Told.HEALED),
        ("", "", "", "", ""),
    ),
    Trouble(
        "isolated-expired",
        "the worker is cut off from the brokers until they have aborted its transaction",
        {"faults": ["isolated@transaction=2,seconds=20"], "transaction_timeout_ms": 2_000},
        _told(Told.HEALED),
        ("hidden", *_NO_TRANSACTIONS),
    ),
    Trouble(
        "open",
        "a foreign transaction is left open in the sink, and aborted",
        {"faults": ["open@transaction=2,seconds=1"]},
        _told(Told.HEALED),
        ("hidden", "hidden", "hidden", "hidden", "hidden"),
    ),
    Trouble(
        "open-expired",
        "a foreign transaction is left open in the sink until the coordinator aborts it",
        {"faults": ["open@transaction=2,end=expiry,seconds=2"]},
        _told(Told.HEALED),
        ("hidden", *_NO_TRANSACTIONS),
    ),
    Trouble(
        "member",
        "another consumer joins the run's group for a moment",
        {"faults": ["member@transaction=2,seconds=1"]},
        _told(Told.HEALED),
        # While a group has a member, Kafka refuses offsets from others outside of transactions: the
        # other guarantees stop after as many attempts as the plan allows.
        ("", *_NO_TRANSACTIONS),
    ),
    *(
        Trouble(
            f"restart-{name}",
            f"the query is stopped and started again {how}",
            {"faults": [f"restart@transaction=2,{words}"]},
            _told(Told.DONE),
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
            _told(Told.HEALED),
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
        _attempted,
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
        _told(Told.HEALED),
        # Kafka loses records and markers. Timing decides which. A lost ABORT marker lets the next
        # COMMIT marker of the same producer commit what was aborted.
        ("gaps? duplicates? hidden? hanging?", *("gaps? duplicates?",) * 4),
        brokers=BROKERS,
    ),
)

SMALL = frozenset(
    {
        ("exactly_once", "none"),
        ("exactly_once", "abort"),
        ("exactly_once", "crash-produced"),
        ("at_least_once", "crash-produced"),
        ("at_least_once-deduplicated", "crash-produced"),
        ("at_most_once", "crash-offset-sent"),
    }
)
"""A first impression: each guarantee's typical damage, and a reader that drops repeats."""


RESTARTED = next(one for one in TABLE if one.name == "restart-kept")


def cells(only: Sequence[str] = (), small: bool = False, brokers: int | None = None) -> list[Cell]:
    """Return the cells of the matrix that match any of `only` (`guarantee=NAME,fault=NAME`).

    A name also matches longer names that begin with it: `fault=crash` is every crash. Cells that
    a cluster of so many brokers cannot run are left out; None: all are returned. Raises UsageError
    for an unknown name, or if no cell is left.
    """
    found = [
        _cell(promise, trouble, expected)
        for promise in PROMISES
        for trouble in TABLE
        if (expected := _expected_of(promise, trouble)) is not None
        and (not small or (promise.name, trouble.name) in SMALL)
    ]
    wanted = [_filter(text) for text in only]
    chosen = [cell for cell in found if not wanted or any(_fits(cell, one) for one in wanted)]
    possible = [cell for cell in chosen if brokers is None or cell.trouble.possible(brokers)]
    if chosen and not possible:
        raise UsageError(
            f"These cells strike brokers, and need {BROKERS} embedded brokers. Add --brokers"
            f" {BROKERS} and remove --bootstrap."
        )
    return possible


def in_real_time(wanted: Sequence[Cell]) -> list[Cell]:
    """Return the cells in real time, without those that write a table, which it does not support.

    A task that fails ends its whole query there, and the query starts again. So what makes one fail
    may show what a restart shows.
    """
    return [
        replace(
            cell,
            plan={**cell.plan, "trigger": "real_time"},
            may=cell.may | _may_restart(cell.promise) if "faults" in cell.plan else cell.may,
        )
        for cell in wanted
        if cell.plan.get("scenario") != "table"
    ]


def _may_restart(promise: Promise) -> frozenset[Damage]:
    return _cell(promise, RESTARTED, _expected_of(promise, RESTARTED) or "").may


def _expected_of(promise: Promise, trouble: Trouble) -> str | None:
    """Return the expectation in the words of `Trouble.expected`; None if there is nothing to
    try."""
    own = [one.name for one in PROMISES if one.like is None]
    if promise.like is None:
        return trouble.expected[own.index(promise.name)]
    if trouble.name not in promise.under:
        return None
    expected = (trouble.expected[own.index(promise.like)] or "").split()
    dropped = {Damage.DUPLICATES.value, Damage.INVERSIONS.value}
    return " ".join(word for word in expected if word.removesuffix("?") not in dropped)


def _cell(promise: Promise, trouble: Trouble, expected: str) -> Cell:
    words = set(expected.split()) - {"refused"}
    return Cell(
        promise,
        trouble,
        {**SIZE, **promise.plan, **trouble.plan},
        frozenset(Damage(word) for word in words if not word.endswith("?")),
        frozenset(Damage(word[:-1]) for word in words if word.endswith("?")),
        "refused" in expected,
    )


def _filter(text: str) -> dict[str, str]:
    known = {"guarantee": [one.name for one in PROMISES], "fault": [one.name for one in TABLE]}
    wanted = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        if name not in known:
            raise UsageError(
                f"--only {text}: expected guarantee=NAME, fault=NAME or both with a comma between."
            )
        if not any(_begins(one, value) for one in known[name]):
            raise UsageError(
                f"--only {text}: there is no {name} {value!r}. Known: {', '.join(known[name])}."
            )
        wanted[name] = value
    return wanted


def _fits(cell: Cell, wanted: Mapping[str, str]) -> bool:
    return all(_begins(getattr(cell, name), value) for name, value in wanted.items())


def _begins(name: str, value: str) -> bool:
    return name == value or name.startswith(f"{value}-")

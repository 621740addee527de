"""The matrix: every guarantee against every fault, each cell a real small run, judged from its sink.

`TABLE` says what theory expects of each cell. A cell is a surprise when its sink shows damage that was not expected, or
lacks damage that was; when its verdict is not that of its guarantee; or when nothing proves that its fault fired: an
experiment in which nothing went wrong shows nothing. What no guarantee but exactly-once can fence is an expectation of
the table, never an exception made afterwards.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from backend.errors import EvidenceError, TopicproofError, UsageError
from backend.faults.fault import Step
from backend.history.store import History
from backend.pipeline.journal import (
    Declared,
    Entry,
    FaultFired,
    FaultTold,
    TaskStarted,
    Told,
    TransactionEnded,
    read_journal,
)
from backend.pipeline.plan import make_plan
from backend.pipeline.run import clean, create, execute, make_context
from backend.services import Services
from backend.settings import Settings
from validators.expectation import EXEMPT
from validators.finding import Guarantee, Outcome
from validators.report import Report

STATE = "matrix.json"
SIZE: Mapping[str, Any] = {"records": 600, "partitions": 2, "per_transaction": 100, "seed": 3}
"""Of every cell: three transactions or more in each of two partitions, so that one follows whatever is struck."""


class Damage(StrEnum):
    """What a sink can show. `HIDDEN` is no harm: records of aborted transactions, which read_committed withholds."""

    DUPLICATES = "duplicates"
    GAPS = "gaps"
    INVERSIONS = "inversions"
    PHANTOMS = "phantoms"
    HIDDEN = "hidden"


_KINDS: Mapping[Damage, str] = {
    Damage.DUPLICATES: "duplicate",
    Damage.GAPS: "gap",
    Damage.INVERSIONS: "order",
    Damage.PHANTOMS: "phantom",
}
"""Which finding counts which damage; only rows that no other kind explains."""


@dataclass(frozen=True)
class Promise:
    """A row of the matrix: a guarantee and how its producer keeps it."""

    name: str
    plan: Mapping[str, Any]


@dataclass(frozen=True)
class Trial:
    """What has happened in a cell: the witnesses of its proof."""

    entries: Sequence[Entry]
    """The run's journal."""
    report: Report
    partitions: int
    """Of the source: a fault inside the worker fires once in each."""


@dataclass(frozen=True)
class Trouble:
    """A column of the matrix: a fault, and what theory expects of each promise under it."""

    name: str
    title: str
    plan: Mapping[str, Any]
    proof: Callable[[Trial], str | None]
    """How it shows that the fault fired; None where nothing shows it."""
    expected: tuple[str | None, ...]
    """One per promise: names of damages, each of which must be found; with a question mark it may be. None: there is
    nothing to strike. `refused`: the sink must refuse to go on, and leave the rest."""


@dataclass(frozen=True)
class Cell:
    guarantee: str
    fault: str
    plan: Mapping[str, Any]
    must: frozenset[Damage]
    may: frozenset[Damage]
    refused: bool
    proof: Callable[[Trial], str | None] = field(repr=False)


@dataclass(frozen=True)
class Result:
    """What one cell showed."""

    guarantee: str
    fault: str
    plan: Mapping[str, Any]
    run: str
    verdict: str
    found: Mapping[str, int]
    """Damage and its count, where there is any."""
    expected: str
    fired: str | None
    """What proves that the fault fired."""
    surprises: tuple[str, ...]
    """Empty: the cell agrees with the table."""
    took_s: float

    @property
    def says(self) -> str:
        """The damage in words: `200 duplicates`, or `exact`."""
        return ", ".join(f"{count:,} {damage}" for damage, count in self.found.items()) or "exact"


PROMISES: tuple[Promise, ...] = (
    Promise("exactly_once", {"guarantee": "exactly_once"}),
    Promise("at_least_once", {"guarantee": "at_least_once"}),
    Promise("at_least_once-plain", {"guarantee": "at_least_once", "idempotence": False}),
    Promise("at_most_once", {"guarantee": "at_most_once"}),
    Promise("at_most_once-unacknowledged", {"guarantee": "at_most_once", "acks": "0"}),
)
"""The order of the columns of `expected` below."""


def _quiet(trial: Trial) -> str | None:
    """Nothing was to happen, and nothing did."""
    loud = [entry for entry in trial.entries if isinstance(entry, FaultFired) or _is(entry, Declared.ABORTED)]
    return None if loud else "no fault fired and no transaction was aborted"


def _aborted(trial: Trial) -> str | None:
    declared = sum(_is(entry, Declared.ABORTED) for entry in trial.entries)
    return f"the journal declares {declared} aborted transactions" if declared else None


def _taken_over(trial: Trial) -> str | None:
    """The fault claimed itself in every partition, and another task took each of them over."""
    for number, fired in enumerate(trial.entries):
        if isinstance(fired, FaultFired) and not any(
            isinstance(later, TaskStarted)
            and later.source_partition == fired.source_partition
            and later.task != fired.task
            for later in trial.entries[number:]
        ):
            return None
    struck = {entry.source_partition for entry in trial.entries if isinstance(entry, FaultFired)}
    if len(struck) < trial.partitions:
        return None
    return f"it fired in {len(struck)} partitions, and another task took each of them over"


def _fenced(trial: Trial) -> str | None:
    """As above; and where there are transactions, who was replaced was told so."""
    taken = _taken_over(trial)
    ended = [entry for entry in trial.entries if isinstance(entry, TransactionEnded)]
    fenced = {entry.source_partition for entry in ended if entry.outcome is Declared.FENCED}
    if taken is None or trial.report.guarantee is not Guarantee.EXACTLY_ONCE:
        return taken
    return f"{taken}; the journal declares it fenced" if len(fenced) == trial.partitions else None


def _claimed(trial: Trial) -> str | None:
    struck = {entry.source_partition for entry in trial.entries if isinstance(entry, FaultFired)}
    return f"it fired in {len(struck)} partitions" if struck else None


def _told(what: Told) -> Callable[[Trial], str | None]:
    """What the run's own process says it did."""

    def proof(trial: Trial) -> str | None:
        said = [entry.said for entry in trial.entries if isinstance(entry, FaultTold) and entry.what is what]
        return "; ".join(said) or None

    return proof


def _is(entry: Entry, outcome: Declared) -> bool:
    return isinstance(entry, TransactionEnded) and entry.outcome is outcome


def _at_each_step(kind: str, does: str, expected: Mapping[Step, tuple[str, ...]]) -> Iterator[Trouble]:
    """A fault inside the worker, once at each step of the second transaction."""
    for step, each in expected.items():
        name = f"{kind}-{step}".replace("_", "-")
        plan = {"faults": [f"{kind}@transaction=2,step={step}"]}
        yield Trouble(name, f"{does} {_WHEN[step]}", plan, _taken_over, each)


_WHEN: Mapping[Step, str] = {
    Step.BEGUN: "before it has produced",
    Step.PRODUCING: "with half of its records in the log",
    Step.PRODUCED: "with all of its records in the log",
    Step.OFFSET_SENT: "with its source offset handed over",
    Step.COMMITTED: "after the commit, before anybody is told",
}
_WORKER_LOST: Mapping[Step, tuple[str, ...]] = {
    Step.BEGUN: ("", "", "", "", ""),
    Step.PRODUCING: ("hidden", "duplicates", "duplicates", "gaps", "gaps"),
    Step.PRODUCED: ("hidden", "duplicates", "duplicates", "", ""),
    Step.OFFSET_SENT: ("hidden", "", "", "gaps", "gaps"),
    Step.COMMITTED: ("", "", "", "", ""),
}
"""Exactly-once: the transaction that was under way is aborted, and its records are hidden. At-least-once repeats what
was in the log before its offset was; at-most-once loses what was not in the log after its offset was."""

_NO_TRANSACTIONS = (None, None, None, None)


def _network(request: str, how: str, *expected: str | None, **plan: Any) -> Trouble:
    """A request of the second transaction, hurt on its way."""
    fault = f"network@transaction=2,request={request},how={how}"
    title = f"a request ({request}) is {how}"
    return Trouble(f"{request}-{how}", title, {"faults": [fault], **plan}, _told(Told.STRUCK), expected)


TABLE: tuple[Trouble, ...] = (
    Trouble("none", "nothing goes wrong", {}, _quiet, ("", "", "", "", "")),
    Trouble(
        "abort",
        "transactions fail by a draw of the seed",
        {"abort_probability": 0.4},
        _aborted,
        ("hidden", "duplicates", "duplicates", "gaps", "gaps"),
    ),
    *_at_each_step("crash", "the worker is killed", _WORKER_LOST),
    *_at_each_step("error", "the worker's code fails", _WORKER_LOST),
    Trouble(
        "zombie",
        "the worker stands still while its successor begins, and goes on",
        {"faults": ["zombie@transaction=2"]},
        _fenced,
        # Nothing fences a zombie without transactions: it goes on with what it has, beside its successor.
        ("hidden", "duplicates inversions?", "duplicates inversions?", "duplicates?", "duplicates?"),
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
)

SMALL = frozenset(
    {
        ("exactly_once", "none"),
        ("exactly_once", "abort"),
        ("exactly_once", "crash-produced"),
        ("at_least_once", "crash-produced"),
        ("at_most_once", "crash-offset-sent"),
    }
)
"""The cells of a first look: the three guarantees, each with what it is known for."""


def cells(only: Sequence[str] = (), small: bool = False) -> list[Cell]:
    """The cells of the matrix, row by row; of `only` (`guarantee=NAME,fault=NAME`) those that any of them fits.

    A name fits those that begin with it too: `fault=crash` is every crash. Raises UsageError for one that fits none.
    """
    found = [
        _cell(promise, number, trouble)
        for number, promise in enumerate(PROMISES)
        for trouble in TABLE
        if trouble.expected[number] is not None and (not small or (promise.name, trouble.name) in SMALL)
    ]
    wanted = [_filter(text) for text in only]
    return [cell for cell in found if not wanted or any(_fits(cell, one) for one in wanted)]


def run_cells(
    settings: Settings,
    services: Services,
    wanted: Iterable[Cell],
    stop: threading.Event,
    ended: Callable[[Result], None],
) -> None:
    """Run these cells one after the other until `stop`, and keep each result in the home as soon as it is there.

    A cell that agrees leaves nothing behind; the run of a surprise stays, to be looked at.
    """
    history = History(settings)
    known = read_state(settings)
    for cell in wanted:
        result = _run(settings, services, history, cell, stop)
        if result is None:
            return
        known = [one for one in known if (one.guarantee, one.fault) != (cell.guarantee, cell.fault)]
        known.append(result)
        _write_state(settings, known)
        ended(result)


def kept(settings: Settings, wanted: Iterable[Cell]) -> list[Result]:
    """The results in the home that answer these cells as they are planned now."""
    results = {(one.guarantee, one.fault): one for one in read_state(settings)}
    found = [(cell, results.get((cell.guarantee, cell.fault))) for cell in wanted]
    return [one for cell, one in found if one is not None and one.plan == cell.plan]


def read_state(settings: Settings) -> list[Result]:
    """What the home knows of earlier cells. Raises UsageError when it cannot be read."""
    path = settings.home / STATE
    try:
        given = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
        return [Result(**{**one, "surprises": tuple(one["surprises"])}) for one in given]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{path} does not hold the results of a matrix. Delete it and run the matrix anew.") from error


def surprises(
    cell: Cell, found: Mapping[Damage, int], verdict: Outcome, why: str, error: str | None, fired: str | None
) -> list[str]:
    """Where a cell differs from what theory expects, one sentence each. `why` is the verdict's sentence, `error` what
    the run failed with, `fired` what proves the fault."""
    said = []
    if fired is None:
        said.append("nothing shows that the fault fired")
    if error is not None and not cell.refused:
        said.append(f"the run failed: {error}")
    if error is None and cell.refused:
        said.append("the sink went on, where it should have refused to")
    if verdict is not _verdict(cell, found):
        said.append(f"the verdict is {verdict}: {why}")
    for damage in Damage:
        if found.get(damage, 0) and damage not in cell.must | cell.may:
            said.append(f"{found[damage]:,} {damage}, where none were expected")
        if not found.get(damage, 0) and damage in cell.must:
            said.append(f"no {damage}, which were expected")
    return said


def _verdict(cell: Cell, found: Mapping[Damage, int]) -> Outcome:
    """What the verdict must be when this was found: what the guarantee allows does not break it."""
    allowed = EXEMPT[Guarantee(cell.plan["guarantee"])]
    broken = any(found.get(damage) for damage, kind in _KINDS.items() if kind not in allowed)
    return Outcome.VIOLATED if broken else Outcome.HOLDS


def _run(settings: Settings, services: Services, history: History, cell: Cell, stop: threading.Event) -> Result | None:
    """None when it was stopped before its end."""
    began = time.monotonic()
    run = create(settings, services, history, make_plan(dict(cell.plan)))
    context = make_context(settings, services, history, run, stop)
    try:
        report = execute(context)
    except TopicproofError as error:
        report, said = None, [f"the run failed before it could be judged: {error}"]
    if stop.is_set():
        clean(settings, services, history, run.id)
        return None
    found: Mapping[Damage, int] = {}
    fired = None
    if report is not None:
        entries = read_journal(services.bootstrap, settings.client, context.names.journal)
        found = _damage(report)
        fired = cell.proof(Trial(entries, report, len(report.source.partitions)))
        said = surprises(cell, found, report.verdict, report.why, history.get(run.id).error, fired)
    if not said:
        clean(settings, services, history, run.id)
    return Result(
        guarantee=cell.guarantee,
        fault=cell.fault,
        plan=cell.plan,
        run=run.id,
        verdict=report.verdict if report is not None else Outcome.UNKNOWN,
        found={damage.value: count for damage, count in found.items()},
        expected=_expected(cell),
        fired=fired,
        surprises=tuple(said),
        took_s=round(time.monotonic() - began, 1),
    )


def _damage(report: Report) -> dict[Damage, int]:
    primary = {finding.kind: finding.primary for finding in report.findings}
    found = {damage: primary.get(kind, 0) for damage, kind in _KINDS.items()}
    found[Damage.HIDDEN] = report.fates["aborted"] or 0
    return {damage: count for damage, count in found.items() if count}


def _expected(cell: Cell) -> str:
    allowed = [damage for damage in Damage if damage in cell.must | cell.may]
    words = [damage.value if damage in cell.must else f"perhaps {damage}" for damage in allowed]
    return ", ".join([*(["refused"] if cell.refused else []), *words]) or "exact"


def _cell(promise: Promise, number: int, trouble: Trouble) -> Cell:
    words = set((trouble.expected[number] or "").split())
    refused = "refused" in words
    # What a refusal leaves is missing at the end of the sink.
    words = words - {"refused"} | ({"gaps?"} if refused else set())
    return Cell(
        promise.name,
        trouble.name,
        {**SIZE, **promise.plan, **trouble.plan},
        frozenset(Damage(word) for word in words if not word.endswith("?")),
        frozenset(Damage(word[:-1]) for word in words if word.endswith("?")),
        refused,
        trouble.proof,
    )


def _filter(text: str) -> dict[str, str]:
    known = {"guarantee": [one.name for one in PROMISES], "fault": [one.name for one in TABLE]}
    wanted = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        if name not in known:
            raise UsageError(f"--only {text}: expected guarantee=NAME, fault=NAME or both with a comma between.")
        if not any(_begins(one, value) for one in known[name]):
            raise UsageError(f"--only {text}: there is no {name} {value!r}. Known: {', '.join(known[name])}.")
        wanted[name] = value
    return wanted


def _fits(cell: Cell, wanted: Mapping[str, str]) -> bool:
    return all(_begins(getattr(cell, name), value) for name, value in wanted.items())


def _begins(name: str, value: str) -> bool:
    return name == value or name.startswith(f"{value}-")


def _write_state(settings: Settings, results: Sequence[Result]) -> None:
    """All or nothing: a process killed while it writes leaves the file as it was."""
    path = settings.home / STATE
    fresh = path.with_suffix(".new")
    try:
        fresh.write_text(json.dumps([asdict(one) for one in results], indent=1), encoding="utf-8")
        fresh.replace(path)
    except OSError as error:
        raise EvidenceError(f"The results of the matrix cannot be kept in {path}: {error.strerror}.") from error

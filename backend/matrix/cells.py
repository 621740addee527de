"""The matrix: every guarantee against every fault. Each cell is a small real run.

backend/matrix/matrix_table.py has the expectation of each cell. A cell is a surprise when its sink
shows unexpected damage or lacks expected damage; when its verdict does not follow from the damage;
when a plain consumer counts other damage than the verdict; or when nothing proves that its fault
fired.

`matrix/results.json` in the home keeps the last result of every cell: a list of objects with the
fields of `Result`. Only surprises keep their run.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from topicproof.backend.errors import EvidenceError, TopicproofError, UsageError
from topicproof.backend.faults.cluster_faults import fill_with_attempts, how_many
from topicproof.backend.faults.kinds import ZOMBIE
from topicproof.backend.history.store import History, State
from topicproof.backend.kafka.client_configs import READ_COMMITTED
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.reading import as_bytes, read_records
from topicproof.backend.matrix.choice import Cell
from topicproof.backend.matrix.first_copy_reader import judge_deduplicated
from topicproof.backend.matrix.promises import KINDS, Damage
from topicproof.backend.matrix.proofs import Trial
from topicproof.backend.runs.clean import clean
from topicproof.backend.runs.context import Context, make_context
from topicproof.backend.runs.create import create
from topicproof.backend.runs.execute import execute
from topicproof.backend.runs.lifeline import require_answers
from topicproof.backend.runs.plan import make_plan
from topicproof.backend.runs.resume import resume
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import Settings
from topicproof.backend.sink.journal import read_journal
from topicproof.validators.expectation import EXEMPT
from topicproof.validators.finding import Bounds, Guarantee, Outcome
from topicproof.validators.kinds import offset_ahead
from topicproof.validators.report import Report

COUNTED = (Damage.DUPLICATES, Damage.GAPS)
"""Damage that a plain consumer can count."""
RESULTS = "matrix/results.json"
"""Relative to the home."""
REFUSED = "refused"
AT_ONCE = 2
"""How many cells run at a time. A cell waits about as long as it works."""


@dataclass(frozen=True)
class Result:
    """The result of one cell."""

    guarantee: str
    fault: str
    plan: Mapping[str, Any]
    run: str
    verdict: str
    found: Mapping[str, int]
    """Count of each damage found."""
    expected: str
    fired: str | None
    """Proof that the fault fired."""
    surprises: tuple[str, ...]
    """Empty if the cell agrees with the table."""
    took_s: float

    @property
    def says(self) -> str:
        """The damage in words: `200 duplicates`, `exact`, or `refused` by the sink, as expected."""
        refused = self.expected.startswith(REFUSED) and not (self.found or self.surprises)
        return REFUSED if refused else _says(self.found)


def run_cells(
    settings: Settings,
    services: Services,
    chosen_cells: Iterable[Cell],
    stop: threading.Event,
    on_result: Callable[[Result], None],
    at_once: int = AT_ONCE,
    give_up: Callable[[TopicproofError], None] | None = None,
) -> None:
    """Run these cells until `stop`, and save each result in the home immediately. Cells that strike
    brokers run alone.

    The run of a surprise is kept. `give_up` ends this process if Kafka or Spark is gone for good
    (backend/runs/lifeline.py). Raises UsageError for a cluster with too few brokers.
    """
    cells, history = list(chosen_cells), History(settings)
    cluster = Cluster(services.address)
    needed = max((cell.trouble.brokers for cell in cells), default=1)
    if needed > 1 and (count := how_many(cluster)) < needed:
        raise UsageError(
            f"The embedded Kafka of {settings.home} runs with {count} of the {needed} brokers that"
            " these cells need. Stop what uses it, or set TOPICPROOF_HOME to another folder."
        )
    results = {(result.guarantee, result.fault): result for result in read_results(settings)}
    lock = threading.Lock()

    def run_one(cell: Cell) -> None:
        if stop.is_set():
            return
        result = run_cell(settings, services, history, cluster, cell, stop, give_up)
        if result is None:
            return
        with lock:
            results[cell.guarantee, cell.fault] = result
            _write_results(settings, list(results.values()))
            on_result(result)

    alone = [cell for cell in cells if cell.trouble.brokers > 1]
    for together, workers in (
        ([cell for cell in cells if cell.trouble.brokers == 1], at_once),
        (alone, 1),
    ):
        with ThreadPoolExecutor(workers) as pool:
            waiting = [pool.submit(run_one, cell) for cell in together]
            try:
                for future in waiting:
                    future.result()
            finally:
                for future in waiting:
                    future.cancel()


def saved_results(settings: Settings, cells: Iterable[Cell]) -> list[Result]:
    """Return the home's results for these cells, if the plan is still the same."""
    results = {(result.guarantee, result.fault): result for result in read_results(settings)}
    candidates = [(cell, results.get((cell.guarantee, cell.fault))) for cell in cells]
    return [
        result for cell, result in candidates if result is not None and result.plan == cell.plan
    ]


def read_results(settings: Settings) -> list[Result]:
    """Return the home's results. Raises UsageError if they cannot be read."""
    path = settings.home / RESULTS
    try:
        entries = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
        return [Result(**{**entry, "surprises": tuple(entry["surprises"])}) for entry in entries]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UsageError(
            f"{path} does not hold the results of a matrix. Delete it and run the matrix again."
        ) from error


def surprises(
    cell: Cell,
    damage_counts: Mapping[Damage, int],
    verdict: Outcome,
    why: str,
    error: str | None,
    fired: str | None,
    single: bool = False,
) -> list[str]:
    """Describe how a cell differs from its expectation, one sentence each. `why` explains the
    verdict, `error` is why the run failed, `fired` proves the fault. `single`: no partition has two
    outputs to judge, as after an early refusal, so an order cannot be seen."""
    sentences = []
    if fired is None:
        sentences.append("nothing shows that the fault fired")
    if error is not None and not (cell.refused or cell.may_refuse):
        sentences.append(f"the run failed: {error}")
    if error is None and cell.refused:
        sentences.append("the sink continued, although it should have refused to")
    unseen = error is not None and single and verdict is Outcome.UNKNOWN
    if not unseen and verdict is not _verdict(cell, damage_counts):
        sentences.append(f"the verdict is {verdict}: {why}")
    for damage in Damage:
        if damage_counts.get(damage, 0) and damage not in cell.must | cell.may:
            sentences.append(f"{damage_counts[damage]:,} {damage}, but none were expected")
        if not damage_counts.get(damage, 0) and damage in cell.must:
            sentences.append(f"no {damage}, which were expected")
    return sentences


def _verdict(cell: Cell, damage_counts: Mapping[Damage, int]) -> Outcome:
    """Return the right verdict on this damage: allowed damage does not break the guarantee."""
    allowed = EXEMPT[cell.promise.guarantee]
    broken = any(damage_counts.get(damage) for damage, kind in KINDS.items() if kind not in allowed)
    return Outcome.VIOLATED if broken else Outcome.HOLDS


def run_cell(
    settings: Settings,
    services: Services,
    history: History,
    cluster: Cluster,
    cell: Cell,
    stop: threading.Event,
    give_up: Callable[[TopicproofError], None] | None = None,
) -> Result | None:
    """Run one cell; None if it was stopped. `give_up` as in `run_cells`.

    Raises ClusterError or SparkError if Kafka or Spark is gone afterwards: that is no surprise.
    """
    began = time.monotonic()
    plan, source = dict(cell.plan), None
    if cell.trouble.attempts:
        source = f"matrix-{secrets.token_hex(3)}"
        cluster.create_topic(source, plan["partitions"])
        fill_with_attempts(cluster, source, plan["records"], plan["per_transaction"])
        plan["source"] = {**plan["source"], "topic": source}
    run = create(settings, services, history, make_plan(plan))
    context = make_context(settings, services, history, run, stop, give_up)
    report: Report | None = None
    damage_counts: Mapping[Damage, int] = {}
    fired = None
    try:
        report = _executed(context, cell.trouble.resumes)
    except TopicproofError as error:
        sentences = [f"the run failed before it could be judged: {error}"]
    if report is not None and not stop.is_set():
        entries = read_journal(services.address, context.names.journal)
        fired = cell.trouble.proof(Trial(entries, report, len(report.source.partitions)))
        damage_counts = _damage(report)
        recounted = _recounted(cluster, cell, damage_counts, report)
        if cell.promise.deduplicated:
            fired = (
                fired and f"{fired}; a reader that keeps everything finds {_says(damage_counts)}"
            )
            report = judge_deduplicated(services.spark_remote, context.folder)
            damage_counts = {
                **_damage(report),
                **{kind: damage_counts[kind] for kind in damage_counts if kind is Damage.HIDDEN},
            }
        outputs = report.source_records - damage_counts.get(Damage.GAPS, 0)
        single = outputs <= len(report.source.partitions)
        why = history.get(run.id).error
        sentences = surprises(cell, damage_counts, report.verdict, report.why, why, fired, single)
        sentences += recounted
    if sentences and not stop.is_set():
        remedy = "Start it again, then repeat the command; a matrix continues with --resume."
        require_answers(context, f"Run {run.id} shows nothing. {remedy}")
    if stop.is_set() or not sentences:
        clean(settings, services, history, run.id)
        if source is not None:
            cluster.delete_topics([source])
    if stop.is_set():
        return None
    return Result(
        guarantee=cell.guarantee,
        fault=cell.fault,
        plan=cell.plan,
        run=run.id,
        verdict=report.verdict if report is not None else Outcome.UNKNOWN,
        found={damage.value: count for damage, count in damage_counts.items()},
        expected=_expected(cell),
        fired=fired,
        surprises=tuple(sentences),
        took_s=round(time.monotonic() - began, 1),
    )


def _executed(context: Context, resumes: int) -> Report | None:
    """Execute a run. While it fails, resume it, at most `resumes` times. Raises TopicproofError."""
    history, run = context.history, context.run.id
    report: Report | None = None
    go_on = partial(execute, context)
    for left in range(resumes, -1, -1):
        try:
            report = go_on()
        except TopicproofError:
            if report is not None:
                break  # The sink refuses to continue.
            # An open transaction can keep a run that failed from being judged. The resumed run
            # aborts it.
            if not left:
                raise
        else:
            if not left or history.get(run).state is not State.FAILED:
                break
        arguments = context.settings, context.services, history, run, context.stop
        go_on = partial(resume, *arguments, give_up=context.give_up)
    return report


def _recounted(
    cluster: Cluster, cell: Cell, damage_counts: Mapping[Damage, int], report: Report
) -> list[str]:
    """Compare the damage with a count without Spark, where the sink is a topic and no aborted input
    has the value of a committed one."""
    if cell.trouble.attempts or "scenario" in cell.plan:
        return []
    zombie = any(fault.startswith(ZOMBIE.name) for fault in cell.plan.get("faults", ()))
    # Nothing fences a zombie but a transaction. It may go on to write after the verdict.
    late = zombie and cell.plan["guarantee"] != Guarantee.EXACTLY_ONCE
    sink = report.sink if late else cluster.bounds(report.sink.topic)
    return disagreements(damage_counts, recount(cluster, report.source, sink))


def _damage(report: Report) -> dict[Damage, int]:
    findings = {finding.kind: finding for finding in report.findings}
    primary = {kind: finding.primary for kind, finding in findings.items()}
    counts = {damage: primary.get(kind, 0) for damage, kind in KINDS.items()}
    if primary.get(offset_ahead.NAME):
        # Gaps at the end of a partition, below the group's offset: that kind explains them.
        counts[Damage.GAPS] = findings[KINDS[Damage.GAPS]].count
    counts[Damage.HIDDEN] = report.fates["aborted"] or 0
    return {damage: count for damage, count in counts.items() if count}


def _says(damage_counts: Mapping[Damage, int] | Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {damage}" for damage, count in damage_counts.items()) or "exact"


def _expected(cell: Cell) -> str:
    allowed = [damage for damage in Damage if damage in cell.must | cell.may]
    words = [damage.value if damage in cell.must else f"perhaps {damage}" for damage in allowed]
    return ", ".join([*([REFUSED] if cell.refused else []), *words]) or "exact"


def _write_results(settings: Settings, results: Sequence[Result]) -> None:
    """Write all or nothing: a process killed meanwhile leaves the old file."""
    path = settings.home / RESULTS
    fresh = path.with_suffix(".new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_text(
            json.dumps([asdict(result) for result in results], indent=1), encoding="utf-8"
        )
        fresh.replace(path)
    except OSError as error:
        raise EvidenceError(
            f"The results of the matrix cannot be kept in {path}: {error.strerror}."
        ) from error


def recount(cluster: Cluster, source: Bounds, sink: Bounds) -> dict[Damage, int]:
    """Count duplicates and gaps of a sink, by a plain consumer and without Spark. The scenario
    `squares` makes no two equal outputs.

    `source` are the bounds of the judged inputs: a run that was refused has not processed all.
    Raises ClusterError; TopicError, also RecordTooLarge.
    """
    expected = {int(value or b"") ** 2 for value in _values(cluster, source)}
    outputs = [int(value or b"") for value in _values(cluster, sink)]
    return {
        Damage.DUPLICATES: len(outputs) - len(set(outputs)),
        Damage.GAPS: len(expected - set(outputs)),
    }


def disagreements(
    damage_counts: Mapping[Damage, int], recounted: Mapping[Damage, int]
) -> list[str]:
    """Describe where the verdict's damage is not what was counted, one sentence each. Behind a
    hanging transaction a reader sees nothing, so nothing can be compared."""
    if damage_counts.get(Damage.HANGING):
        return []
    return [
        f"a plain consumer counts {recounted[damage]:,} {damage}, the verdict"
        f" {damage_counts.get(damage, 0):,}"
        for damage in COUNTED
        if recounted[damage] != damage_counts.get(damage, 0)
    ]


def _values(cluster: Cluster, bounds: Bounds) -> Iterator[bytes | None]:
    spans = {p.partition: (p.start, p.lso) for p in bounds.partitions}
    for message in read_records(cluster.address, bounds.topic, READ_COMMITTED, spans):
        yield as_bytes(message.value())

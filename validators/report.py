"""Turns a ledger into a verdict: the only place that collects.

Every validator runs under guard: a crash makes its own kind UNKNOWN, but never breaks the report.
All rows found stay in the evidence; the report holds their counts and at most `EXAMPLES_MAX`
examples per kind, worst first.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql import Row, Window
from pyspark.sql import functions as F

from topicproof.validators.evidence import COLUMNS, together
from topicproof.validators.expectation import (
    BY_CONTRACT,
    CONTRADICTIONS,
    COVERAGE,
    EXEMPT,
    EXIT_CODES,
    MOVEMENT,
    NORMAL,
    PREMISES,
    PROMISES,
    REQUIRED,
    judge_rows,
    looked_for,
    merge,
    reason_not_required,
)
from topicproof.validators.expected import Expect
from topicproof.validators.finding import (
    EXAMPLES_MAX,
    Balance,
    Bounds,
    Check,
    Example,
    Finding,
    Guarantee,
    NotChecked,
    Order,
    Origin,
    Outcome,
    Part,
    PartitionBounds,
    Transactions,
    Witness,
)
from topicproof.validators.in_parallel import in_parallel
from topicproof.validators.kinds.catalogue import VALIDATORS, Validator
from topicproof.validators.ledger.ledger import Ledger, ReadingsNeeded
from topicproof.validators.readings import keep

SCHEMA = 1
"""Version of report.json; docs/report.schema.json describes it."""


@dataclass(frozen=True)
class Report:
    """A verdict and its basis. `to_json` and `from_json` are inverses."""

    verdict: Outcome
    guarantee: Guarantee
    why: str
    """One sentence that can be quoted."""
    source: Bounds
    """The judged range of the source: from `start` to `lso` of each partition."""
    source_records: int
    """Inputs in that range."""
    sink: Bounds
    balance: tuple[Balance, ...]
    transactions: Transactions
    findings: tuple[Finding, ...]
    checked: tuple[Check, ...]
    not_checked: tuple[NotChecked, ...]
    """Kinds that did not count for the verdict, with the reason; `findings` shows those that were
    looked for."""
    doubts: tuple[str, ...]
    """Reasons not to trust the readings; not empty only with the verdict UNKNOWN."""
    not_processed: int
    """Inputs beyond the judged range, which the run has not reached."""
    run: str | None
    took_s: float
    versions: Mapping[str, str]
    warnings: tuple[str, ...] = ()
    """Values beyond the contract's thresholds, a sentence each; no part of the verdict."""
    origin: Origin | None = None
    """None in reports of earlier versions, and if the readings did not come from Kafka."""
    notes: tuple[str, ...] = ()
    """What readers must know about the readings, a sentence each; no part of the verdict."""
    source_origin: Origin | None = None
    """The source's cluster, if it is another one; `origin` is then the sink's."""

    @property
    def exit_code(self) -> int:
        return exit_code(self.verdict)

    @property
    def covered_share(self) -> float | None:
        """The share of its inputs that a run reached before it was stopped or failed, from 0 to
        1.

        None if it reached them all, and for topics that were watched because they may move: they
        always have inputs that are not due.
        """
        watched = any(one.kind == MOVEMENT and one.records for one in self.checked)
        if watched or not self.not_processed:
            return None
        return self.source_records / (self.source_records + self.not_processed)

    @property
    def aside(self) -> tuple[Finding, ...]:
        """Findings that need no section of their own: they do not count, and show nothing wrong or
        nothing at all."""
        uncounted = {one.kind for one in self.not_checked}
        return tuple(
            one
            for one in self.findings
            if one.kind in uncounted
            and (
                one.outcome is Outcome.UNKNOWN
                or (one.outcome is Outcome.HOLDS and (one.kind in NORMAL or not one.count))
            )
        )

    @property
    def fates(self) -> dict[str, int | None]:
        """The balance of the whole topic. A sum is None if no partition knows its term."""
        names = (
            "committed",
            "aborted",
            "pending",
            "markers",
            "gone",
            "no_record",
            "never_transactional",
        )
        fates = {name: _total(getattr(one, name) for one in self.balance) for name in names}
        # An excess here and a lack there must not cancel out.
        return {**fates, "unexplained": sum(abs(one.unexplained) for one in self.balance)}

    @property
    def of_topic(self) -> bool:
        """Whether the sink is a topic: a table has no log with markers."""
        return self.fates["markers"] is not None

    def to_json(self) -> str:
        return json.dumps(
            {
                "schema": SCHEMA,
                "run": self.run,
                "verdict": self.verdict,
                "guarantee": self.guarantee,
                "why": self.why,
                "source": {**_bounds_json(self.source), "records": self.source_records},
                "sink": {
                    **_bounds_json(self.sink),
                    "fates": self.fates,
                    "balance": [asdict(one) for one in self.balance],
                    "transactions": asdict(self.transactions),
                },
                "findings": [asdict(one) for one in self.findings],
                "checked": [asdict(one) for one in self.checked],
                "not_checked": [asdict(one) for one in self.not_checked],
                "doubts": self.doubts,
                "warnings": self.warnings,
                "not_processed": self.not_processed,
                "took_s": self.took_s,
                "versions": dict(self.versions),
                # Without these, a report is the same text as in earlier versions.
                **_origin_json("origin", self.origin),
                **_origin_json("source_origin", self.source_origin),
                **({"notes": self.notes} if self.notes else {}),
            },
            indent=2,
            ensure_ascii=False,
        )

    @staticmethod
    def from_json(text: str) -> Report:
        """Parses a report. Raises ValueError for any schema but `SCHEMA`."""
        given: dict[str, Any] = json.loads(text)
        if given["schema"] != SCHEMA:
            raise ValueError(
                f"The report has schema {given['schema']}; this version reads schema {SCHEMA}."
            )
        return Report(
            verdict=Outcome(given["verdict"]),
            guarantee=Guarantee(given["guarantee"]),
            why=given["why"],
            source=_bounds(given["source"]),
            source_records=given["source"]["records"],
            sink=_bounds(given["sink"]),
            balance=tuple(Balance(**one) for one in given["sink"]["balance"]),
            transactions=Transactions(**given["sink"]["transactions"]),
            findings=tuple(_finding(one) for one in given["findings"]),
            checked=tuple(
                Check(**{**one, "witnesses": tuple(map(Witness, one["witnesses"]))})
                for one in given["checked"]
            ),
            not_checked=tuple(NotChecked(**one) for one in given["not_checked"]),
            doubts=tuple(given["doubts"]),
            not_processed=given["not_processed"],
            run=given["run"],
            took_s=given["took_s"],
            versions=given["versions"],
            # Reports of earlier versions have none.
            warnings=tuple(given.get("warnings", ())),
            origin=_origin(given.get("origin")),
            notes=tuple(given.get("notes", ())),
            source_origin=_origin(given.get("source_origin")),
        )


def _origin_json(name: str, origin: Origin | None) -> dict[str, Any]:
    if origin is None:
        return {}
    said = asdict(origin)
    if origin.name is None:
        del said["name"]
    return {name: said}


def _origin(given: Mapping[str, Any] | None) -> Origin | None:
    return None if given is None else Origin(**given)


def exit_code(verdict: Outcome) -> int:
    """HOLDS 0, VIOLATED 1, UNKNOWN 3: an unjudged question is never a pass."""
    return EXIT_CODES[verdict]


def judge(
    ledger: Ledger,
    guarantee: Guarantee,
    require: Sequence[str] | None = None,
    not_processed: int = 0,
    run: str | None = None,
    versions: Mapping[str, str] | None = None,
    validators: Sequence[Validator] = VALIDATORS,
) -> Report:
    """Judges a ledger under a guarantee.

    `require` names the kinds that make the verdict; then no other kind is looked for. Otherwise
    they are the guarantee's own, the ones that the contract asks for, and every contradiction found
    (validators/expectation.py). `not_processed` is the number of inputs beyond the judged range.
    Raises ValueError for a required kind that does not exist, and for an empty `require`. Raises
    ReadingsNeeded if a ledger of folded readings is not enough.

    Pending offsets never hold: until their transactions end, a missing record may still arrive and
    a repeated one may still be committed. Existing violations remain.
    """
    began = time.monotonic()
    required = _required(guarantee, require, ledger, validators)
    unheard = {
        validator.NAME: reason
        for validator in validators
        if (reason := _unheard(validator, ledger))
    }
    contradictions = CONTRADICTIONS[guarantee] if require is None else ()
    premises = [
        kind
        for kind in PREMISES
        if set(PREMISES[kind].kinds) & set(required) and _asked(kind, ledger)
    ]
    wanted = [
        one
        for one in validators
        if one.NAME in required
        or one.NAME in (*premises, *COVERAGE)
        or (one.NAME in EXEMPT[guarantee] and _said(one.NAME, ledger))
        or (require is None and looked_for(one.NAME, guarantee) and _said(one.NAME, ledger))
    ]
    found = _find([one for one in wanted if one.NAME not in unheard], ledger)
    findings, checked = [], []
    for validator in wanted:
        finding = _judge_kind(
            validator, ledger, guarantee, found.get(validator.NAME), unheard.get(validator.NAME)
        )
        findings.append(finding)
        if validator.NAME not in unheard:
            heard = tuple(
                one for group in validator.WITNESSES for one in group if one in ledger.heard
            )
            checked.append(Check(validator.NAME, validator.covered(ledger), validator.UNIT, heard))
    counting = [
        finding
        for finding in findings
        if finding.kind in required
        or (finding.kind in contradictions and finding.outcome is Outcome.VIOLATED)
        or (finding.kind in premises and finding.count and finding.outcome is Outcome.UNKNOWN)
    ]
    verdict = _verdict(ledger, counting)
    return Report(
        verdict=verdict,
        guarantee=guarantee,
        why=_why(verdict, ledger, guarantee, counting, findings, not_processed),
        source=ledger.source_bounds,
        source_records=ledger.inputs_count,
        sink=ledger.sink_bounds,
        balance=ledger.balance,
        transactions=ledger.transactions,
        findings=tuple(findings),
        checked=tuple(checked),
        not_checked=(
            *(
                NotChecked(one.NAME, reason_not_required(one.NAME, guarantee, require is not None))
                for one in validators
                if one.NAME not in (*required, *contradictions, *premises)
            ),
            *(
                NotChecked(one.kind, one.why)
                for one in findings
                if one.kind in (*contradictions, *premises)
                and one.outcome is Outcome.UNKNOWN
                and not one.count
            ),
        ),
        doubts=ledger.doubts,
        not_processed=not_processed,
        run=run,
        took_s=round(ledger.took_s + time.monotonic() - began, 3),
        versions=versions or {},
        warnings=_warnings(ledger),
    )


def _required(
    guarantee: Guarantee,
    require: Sequence[str] | None,
    ledger: Ledger,
    validators: Sequence[Validator],
) -> tuple[str, ...]:
    required = tuple(require or ())
    if require is None:
        more = [kind for kind in ledger.agreed.kinds if kind not in EXEMPT[guarantee]]
        required = (
            *(kind for kind in REQUIRED[guarantee] if kind != "order" or _ordered(ledger)),
            *more,
        )
    names = [validator.NAME for validator in validators]
    unknown = [kind for kind in required if kind not in names]
    if unknown or not required:
        raise ValueError(
            f"Unknown kinds required: {', '.join(unknown) or 'none at all'}. Known:"
            f" {', '.join(names)}."
        )
    return required


def _asked(premise: str, ledger: Ledger) -> bool:
    """Whether a premise applies to this verdict at all."""
    match premise:
        case "undecodable":
            return bool(ledger.agreed.source_fields or ledger.agreed.sink_fields)
        case "identity_missing" | "identity_repeated":
            return ledger.by_key
        case "outputs_alike":
            return ledger.by_key and ledger.expected.kind is Expect.ONE_TO_MANY
        case "key_spread":
            return ledger.order is Order.PER_KEY
        case _:
            return True


def _said(kind: str, ledger: Ledger) -> bool:
    """Whether a contract-only kind is required by the contract; true of all other kinds."""
    return kind not in BY_CONTRACT or kind in ledger.agreed.kinds


def _ordered(ledger: Ledger) -> bool:
    return ledger.order is not Order.NONE


def _unheard(validator: Validator, ledger: Ledger) -> str | None:
    """Explains why this validator cannot run, if a witness is missing."""
    missing = [" or ".join(group) for group in validator.WITNESSES if not set(group) & ledger.heard]
    return f"Not judged: a witness is missing ({', '.join(missing)})." if missing else None


@dataclass(frozen=True)
class _Found:
    """A validator's rows, or `error` if it crashed."""

    causes: Mapping[str | None, int]
    examples: tuple[Example, ...] = ()
    error: str | None = None


def _find(validators: Sequence[Validator], ledger: Ledger) -> dict[str, _Found]:
    """Finds all kinds in one go. If that fails, runs each by itself, so that one broken validator
    does not affect the others."""
    if not validators:
        return {}
    try:
        return _collect(validators, ledger, f"{ledger.evidence}/findings")
    except ReadingsNeeded:
        raise
    except Exception:
        found: dict[str, _Found] = {}
        for one in validators:
            try:
                found |= _collect([one], ledger, f"{ledger.evidence}/findings-{one.NAME}")
            except Exception as error:
                found[one.NAME] = _Found({}, error=_first_line(error))
        return found


def _collect(validators: Sequence[Validator], ledger: Ledger, url: str) -> dict[str, _Found]:
    every = [(one.NAME, rows) for one in validators if (rows := one.find(ledger)) is not None]
    found = together([rows.select(F.lit(name).alias("kind"), "*") for name, rows in every])
    if found is None:
        return {one.NAME: _Found({}) for one in validators}
    # If nothing is odd and nothing is missing, only transactions can have rows.
    few = ledger.sound and ledger.at_inputs >= ledger.outputs_count
    offsets = 0 if few else ledger.sink_bounds.offsets + ledger.source_bounds.offsets
    rows = keep(found, url, offsets, f"kind string, {COLUMNS}")
    worst = Window.partitionBy("kind").orderBy(
        F.col("explained_by").isNotNull(),
        F.col("badness").desc(),
        *("partition", "offset", "source_partition", "source_offset"),
    )
    ranked = rows.withColumn("rank", F.row_number().over(worst)).where(
        F.col("rank") <= EXAMPLES_MAX
    )
    counts, examples = in_parallel(
        lambda: rows.groupBy("kind", "explained_by").count().collect(),
        lambda: ranked.orderBy("kind", "rank").collect(),
    )
    return {
        one.NAME: _Found(
            {row["explained_by"]: row["count"] for row in counts if row["kind"] == one.NAME},
            tuple(
                _example(row, ledger.source_bounds) for row in examples if row["kind"] == one.NAME
            ),
        )
        for one in validators
    }


def _example(row: Row, source: Bounds) -> Example:
    lineage = None
    if row["source_offset"] is not None:
        topic, partition = row["source_topic"], row["source_partition"]
        if topic == source.topic and partition is not None:
            topic, partition = source.place(partition)
        places = (topic, partition, row["source_offset"], row["output_index"])
        lineage = "/".join(str(place) for place in places if place is not None)
    return Example(row["partition"], row["offset"], lineage, row["transaction"], row["why"])


def _judge_kind(
    validator: Validator,
    ledger: Ledger,
    guarantee: Guarantee,
    found: _Found | None,
    unheard: str | None,
) -> Finding:
    if found is None or found.error is not None:
        failure = found.error if found else "it was not run"
        why = unheard or f"Not judged: the check itself failed ({failure})."
        return Finding(validator.NAME, Outcome.UNKNOWN, 0, 0, None, (), why)
    covered = validator.covered(ledger)
    count, primary = sum(found.causes.values()), found.causes.get(None, 0)
    others = {cause: number for cause, number in found.causes.items() if cause is not None}
    explained_by = max(others, key=lambda cause: others[cause]) if others else None
    outcome = judge_rows(validator.NAME, found.causes, guarantee)
    why = f"{_capital(validator.says(primary or count, covered))}."
    if others:
        rest = count - primary
        told = (
            f"{rest:,} more {'is' if rest == 1 else 'are'}"
            if primary
            else "All of these are"
            if rest > 1
            else "It is"
        )
        why += f" {told} explained by {explained_by}."
    if validator.NAME in PREMISES and outcome is Outcome.UNKNOWN:
        why += f" {PREMISES[validator.NAME].remedy}"
    if outcome is Outcome.HOLDS and covered == 0:
        outcome, why = Outcome.UNKNOWN, f"Nothing to look at: {_nothing(validator, ledger)}."
    if primary and validator.NAME in EXEMPT[guarantee]:
        why += f" Allowed: {EXEMPT[guarantee][validator.NAME]}."
    return Finding(validator.NAME, outcome, count, primary, explained_by, found.examples, why)


def _nothing(validator: Validator, ledger: Ledger) -> str:
    """Explains why a kind has a denominator of zero. The log may hold transactions that no header
    names."""
    told = ledger.transactions
    inside = (told.committed or 0) + (told.aborted or 0) + (told.open or 0)
    if validator.UNIT == "transactions" and inside and told.told_by == "raw_log":
        return (
            f"the log holds {inside:,} {_plural(inside, 'transaction')}, but no header or journal"
            " names one"
        )
    return f"there are no {validator.UNIT}"


def _verdict(ledger: Ledger, counting: Iterable[Finding]) -> Outcome:
    if ledger.doubts:
        return Outcome.UNKNOWN
    # In a moving topic, pending offsets are not judged yet; what is due and pending is UNKNOWN
    # anyway.
    pending = [Outcome.UNKNOWN] if ledger.pending and not ledger.circumstances.moving else []
    return merge([*(finding.outcome for finding in counting), *pending])


def _why(
    verdict: Outcome,
    ledger: Ledger,
    guarantee: Guarantee,
    counting: Sequence[Finding],
    findings: Sequence[Finding],
    not_processed: int,
) -> str:
    """Formulates the verdict in one sentence."""
    if ledger.doubts:
        return f"The readings cannot be trusted: {ledger.doubts[0]}"
    rest = (
        f"; {not_processed:,} {_plural(not_processed, 'input')} not processed"
        if not_processed
        else ""
    )
    bad = [finding for finding in counting if finding.outcome is verdict]
    if verdict is Outcome.VIOLATED:
        told = [finding for finding in bad if finding.primary] or bad
        return (
            f"Not {PROMISES[guarantee]}: {'; '.join(_clause(finding) for finding in told)}{rest}."
        )
    if verdict is Outcome.UNKNOWN:
        broken = [finding for finding in bad if finding.kind in PREMISES]
        others = [
            finding
            for finding in bad
            if finding not in broken and finding.explained_by not in PREMISES
        ]
        # Kinds that had nothing to examine, because a premise is broken, add nothing.
        told = [finding for finding in others if finding.count or not broken]
        reasons = [f"{finding.kind}: {_clause(finding)}" for finding in (*broken, *told)]
        if ledger.pending and not ledger.circumstances.moving:
            pending = _plural(ledger.pending, "offset")
            reasons.insert(
                0, f"{ledger.pending:,} {pending} still pending at or above the last stable offset"
            )
        remedy = f" {PREMISES[broken[0].kind].remedy}" if broken else ""
        return f"Could not be judged: {'; '.join(reasons)}{rest}.{remedy}"
    return f"{_praise(ledger, guarantee, counting, findings)}{rest}."


def _praise(
    ledger: Ledger, guarantee: Guarantee, counting: Sequence[Finding], findings: Sequence[Finding]
) -> str:
    """Formulates what holds, claiming no more than was required."""
    kinds = {finding.kind for finding in counting}
    primary = {finding.kind: finding.primary for finding in findings}
    inputs = ledger.inputs_count
    in_order = ", in order" if _ordered(ledger) else ""
    if not kinds >= set(REQUIRED[guarantee]) - (set() if in_order else {"order"}):
        return (
            f"None of the required kinds ({', '.join(sorted(kinds))}) was found among {inputs:,}"
            " inputs"
        )
    wanted = ledger.outputs_count
    there = wanted - primary.get("gap", 0)
    match ledger.expected.kind:
        case Expect.ONE_TO_ONE:
            said = f"{there:,} of {inputs:,} inputs committed {PROMISES[guarantee]}{in_order}"
        case Expect.ZERO_OR_ONE if ledger.expected.count is None:
            said = (
                f"{there:,} outputs of {inputs:,} inputs committed {PROMISES[guarantee]}{in_order};"
                " it is unknown "
            )
            said += f"whether the other {inputs - wanted:,} were filtered out or lost"
        case _:
            said = (
                f"{there:,} of {wanted:,} outputs of {inputs:,} inputs committed"
                f" {PROMISES[guarantee]}{in_order}"
            )
    if ledger.aborted and "aborted_read" in kinds:
        said += f"; {ledger.aborted:,} aborted {_plural(ledger.aborted, 'record')} stayed invisible"
    if primary.get("duplicate"):
        said += (
            f"; {primary['duplicate']:,} {_plural(primary['duplicate'], 'duplicate')}, as allowed"
        )
    if wanted - there:
        said += f"; {wanted - there:,} lost, as allowed"
    for side in ("source", "sink"):
        lost = sum(one.offsets for one in getattr(ledger.circumstances, f"{side}_removed").values())
        if lost:
            said += f"; {lost:,} {_plural(lost, 'offset')} lost by the {side} and not judged"
    if ledger.pending:
        said += (
            f"; {ledger.pending:,} {_plural(ledger.pending, 'offset')} above the last stable"
            " offset, not judged yet"
        )
    return said


def _warnings(ledger: Ledger) -> tuple[str, ...]:
    """Lists what exceeds the contract's thresholds."""
    warn, said = ledger.agreed.warn, []
    if warn.pending is not None and ledger.pending > warn.pending:
        said.append(
            f"{ledger.pending:,} offsets are pending, and the contract warns above"
            f" {warn.pending:,}."
        )
    stable = ledger.aborted + ledger.committed
    share = ledger.aborted / stable if stable else 0.0
    if warn.aborted_share is not None and share > warn.aborted_share:
        said.append(
            f"{share:.1%} of the records are aborted; the contract warns above"
            f" {warn.aborted_share:.1%}."
        )
    return tuple(said)


def _plural(count: int, noun: str) -> str:
    return noun if count == 1 else f"{noun}s"


def _clause(finding: Finding) -> str:
    """Returns the finding's first sentence, for joining with others."""
    return finding.why.split(". ")[0].rstrip(".")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__


def _total(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _bounds_json(bounds: Bounds) -> dict[str, Any]:
    parts = {"parts": [asdict(one) for one in bounds.parts]} if bounds.parts else {}
    return {"topic": bounds.topic, **parts, "bounds": [asdict(one) for one in bounds.partitions]}


def _bounds(given: Mapping[str, Any]) -> Bounds:
    parts = tuple(Part(**one) for one in given.get("parts", ()))
    return Bounds(given["topic"], tuple(PartitionBounds(**one) for one in given["bounds"]), parts)


def _finding(given: Mapping[str, Any]) -> Finding:
    examples = tuple(Example(**one) for one in given["examples"])
    return Finding(**{**given, "outcome": Outcome(given["outcome"]), "examples": examples})

"""What a verdict has that the one before it had not: findings that are new, gone or others, and
terms that changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from topicproof.backend.errors import EvidenceError
from topicproof.backend.history.comparison import Comparison, KindChange, compare
from topicproof.backend.history.contract_of_run import TermChange, changed_terms
from topicproof.backend.history.pipelines import verdict_before
from topicproof.backend.history.run_reports import read_run_report
from topicproof.backend.history.store import History, Run
from topicproof.validators.finding import Finding, Outcome
from topicproof.validators.report import Report


class Shift(StrEnum):
    """How a finding differs from that of the last verdict, the worst first."""

    NEW = "new"
    MORE = "more"
    ELSEWHERE = "elsewhere"
    """As many as before, at other places."""
    OTHERWISE = "judged otherwise"
    FIRST_JUDGED = "judged now"
    """It may have been there before: nobody looked, or it did not count."""
    FEWER = "fewer"
    NOT_JUDGED = "no longer judged"
    """It may be there still."""
    GONE = "gone"


GROUPS: Mapping[str, tuple[Shift, ...]] = {
    "New": (Shift.NEW, Shift.FIRST_JUDGED),
    "Changed": (Shift.MORE, Shift.ELSEWHERE, Shift.OTHERWISE, Shift.FEWER),
    "Gone": (Shift.GONE,),
    "No longer judged": (Shift.NOT_JUDGED,),
}
"""What one word stands for in a sentence."""


NAMED = 4
"""Findings that a sentence names of each group."""


@dataclass(frozen=True)
class FindingShift:
    """A finding that counts in one of two verdicts or in both, and how it differs."""

    shift: Shift
    change: KindChange

    def words(self, titles: Mapping[str, str]) -> str:
        """Return it in words, with these titles of kinds: `Duplicates 3 → 5`."""
        title = titles.get(self.change.kind, self.change.kind)
        before, after = _figure(self.change.before), _figure(self.change.after)
        match self.shift:
            case Shift.NEW:
                return f"{title} ({after})"
            case Shift.FIRST_JUDGED:
                return f"{title} ({after}, not judged last time)"
            case Shift.GONE | Shift.NOT_JUDGED:
                return f"{title} ({before})"
            case Shift.ELSEWHERE:
                return f"{title} ({after}, at other places)"
            case Shift.OTHERWISE if before == after:
                return f"{title} ({after}, explained otherwise)"
        return f"{title} {before} → {after}"


@dataclass(frozen=True)
class SinceLast:
    """What changed since the last verdict of the same pipeline."""

    comparison: Comparison
    findings: tuple[FindingShift, ...]
    """Findings that count and differ, the worst first."""
    same: tuple[str, ...]
    """Kinds of finding that count in both and do not differ."""
    terms: tuple[TermChange, ...] | None
    """Terms that changed; None if they cannot be read any more."""

    @property
    def is_quiet(self) -> bool:
        """Whether there is nothing to tell."""
        comparison = self.comparison
        same_verdict = comparison.before.verdict is comparison.after.verdict
        return same_verdict and not (self.findings or self.terms or self.has_other_doubts)

    @property
    def has_other_doubts(self) -> bool:
        return set(self.comparison.before.doubts) != set(self.comparison.after.doubts)

    def groups(self, titles: Mapping[str, str]) -> dict[str, str]:
        """Return the findings that differ in words, by one of `GROUPS`."""
        words = {
            name: _listing([each.words(titles) for each in self.findings if each.shift in shifts])
            for name, shifts in GROUPS.items()
        }
        return {name: text for name, text in words.items() if text}

    def sentence(self, titles: Mapping[str, str], judged_by: str = "contract") -> str:
        """Return all of it in one line. `judged_by`: what the terms are of."""
        before, after = self.comparison.before, self.comparison.after
        parts = [f"{name}: {text}." for name, text in self.groups(titles).items()]
        if before.verdict is not after.verdict:
            parts.insert(0, f"{after.verdict} after {before.verdict}.")
        if self.terms:
            names = ", ".join(term.name for term in self.terms)
            parts.append(f"The {judged_by} changed: {names}.")
        if self.has_other_doubts:
            parts.append("The doubts are others.")
        if not parts:
            parts.append(self.quiet_sentence)
        if self.terms is None:
            parts.append("Whether the terms changed is not known: a contract cannot be read.")
        return " ".join(parts)

    @property
    def quiet_sentence(self) -> str:
        """Says that nothing changed, and whether there was anything new to judge."""
        number = len(self.same)
        findings = f"the same {number} findings" if number > 1 else "the same finding"
        inputs = self.comparison.after.source_records - self.comparison.before.source_records
        grown = f"{abs(inputs):,} {'more' if inputs > 0 else 'fewer'} inputs" if inputs else ""
        return f"As last time: {findings if number else 'no finding'}, {grown or 'no new input'}."

    def as_json(self) -> dict[str, Any]:
        """Return it for `--json`."""
        return {
            "run": self.comparison.before.run,
            "verdicts": [self.comparison.before.verdict, self.comparison.after.verdict],
            "findings": [
                {
                    "kind": each.change.kind,
                    "change": each.shift,
                    "counts": [
                        None if side is None else side.count
                        for side in (each.change.before, each.change.after)
                    ],
                }
                for each in self.findings
            ],
            "same": list(self.same),
            "terms": None if self.terms is None else [vars(term) for term in self.terms],
        }


def since_last_of(history: History, run: Run, after: Report) -> SinceLast | None:
    """Compare the report of a run with that of the last verdict on the same pipeline. None if it is
    the first one, or if the last one's report is gone."""
    last = verdict_before(history, run)
    if last is None:
        return None
    try:
        before = read_run_report(last, last.folder(history.settings))
    except EvidenceError:
        return None
    return since_last(before, after, changed_terms(history, last, run))


def since_last(
    before: Report, after: Report, terms: tuple[TermChange, ...] | None = ()
) -> SinceLast:
    """Compare a report with the last one of its pipeline."""
    comparison = compare(before, after)
    judged = _judged(before), _judged(after)
    shifts, same = [], []
    for change in comparison.kinds:
        was, is_ = (findings.get(change.kind) for findings in judged)
        shift = _shift(was, is_)
        if shift is not None:
            shifts.append(FindingShift(shift, change))
        elif is_ is not None and _is_wrong(is_):
            same.append(change.kind)
    order = list(Shift)
    shifts.sort(key=lambda each: order.index(each.shift))
    return SinceLast(comparison, tuple(shifts), tuple(same), terms)


def _judged(report: Report) -> dict[str, Finding]:
    """Return the findings that count for the verdict, by kind."""
    uncounted = {each.kind for each in report.not_checked}
    return {finding.kind: finding for finding in report.findings if finding.kind not in uncounted}


def _is_wrong(finding: Finding) -> bool:
    return finding.outcome is not Outcome.HOLDS


def _shift(before: Finding | None, after: Finding | None) -> Shift | None:
    """Return how one kind differs; None if it does not, or is right both times."""
    was = before is not None and _is_wrong(before)
    is_ = after is not None and _is_wrong(after)
    if before is None or after is None:
        return Shift.FIRST_JUDGED if is_ else Shift.NOT_JUDGED if was else None
    if was is not is_:
        return Shift.NEW if is_ else Shift.GONE
    if not is_:
        return None
    if before.outcome is not after.outcome:
        return Shift.OTHERWISE
    if before.count != after.count:
        return Shift.MORE if after.count > before.count else Shift.FEWER
    if before.primary != after.primary:
        return Shift.OTHERWISE
    return None if _places(before) == _places(after) else Shift.ELSEWHERE


def _places(finding: Finding) -> set[tuple[object, ...]]:
    """Return where the rows lie that a report shows. Of many these are the worst, so other ones
    there are a change, too."""
    return {(each.partition, each.offset, each.lineage) for each in finding.examples}


def _listing(words: Sequence[str]) -> str:
    further = len(words) - NAMED
    return ", ".join([*words[:NAMED], *([f"{further} more"] if further > 0 else [])])


def _figure(finding: Finding | None) -> str:
    if finding is None:
        return "not looked for"
    is_unknown = finding.outcome is Outcome.UNKNOWN
    return str(finding.outcome) if is_unknown else f"{finding.count:,}"

"""Comparison of two reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from topicproof.validators.finding import Finding
from topicproof.validators.report import Report


@dataclass(frozen=True)
class Figure:
    """One number of both reports; None where a report lacks it."""

    name: str
    before: float | None
    after: float | None

    @property
    def change(self) -> float | None:
        return None if self.before is None or self.after is None else self.after - self.before


@dataclass(frozen=True)
class KindChange:
    """One kind of finding in both reports; None where a report lacks it."""

    kind: str
    before: Finding | None
    after: Finding | None

    @property
    def word(self) -> str:
        """One of: appeared, disappeared, more, fewer, judged differently, only before, only after,
        the same."""
        was, is_ = (finding.count if finding else 0 for finding in (self.before, self.after))
        if is_ and not was:
            return "appeared"
        if was and not is_:
            return "disappeared"
        if was != is_:
            return "more" if is_ > was else "fewer"
        if self.before is None or self.after is None:
            return "only before" if self.after is None else "only after"
        return "the same" if self.before.outcome is self.after.outcome else "judged differently"


@dataclass(frozen=True)
class Comparison:
    """Two reports and their differences."""

    before: Report
    after: Report
    figures: tuple[Figure, ...]
    kinds: tuple[KindChange, ...]

    @property
    def changed(self) -> tuple[KindChange, ...]:
        """Kinds that differ."""
        return tuple(change for change in self.kinds if change.word != "the same")

    @property
    def why(self) -> str:
        """One sentence on what changed."""
        return self.told({})

    def told(self, titles: Mapping[str, str]) -> str:
        """Return one sentence on what changed, with these titles of kinds."""
        verdicts = f"{self.before.verdict} and {self.after.verdict}"
        if self.before.verdict is self.after.verdict:
            verdicts = f"{self.before.verdict} both times"
        words = [
            f"{titles.get(change.kind, change.kind)} {change.word}"
            for change in self.changed
            if not change.word.startswith("only")
        ]
        identities = (self.before.identity, self.after.identity)
        matched = ""
        if None not in identities and len(set(identities)) == 2:
            matched = "Records were matched by {} before, and by {} after. ".format(*identities)
        changes = ", ".join(words) if words else "no kind of finding differs"
        return f"{matched}{verdicts}; {changes}."


def compare(before: Report, after: Report) -> Comparison:
    """Compare two reports on any topics."""
    figures = [
        Figure("inputs judged", before.source_records, after.source_records),
        Figure("sink offsets judged", before.sink.offsets, after.sink.offsets),
        *(
            Figure(name.replace("_", " "), before.fates[name], after.fates[name])
            for name in before.fates
        ),
        *(
            Figure(
                f"transactions {end}",
                getattr(before.transactions, end),
                getattr(after.transactions, end),
            )
            for end in ("committed", "aborted", "open")
        ),
        Figure("inputs beyond the judged range", before.not_processed, after.not_processed),
        Figure("judged in, s", before.took_s, after.took_s),
    ]
    was, is_ = (
        {finding.kind: finding for finding in report.findings} for report in (before, after)
    )
    kinds = tuple(
        KindChange(kind, was.get(kind), is_.get(kind)) for kind in dict.fromkeys([*was, *is_])
    )
    return Comparison(before, after, tuple(figures), kinds)

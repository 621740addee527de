"""A verdict with its basis, and its JSON (docs/report.schema.json)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from topicproof.validators.expectation import (
    EXIT_CODES,
    MOVEMENT,
    NORMAL,
    NOT_NAMED,
    PREMISES,
    covers,
)
from topicproof.validators.finding import (
    Balance,
    Bounds,
    Check,
    Example,
    Finding,
    Guarantee,
    NotChecked,
    Origin,
    Outcome,
    Part,
    PartitionBounds,
    Transactions,
    Witness,
)

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
    """Values beyond the contract's thresholds, and what its terms cannot tell, a sentence each; no
    part of the verdict."""
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
    def scope(self) -> str:
        """What the verdict is about: the guarantee, or the kinds that a contract requires
        instead."""
        reasons = {one.kind: one.why for one in self.not_checked}
        kinds = [
            one.kind
            for one in self.findings
            if one.kind not in reasons and one.kind not in PREMISES
        ]
        if NOT_NAMED not in reasons.values() or covers(self.guarantee, kinds, order=True):
            return str(self.guarantee)
        return f"{' and '.join(kinds)} alone"

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

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
    InputOutcomes,
    JudgedInputs,
    NotChecked,
    Origin,
    Origins,
    Outcome,
    Part,
    PartitionBounds,
    Transactions,
    Witness,
)

SCHEMA = 1
"""Version of report.json; docs/report.schema.json describes it."""
LINEAGE_PARTS = 3
"""Topic, partition and offset of an input; an output's number may follow."""
PARTITION_PARTS = 2
"""Topic and partition, where a finding is about a whole partition of the source."""
EMPTY_TEXT = '""'
"""An identity that would not be seen in a sentence."""
_UNNAMED = (
    ("The output of this input", "is committed"),
    ("This input", "has no committed output"),
    ("This identity", "is committed"),
)
"""Subjects and verbs that begin sentences of examples."""


@dataclass(frozen=True)
class Report:
    """A verdict and its basis. `to_json` and `from_json` are inverses."""

    verdict: Outcome
    guarantee: Guarantee
    why: str
    """One sentence that can be quoted."""
    source: Bounds
    """The judged range of the source: from `start` to `lso` of each partition."""
    inputs: JudgedInputs
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
    origins: Origins | None = None
    """None in reports of earlier versions, and if the readings did not come from Kafka."""
    notes: tuple[str, ...] = ()
    """What readers must know about the readings, a sentence each; no part of the verdict."""
    identity: str | None = None
    """What records were matched with their inputs by: `lineage`, `json $.id = json $.order.id`.
    None in reports of earlier versions, and about a sink alone."""

    @property
    def source_records(self) -> int:
        """Number of inputs in the judged range."""
        return self.inputs.records

    @property
    def exit_code(self) -> int:
        return exit_code(self.verdict)

    @property
    def origin(self) -> Origin | None:
        """The sink's cluster."""
        return None if self.origins is None else self.origins.sink

    @property
    def source_origin(self) -> Origin | None:
        """The source's cluster, if it is another one."""
        return None if self.origins is None else self.origins.source

    @property
    def covered_share(self) -> float | None:
        """The share of its inputs that a run reached before it was stopped or failed, from 0 to
        1.

        None if it reached them all, and for topics that were watched because they may move: they
        always have inputs that are not due.
        """
        watched = any(check.kind == MOVEMENT and check.records for check in self.checked)
        if watched or not self.not_processed:
            return None
        return self.source_records / (self.source_records + self.not_processed)

    @property
    def scope(self) -> str:
        """What the verdict is about: the guarantee, or the kinds that a contract requires
        instead."""
        reasons = {check.kind: check.why for check in self.not_checked}
        kinds = [
            finding.kind
            for finding in self.findings
            if finding.kind not in reasons and finding.kind not in PREMISES
        ]
        if NOT_NAMED not in reasons.values() or covers(self.guarantee, kinds, order=True):
            return str(self.guarantee)
        return f"{' and '.join(kinds)} alone"

    @property
    def aside(self) -> tuple[Finding, ...]:
        """Findings that need no section of their own: they do not count, and show nothing wrong or
        nothing at all."""
        uncounted = {check.kind for check in self.not_checked}
        return tuple(
            finding
            for finding in self.findings
            if finding.kind in uncounted
            and (
                finding.outcome is Outcome.UNKNOWN
                or (
                    finding.outcome is Outcome.HOLDS
                    and (finding.kind in NORMAL or not finding.count)
                )
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
        fates = {
            name: _total(getattr(partition, name) for partition in self.balance) for name in names
        }
        # An excess here and a lack there must not cancel out.
        return {
            **fates,
            "unexplained": sum(abs(partition.unexplained) for partition in self.balance),
        }

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
                "source": {**_bounds_json(self.source), **_inputs_json(self.inputs)},
                "sink": {
                    **_bounds_json(self.sink),
                    "fates": self.fates,
                    "balance": [asdict(partition) for partition in self.balance],
                    "transactions": asdict(self.transactions),
                },
                "findings": [_finding_json(finding) for finding in self.findings],
                "checked": [asdict(check) for check in self.checked],
                "not_checked": [asdict(check) for check in self.not_checked],
                "doubts": self.doubts,
                "warnings": self.warnings,
                "not_processed": self.not_processed,
                "took_s": self.took_s,
                "versions": dict(self.versions),
                # Without these, a report is the same text as in earlier versions.
                **_origin_json("origin", self.origin),
                **_origin_json("source_origin", self.source_origin),
                **({"notes": self.notes} if self.notes else {}),
                **({"identity": self.identity} if self.identity else {}),
            },
            indent=2,
            ensure_ascii=False,
        )

    @staticmethod
    def from_json(text: str) -> Report:
        """Parses a report. Raises ValueError for any schema but `SCHEMA`."""
        document: dict[str, Any] = json.loads(text)
        if document["schema"] != SCHEMA:
            raise ValueError(
                f"The report has schema {document['schema']}; this version reads schema {SCHEMA}."
            )
        return Report(
            verdict=Outcome(document["verdict"]),
            guarantee=Guarantee(document["guarantee"]),
            why=document["why"],
            source=_bounds(document["source"]),
            inputs=_inputs(document["source"]),
            sink=_bounds(document["sink"]),
            balance=tuple(Balance(**partition) for partition in document["sink"]["balance"]),
            transactions=Transactions(**document["sink"]["transactions"]),
            findings=tuple(_finding(finding) for finding in document["findings"]),
            checked=tuple(
                Check(**{**check, "witnesses": tuple(map(Witness, check["witnesses"]))})
                for check in document["checked"]
            ),
            not_checked=tuple(NotChecked(**check) for check in document["not_checked"]),
            doubts=tuple(document["doubts"]),
            not_processed=document["not_processed"],
            run=document["run"],
            took_s=document["took_s"],
            versions=document["versions"],
            # Reports of earlier versions have none.
            warnings=tuple(document.get("warnings", ())),
            origins=_origins(document),
            notes=tuple(document.get("notes", ())),
            identity=None if document.get("identity") is None else str(document["identity"]),
        )


def _finding_json(finding: Finding) -> dict[str, Any]:
    optional = ("story", "next_step")
    return {name: value for name, value in asdict(finding).items() if value or name not in optional}


def _inputs_json(inputs: JudgedInputs) -> dict[str, Any]:
    """The shares are for programs that draw them or warn of them; nothing reads them here."""
    outcomes = inputs.outcomes
    if outcomes is None:
        return {"records": inputs.records}
    shares = {
        "output_share": inputs.share(outcomes.with_output),
        "dead_letter_share": inputs.share(outcomes.with_dead_letter),
    }
    return {"records": inputs.records, "outcomes": {**asdict(outcomes), **shares}}


def _inputs(fields: Mapping[str, Any]) -> JudgedInputs:
    outcomes = fields.get("outcomes")
    if outcomes is None:
        return JudgedInputs(fields["records"])
    counts = {name: outcomes[name] for name in InputOutcomes.__dataclass_fields__}
    return JudgedInputs(fields["records"], InputOutcomes(**counts))


def _origin_json(name: str, origin: Origin | None) -> dict[str, Any]:
    if origin is None:
        return {}
    fields = asdict(origin)
    if origin.name is None:
        del fields["name"]
    return {name: fields}


def _origins(document: Mapping[str, Any]) -> Origins | None:
    sink, source = (
        None if document.get(name) is None else Origin(**document[name])
        for name in ("origin", "source_origin")
    )
    return None if sink is None else Origins(sink, source)


def exit_code(verdict: Outcome) -> int:
    """HOLDS 0, VIOLATED 1, UNKNOWN 3: an unjudged question is never a pass."""
    return EXIT_CODES[verdict]


def _total(values: Iterable[int | None]) -> int | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) if numbers else None


def _bounds_json(bounds: Bounds) -> dict[str, Any]:
    parts = {"parts": [asdict(part) for part in bounds.parts]} if bounds.parts else {}
    return {
        "topic": bounds.topic,
        **parts,
        "bounds": [asdict(partition) for partition in bounds.partitions],
    }


def _bounds(fields: Mapping[str, Any]) -> Bounds:
    parts = tuple(Part(**part) for part in fields.get("parts", ()))
    return Bounds(
        fields["topic"],
        tuple(PartitionBounds(**partition) for partition in fields["bounds"]),
        parts,
    )


def _finding(fields: Mapping[str, Any]) -> Finding:
    examples = tuple(Example(**example) for example in fields["examples"])
    return Finding(**{**fields, "outcome": Outcome(fields["outcome"]), "examples": examples})


def place_of(report: Report, example: Example) -> str:
    """Returns where an example lies: `squares-0@3 (input numbers-0@2)`, or one of both. A whole
    partition has no offset: `numbers-1`. Empty if it lies nowhere."""
    sink, source = "", ""
    if example.partition is not None:
        topic, partition = report.sink.place(example.partition)
        sink = f"{topic}-{partition}"
        sink += "" if example.offset is None else f"@{example.offset}"
    parts = (example.lineage or "").split("/")
    if len(parts) == PARTITION_PARTS and parts[1].isdecimal():
        source = f"{parts[0]}-{parts[1]}"
    if len(parts) >= LINEAGE_PARTS and parts[1].isdecimal() and parts[2].isdecimal():
        source = f"input {parts[0]}-{parts[1]}@{parts[2]}"
    return f"{sink} ({source})" if sink and source else sink or source


def identified_place(report: Report, example: Example) -> str:
    """Returns `place_of` with what identifies the record or its input, unless its sentence does."""
    place = place_of(report, example)
    if not place or not example.identity or identified_sentence(example) != example.why:
        return place
    empty = " (an empty text)" if example.identity == EMPTY_TEXT else ""
    return f"{place}, identity {example.identity}{empty}"


def identified_sentence(example: Example) -> str:
    """Returns the sentence of an example, with what identifies its record or input in place of
    `this input`: `"O-01002" is committed 2 times; ...`."""
    if example.identity and example.identity != EMPTY_TEXT:
        for unnamed, verb in _UNNAMED:
            if example.why.startswith(f"{unnamed} {verb}"):
                return f"{example.identity}{example.why.removeprefix(unnamed)}"
    return example.why

"""The other files of an evidence folder, derived again from its readings.

`verify` judges the readings again and compares: the report field by field, the page and the JUnit
file byte by byte, the findings row by row, the contract and the plan with the question. The time of
judging comes from the manifest, and its duration and the versions from the kept report. Nothing in
the folder proves these three.
"""

from __future__ import annotations

import filecmp
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError
from pyspark.sql import SparkSession

from topicproof.backend.contracts.expressions import stored_sql
from topicproof.backend.errors import EvidenceError, TopicproofError
from topicproof.backend.evidence.findings import (
    CSV,
    IDENTITY,
    PARQUET,
    ROWS,
    SCHEMA,
    WITHOUT_IDENTITY,
    Place,
    write_csv,
)
from topicproof.backend.evidence.folder import CONTRACT, REPORT
from topicproof.backend.evidence.junit import JUNIT, write_junit
from topicproof.backend.evidence.manifest import MANIFEST, PAGE, Manifest, Payloads
from topicproof.backend.evidence.page import page_time, write_page
from topicproof.backend.evidence.read_limits import read_json
from topicproof.backend.evidence.signed import read_signoffs
from topicproof.backend.storage import sent
from topicproof.validators.columns import COLUMN
from topicproof.validators.contract_terms import ContractTerms
from topicproof.validators.expected import Expected
from topicproof.validators.finding import Bounds, Guarantee, Order
from topicproof.validators.lineage.identity import Identity
from topicproof.validators.question import Question
from topicproof.validators.report import Report

PLAN = "plan.json"
OLD_PAGE = f"{PAGE} is of an earlier version, so it does not say which sign-offs are signed."
RAW_CSV = "findings-raw.csv"
WORDED = ("why", "transaction", "identity", "story", "next_step")
"""Fields in words, which differ from version to version. Earlier ones told no story, and named no
identity, and no transaction that the records themselves did not name."""
_SPELLED = (
    "match",
    "value",
    "offsets",
    "require",
    "warn",
    "retained",
    "filter_unchecked",
    "source_fields",
    "sink_fields",
    "aggregate",
    "table",
)
"""Terms that are compared in another spelling (`compared_terms`)."""
_IMPLIED = ("repeats", "losses", "compared", "group")
"""Terms that follow from others, or from the guarantee. A group is compared by its offsets."""
SENTENCES_MAX = 20
SHOWN_MAX = 80


def report_contradictions(text: str, report: Report, judged: Report) -> list[str]:
    """Return a sentence for each field of report.json (`text`) that the new judgement contradicts,
    in the report's order.

    For a report of another version, only the kinds that it names are compared, because its
    catalogue may have been shorter. Sentences, whose wording may differ, and later additions are
    ignored.
    """
    again = replace(judged, took_s=report.took_s, versions=report.versions)
    if not same_version(report):
        again = _only(again, known_kinds(report))
        again = replace(again, origins=again.origins if report.origins else None)
        # Earlier versions did not warn of inputs that may be lost or filtered: the last warning.
        again = replace(again, warnings=again.warnings[: len(report.warnings)])
    before, after = (json.loads(each.to_json()) for each in (report, again))
    if not same_version(report):
        before, after = _without_sentences(before), _without_sentences(after)
    sentences = list(_compared(before, after, ""))
    if same_version(report):
        sentences += _unknown_versions(report)
    if not sentences and text != f"{report.to_json()}\n" and same_version(report):
        sentences = ["it is not the text that Topicproof writes for its content."]
    return _few([f"{REPORT}: {sentence}" for sentence in sentences])


def _unknown_versions(report: Report) -> list[str]:
    """Return a sentence for each name among the versions that no Topicproof writes: the page shows
    them all."""
    from topicproof.backend.judging.judge import versions  # late, as below

    return [
        f"versions has {_shown(name)}, which Topicproof does not write."
        for name in report.versions.keys() - versions().keys()
    ]


def same_version(report: Report) -> bool:
    """Return whether all versions that judge and render are unchanged today."""
    return not other_versions(report)


def other_versions(report: Report) -> list[str]:
    """Return the report's versions that differ today, such as `pyspark 4.0.0 (now 4.1.0)`."""
    from topicproof.backend.judging.judge import (
        versions,  # late: judge.py completes the evidence that this module verifies
    )

    return [
        f"{name} {report.versions.get(name, 'of no known version')} (now {now})"
        for name, now in versions().items()
        if report.versions.get(name) != now
    ]


def known_kinds(report: Report) -> frozenset[str]:
    return frozenset(
        row.kind for each in (report.findings, report.checked, report.not_checked) for row in each
    )


def manifest_contradictions(manifest: Manifest, report: Report) -> list[str]:
    pairs = (("run", manifest.run, report.run), ("verdict", manifest.verdict, str(report.verdict)))
    return [
        f"{MANIFEST}: {name} is {was}; judged again it is {now}."
        for name, was, now in pairs
        if was != now
    ]


def asked_contradictions(evidence: Path, question: Question) -> list[str]:
    """Return where the contract or the plan in the evidence differs from the judged question."""
    sentences = []
    for name, read in (
        (CONTRACT, partial(_asked_by_contract, sink=question.sink, across=question.across)),
        (PLAN, _asked_by_plan),
    ):
        if not (evidence / name).is_file():
            continue
        try:
            terms = read(evidence / name)
        except (
            TopicproofError,
            ValidationError,
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            RecursionError,
        ) as error:
            sentences.append(f"{name}: it cannot be read: {str(error).splitlines()[0]}")
            continue
        judged = _judged(question)
        sentences += [
            f"{name}: {field} is {_shown(term)}; the question in taken.json has"
            f" {_shown(judged[field])}."
            for field, term in terms.items()
            if judged[field] != term
        ]
    return _few(sentences)


def _judged(question: Question) -> dict[str, Any]:
    sinks = (question.sink, *question.also)
    terms = compared_terms(
        question.guarantee, question.identity, question.expected, question.order, question.agreed
    )
    return {"source": _names(question.source), "sink": sinks, "first sink": question.sink, **terms}


def _as_spark_gets_it(text: str | None) -> str | None:
    """Spell an expression in one way. Evidence of earlier versions keeps it as it was written."""
    return None if text is None else stored_sql(text)


def compared_terms(
    guarantee: Guarantee,
    identity: Identity,
    expected: Expected,
    order: Order,
    agreed: ContractTerms,
) -> dict[str, Any]:
    """Return the terms of a question as comparable values. A term that is spelled in no other way
    is compared as it is, under its own name."""
    names = [field.name for field in fields(agreed) if field.name not in {*_SPELLED, *_IMPLIED}]
    return {
        "guarantee": str(guarantee),
        "identity": str(identity),
        "identity.source": agreed.match.source,
        "identity.sink": agreed.match.sink,
        "expect": str(expected.kind),
        "count": _as_spark_gets_it(expected.count if isinstance(expected.count, str) else None),
        "value": _as_spark_gets_it(agreed.value),
        "aggregate": (
            None
            if agreed.aggregate is None
            else agreed.aggregate.rewritten(lambda _name, text: stored_sql(text))
        ),
        # The types of its columns are known once the table was looked at.
        "table": None if agreed.table is None else replace(agreed.table, types={}),
        "fields of the source": agreed.source_fields,
        "fields of the sink": agreed.sink_fields,
        "order": str(order),
        "group": agreed.offsets is not None,
        "require": agreed.require,
        "range": "retained" if agreed.retained else "whole",
        "filtered": "unchecked" if agreed.filter_unchecked else None,
        **{f"warn.{name}": limit for name, limit in asdict(agreed.warn).items()},
        **{name: getattr(agreed, name) for name in names},
    }


def _names(bounds: Bounds) -> tuple[str, ...]:
    return tuple(part.topic for part in bounds.parts) or (bounds.topic,)


def _asked_by_contract(path: Path, sink: str, across: bool) -> dict[str, Any]:
    """Read the terms of a contract. Of several sinks, use the one named `sink`, else the first."""
    from topicproof.backend.contracts.contract import (
        read_contract,  # late: it imports what judges, which completes evidence
    )

    contracts = read_contract(path, across).each()
    contract = next(
        (candidate for candidate in contracts if sink in candidate.of.names), contracts[0]
    )
    agreed = contract.terms({} if contract.group is not None else None)
    fixed = compared_terms(
        contract.guarantee, contract.by, contract.expected, contract.order, agreed
    )
    return {"source": contract.source.names, "sink": contract.outcomes, **fixed}


def _asked_by_plan(path: Path) -> dict[str, Any]:
    """Read the terms that the plan of a run or a check fixes."""
    fields = read_json(path)
    if isinstance(fields.get("source", fields.get("sink")), str):
        terms = {"guarantee": fields["guarantee"]} if "guarantee" in fields else {}
        terms |= _identity_terms(fields["identity"]) if "identity" in fields else {}
        if "source" in fields:
            terms["source"] = tuple(fields["source"].split(" + "))
        return {**terms, **({"first sink": fields["sink"]} if "sink" in fields else {})}
    return _asked_by_run(fields)


def _identity_terms(identity: Any) -> dict[str, Any]:
    """Read how the plan of a check matches records. In plans of earlier versions, `key` stands for
    whatever is matched by its content."""
    from topicproof.backend.contracts.contract import make_contract  # late, as above

    topics: dict[str, Any] = {"source": {"topic": "source"}, "sink": {"topic": "sink"}}
    sink = identity.get("sink") if isinstance(identity, Mapping) else None
    if isinstance(sink, Mapping) and COLUMN in sink:
        topics["sink"] = {"table": {"format": "parquet", "path": "/table", "key": ["key"]}}
    contract = make_contract({**topics, "identity": identity})
    terms = {"identity": str(contract.by)}
    if identity in (str(Identity.LINEAGE), str(Identity.KEY)):
        return terms
    match = contract.terms(None).match
    return {**terms, "identity.source": match.source, "identity.sink": match.sink}


def _asked_by_run(fields: Mapping[str, Any]) -> dict[str, Any]:
    from topicproof.backend.runs.plan import RunPlan  # late, as above
    from topicproof.backend.runs.scenarios import scenario
    from topicproof.backend.sink.delivery_options import OFF

    plan = RunPlan.model_validate(dict(fields))
    terms: dict[str, Any] = {"guarantee": str(plan.guarantee)}
    terms["identity"] = str(Identity.KEY if plan.lineage == OFF else Identity.LINEAGE)
    chosen = scenario(plan.scenario)
    if len(chosen.stages) == 1 and len(chosen.stages[0].sources) == 1:
        if plan.source.topic is not None:
            terms["source"] = (plan.source.topic,)
        if plan.sink.topic is not None and len(chosen.stages[0].sinks) == 1:
            terms["first sink"] = plan.sink.topic
    return terms


def file_contradictions(
    spark: SparkSession,
    evidence: Path,
    manifest: Manifest,
    report: Report,
    places: Mapping[Place, int],
    scratch: Path,
) -> list[str]:
    """Return the rendered files that differ from what the report and the new rows produce.

    `places` and `scratch`, which holds `findings.parquet`, come from the new judgement.
    """
    kinds = known_kinds(report)
    counts = Counter({place: count for place, count in places.items() if place.kind in kinds})
    judged_at = manifest.judged_at or page_time(evidence / PAGE) or ""
    sentences = []
    schemas = (
        [SCHEMA]
        if same_version(report) and manifest.payloads is Payloads.ALL
        else [SCHEMA, WITHOUT_IDENTITY]
    )
    if not _same_rows(
        spark,
        evidence / PARQUET,
        scratch / PARQUET,
        kinds,
        schemas=schemas,
        sentences=same_version(report),
    ):
        sentences.append(f"{PARQUET}: its rows differ from those found again.")
    try:
        write_csv(evidence / PARQUET, scratch / CSV)
        write_csv(evidence / PARQUET, scratch / RAW_CSV, raw=True)
        write_junit(scratch / JUNIT, report, counts, judged_at)
        _render_page(scratch / PAGE, evidence, manifest, report)
        # Earlier versions wrote cells that a spreadsheet runs as they were.
        for name, source, renderings in (
            (CSV, PARQUET, (scratch / CSV, scratch / RAW_CSV)),
            (JUNIT, f"{REPORT} with the rows found again", (scratch / JUNIT,)),
            (PAGE, REPORT, (scratch / PAGE,)),
        ):
            if not (evidence / name).is_file():
                sentences.append(f"{name}: it is missing.")
            elif name == PAGE and has_old_page(evidence, manifest, report, scratch):
                continue
            elif not any(
                filecmp.cmp(evidence / name, rendering, shallow=False) for rendering in renderings
            ):
                sentences.append(f"{name}: it is not what {source} gives.")
    except (OSError, pa.ArrowInvalid) as error:
        raise EvidenceError(f"The files of {evidence} cannot be rendered again: {error}") from error
    return sentences


def has_old_page(evidence: Path, manifest: Manifest, report: Report, scratch: Path) -> bool:
    """Return whether the page is what an earlier version wrote: it does not say which sign-offs are
    signed. Raises OSError, EvidenceError."""
    if not read_signoffs(evidence) or not (evidence / PAGE).is_file():
        return False
    old = scratch / f"old-{PAGE}"
    _render_page(old, evidence, manifest, report, signatures=False)
    return filecmp.cmp(evidence / PAGE, old, shallow=False)


def _render_page(
    target: Path, evidence: Path, manifest: Manifest, report: Report, signatures: bool = True
) -> None:
    judged_at = manifest.judged_at or page_time(evidence / PAGE) or ""
    made_at = f"{judged_at.replace('T', ' ')} UTC"
    write_page(target, report, made_at, read_signoffs(evidence), signatures)


def _same_rows(
    spark: SparkSession,
    in_evidence: Path,
    judged: Path,
    kinds: frozenset[str],
    *,
    schemas: Sequence[pa.Schema],
    sentences: bool,
) -> bool:
    """Return whether both files hold the same rows in any order. Of the new rows, only those of
    `kinds` count. `schemas`: those that the file in the evidence may have. `sentences`: the wording
    must match as well."""
    try:
        schema = pq.read_schema(in_evidence)
        if not any(map(schema.equals, schemas)):
            return False
        rows = pq.read_metadata(in_evidence).num_rows
    except (OSError, pa.ArrowInvalid):
        return False
    if not rows and not pq.read_metadata(judged).num_rows:
        return True
    before, after = (
        spark.read.schema(ROWS).parquet(sent(spark, path)) for path in (in_evidence, judged)
    )
    after = after.where(after["kind"].isin(sorted(kinds)))
    if not sentences:
        before, after = before.drop(*WORDED), after.drop(*WORDED)
    elif not schema.equals(SCHEMA):
        before, after = before.drop(IDENTITY), after.drop(IDENTITY)
    return after.count() == rows and before.exceptAll(after).isEmpty()


def _only(report: Report, kinds: frozenset[str]) -> Report:
    return replace(
        report,
        findings=tuple(row for row in report.findings if row.kind in kinds),
        checked=tuple(row for row in report.checked if row.kind in kinds),
        not_checked=tuple(row for row in report.not_checked if row.kind in kinds),
    )


def _compared(was: Any, now: Any, path: str) -> Iterator[str]:
    """Yield a sentence for each field that differs."""
    if isinstance(was, list) and isinstance(now, list):
        was, now = _by_name(was), _by_name(now)
    if isinstance(was, dict) and isinstance(now, dict) and was and now:
        for name in dict.fromkeys((*was, *now)):
            inner = f"{path}.{name}" if path else str(name)
            if name not in now:
                yield f"{inner} is {_shown(was[name])}; judged again it is not there."
            elif name not in was:
                yield f"{inner} is not there; judged again it is {_shown(now[name])}."
            else:
                yield from _compared(was[name], now[name], inner)
    elif json.dumps(was) != json.dumps(now):
        yield f"{path} is {_shown(was)}; judged again it is {_shown(now)}."


def _without_sentences(value: Any) -> Any:
    """Remove every field of `WORDED`."""
    if isinstance(value, dict):
        return {
            name: _without_sentences(part) for name, part in value.items() if name not in WORDED
        }
    return [_without_sentences(part) for part in value] if isinstance(value, list) else value


def _by_name(values: Iterable[Any]) -> dict[str, Any]:
    """Return a list as fields, by kind or by number. Each kind after the first of its name gets a
    name of its own, so that no row hides another."""
    named: dict[str, Any] = {}
    for number, value in enumerate(values):
        fields = value if isinstance(value, dict) else {}
        name = str(fields.get("kind", number))
        named[f"{name} (row {number + 1})" if name in named else name] = value
    return named


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= SHOWN_MAX else f"{text[: SHOWN_MAX - 1]}…"


def _few(sentences: list[str]) -> list[str]:
    more = len(sentences) - SENTENCES_MAX
    return sentences if more <= 0 else [*sentences[:SENTENCES_MAX], f"{more:,} more fields differ."]

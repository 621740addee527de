"""A check: judging topics from any program, with the verdict kept in the history."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from topicproof.backend.contracts.contract_text import identity_terms
from topicproof.backend.contracts.sink_table import require_below
from topicproof.backend.doctor.workers import require_workers
from topicproof.backend.errors import CheckStopped, EvidenceError, TopicproofError
from topicproof.backend.evidence.attestation import attest, usable_key
from topicproof.backend.evidence.copy import without_payloads, without_values
from topicproof.backend.evidence.folder import CONTRACT, EVIDENCE, REPORT
from topicproof.backend.evidence.manifest import Payloads
from topicproof.backend.history.audit import note, require_noted
from topicproof.backend.history.kept_contracts import keep
from topicproof.backend.history.run_state import Facts, RanOn
from topicproof.backend.history.store import History, State
from topicproof.backend.judging.capture_store import write_text
from topicproof.backend.judging.judge import WRITING, JudgeOptions, judge_topics
from topicproof.backend.judging.table_rows import TableSink
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.log_file import RUN_LOG, logged_to
from topicproof.backend.runs.lifeline import check_lifeline, kafka_service, spark_service
from topicproof.backend.runs.recorded_ids import outdated_ids
from topicproof.backend.runs.sides import SideSettings
from topicproof.backend.runs.watched import watched
from topicproof.backend.services.keeper import Services
from topicproof.backend.services.spark_session import spark_session
from topicproof.backend.settings import Settings
from topicproof.backend.storage import Storage, publish, withdraw
from topicproof.backend.trust.identity import Action
from topicproof.validators.question import Question
from topicproof.validators.report import Report


@dataclass(frozen=True)
class CheckOptions:
    """What a check is told besides its question."""

    contract: str | None = None
    """The name that all checks of one contract share."""
    version: int | None = None
    """The contract's version, if it is kept in the history."""
    attachments: Mapping[str, str] = field(default_factory=dict)
    """Additional evidence files, by name."""
    payloads: Payloads = Payloads.ALL
    """All, or none in the evidence."""
    source_side: Settings | None = None
    """The settings of the source's cluster, if it is not that of the services."""
    table: TableSink | None = None
    """The table that is the sink; None for topics."""
    keeps_contract: bool = False
    """Whether the contract becomes the next version of its name, once there is a verdict."""


TWO_TOPICS = CheckOptions()
"""The options of a check without a contract."""


def check(
    settings: Settings,
    services: Services,
    history: History,
    question: Question,
    options: CheckOptions = TWO_TOPICS,
    give_up: Callable[[TopicproofError], None] | None = None,
) -> Report:
    """Judge two topics from any program, and keep the verdict in the history.

    `give_up` ends this process if Kafka or Spark is gone for good (lifeline.py). Raises
    CheckStopped if somebody stops it (`History.request_stop`), NotPermitted.
    """
    source, sink = question.source.topic, question.sink
    plan: dict[str, Any] = {
        "source": source,
        "sink": sink,
        "identity": identity_terms(question),
        "guarantee": question.guarantee,
        **({"contract": options.contract} if options.contract else {}),
        **({"contract_version": options.version} if options.version else {}),
    }
    require_noted(history, Action.CHECK, f"{source} and {sink}")
    if options.table is not None:
        is_restricted = settings.login is not None or history.by.authenticated
        require_below(options.table.table, settings.tables, is_restricted=is_restricted)
    # Rather now than after an hour of judging: the key may be in a device that is not there.
    usable_key(settings).sign(b"Topicproof tries its key before a check.")
    chosen = SideSettings(settings, options.source_side)
    if chosen.other is not None:
        sides = {"source": chosen.other.called, "sink": services.address.called}
        plan["clusters"] = sides
    entry = history.create("check", "check", plan)
    where = RanOn(settings.bootstrap, settings.brokers, settings.cluster)
    by = (history.by,)
    facts = Facts(
        source=source,
        sink=sink,
        also=question.also,
        database=None if options.table is None else options.table.table.location,
        cluster=where,
        launched_by=by,
    )
    history.remember(entry.id, facts)
    note(history, Action.CHECK, f"{entry.id}: {source} and {sink}")
    history.enter(entry.id, State.JUDGING)
    folder = settings.runs / entry.id
    of_cluster = source if options.table is not None else sink
    required_services = [
        kafka_service(Cluster(services.address), of_cluster),
        spark_service(services.spark_remote),
    ]
    if chosen.other is not None:
        required_services.append(kafka_service(Cluster(chosen.other), source))

    def on_step(step: str) -> None:
        watch.on_step(step)
        if step == WRITING and options.keeps_contract:
            _keep_contract(history, entry.id, plan, options)

    def without(error: TopicproofError) -> None:
        _remove(services.storage, folder, options.payloads, stopped=False)
        if give_up is not None:
            give_up(error)

    try:
        with (
            logged_to(lambda: folder / RUN_LOG),
            check_lifeline(history, entry.id, required_services, without if give_up else None),
            spark_session(services.spark_remote, services.storage) as spark,
            watched(history, entry.id, spark) as watch,
        ):
            if settings.spark_remote is not None:
                require_workers(spark, services.address, folder)
            _write_contract(folder, options.attachments.get(CONTRACT))
            outdated = outdated_ids(history, services.address, question)
            judged = replace(question, run=entry.id, topic_ids=outdated)
            with chosen.formats() as formats:
                report = judge_topics(
                    spark,
                    chosen.at(services.address),
                    judged,
                    folder,
                    JudgeOptions(
                        attachments={"plan.json": plan, **options.attachments},
                        payloads=options.payloads,
                        on_step=on_step,
                        formats=formats,
                        table=options.table,
                    ),
                )
        if options.payloads is Payloads.NONE:
            without_payloads(folder / EVIDENCE)
            report = without_values(report)
            write_text(folder / REPORT, report.to_json())
        attest(settings, folder / EVIDENCE, [identity.as_json() for identity in by])
        publish(services.storage, folder / EVIDENCE)
    except TopicproofError as error:
        stopped = isinstance(error, CheckStopped)
        _remove(services.storage, folder, options.payloads, stopped)
        state = State.STOPPED if stopped else State.FAILED
        history.end(entry.id, state, None, None, None if stopped else str(error))
        raise
    history.end(entry.id, State.DONE, report.verdict, report.why)
    return report


def _write_contract(folder: Path, text: str | None) -> None:
    """Write the contract beside the evidence. Without a verdict, the topics can be checked again by
    the same terms. Raises EvidenceError."""
    if text is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EvidenceError(f"{folder} cannot be made: {error.strerror}.") from error
    write_text(folder / CONTRACT, text)


def _keep_contract(history: History, run: str, plan: dict[str, Any], options: CheckOptions) -> None:
    """Keep the contract of a check that has judged, and name its version in the plan. Raises
    EvidenceError, NotPermitted."""
    assert options.contract is not None, "a contract is kept under a name"
    stored = keep(history, options.contract, options.attachments[CONTRACT])
    plan["contract_version"] = stored.version
    history.replace_plan(run, plan)


def _remove(storage: Storage | None, folder: Path, payloads: Payloads, stopped: bool) -> None:
    """Remove what a check that came to no verdict must not leave."""
    if payloads is Payloads.NONE:
        # The readings hold their payloads until they have been judged.
        shutil.rmtree(folder, ignore_errors=True)
        withdraw(storage, folder)
    elif stopped:
        # Half of the evidence proves nothing.
        shutil.rmtree(folder / EVIDENCE, ignore_errors=True)
        withdraw(storage, folder / EVIDENCE)

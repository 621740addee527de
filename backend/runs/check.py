"""A check: judging topics from any program, with the verdict kept in the history."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace

from topicproof.backend.errors import TopicproofError
from topicproof.backend.evidence.copy import without_payloads, without_values
from topicproof.backend.evidence.folder import EVIDENCE
from topicproof.backend.evidence.manifest import Payloads
from topicproof.backend.formats.formats import Formats
from topicproof.backend.history.run_state import Facts
from topicproof.backend.history.store import History, State
from topicproof.backend.judging.capture_store import Question
from topicproof.backend.judging.judge import judge_topics
from topicproof.backend.services.keeper import Services
from topicproof.backend.services.spark import spark_session
from topicproof.backend.settings import Settings
from topicproof.validators.report import Report


def check(
    settings: Settings,
    services: Services,
    history: History,
    question: Question,
    attachments: Mapping[str, str] | None = None,
    contract: str | None = None,
    payloads: Payloads = Payloads.ALL,
) -> Report:
    """Judge two topics from any program, and keep the verdict in the history.

    `attachments`: additional evidence files, by name. `contract`: the name that all checks of one
    contract share. `payloads`: all, or none in the evidence.
    """
    source, sink = question.source.topic, question.sink
    plan = {
        "source": source,
        "sink": sink,
        "identity": question.identity,
        "guarantee": question.guarantee,
    }
    entry = history.create("check", "check", plan | ({"contract": contract} if contract else {}))
    history.remember(entry.id, Facts(source=source, sink=sink))
    history.enter(entry.id, State.JUDGING)
    folder = settings.runs / entry.id
    try:
        with spark_session(services.spark_remote) as spark:
            judged = replace(question, run=entry.id)
            every = {"plan.json": entry.plan, **(attachments or {})}
            with closing(Formats(settings.registry, settings.avro_files)) as formats:
                report = judge_topics(
                    spark, services.address, judged, folder, every, payloads, formats
                )
        if payloads is Payloads.NONE:
            without_payloads(folder / EVIDENCE)
            report = without_values(report)
    except TopicproofError as error:
        if payloads is Payloads.NONE:
            # The readings hold their payloads until they have been judged.
            shutil.rmtree(folder, ignore_errors=True)
        history.end(entry.id, State.FAILED, None, None, str(error))
        raise
    history.end(entry.id, State.DONE, report.verdict, report.why)
    return report

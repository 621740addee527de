"""Verdicts as OpenLineage events, for catalogues of data: one event for each check, with the facet
DataQualityAssertions on the sink.

The specification knows no assertion that is open, so UNKNOWN counts as failed, as for in-toto. A
kind that was not checked is left out: it is no assertion.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from topicproof.backend.errors import EvidenceError, UsageError
from topicproof.validators.finding import Outcome
from topicproof.validators.report import Report

if TYPE_CHECKING:
    from openlineage.client.event_v2 import RunEvent

NAMESPACE = "topicproof"
PRODUCER = "urn:topicproof"
RETRY = {"total": 2, "backoff_factor": 0.3, "allowed_methods": ["POST"]}
"""By its own settings, the client tries for ten seconds to reach an endpoint that is not there."""
API_KEY = "OPENLINEAGE_API_KEY"
"""OpenLineage's own variable: sent as a bearer token, if it is set."""


def event_of(report: Report, of_source: str, of_sink: str, ended: datetime) -> RunEvent:
    """Return the event of a check. `of_source`, `of_sink`: the bootstrap servers of each cluster;
    the first one is OpenLineage's name of the cluster. Raises UsageError if OpenLineage's client is
    not installed."""
    try:
        from openlineage.client.event_v2 import InputDataset, Job, Run, RunEvent, RunState
        from openlineage.client.facet_v2 import data_quality_assertions_dataset as quality
    except ImportError as error:
        raise UsageError(
            "--openlineage needs OpenLineage's client: pip install 'topicproof[openlineage]'."
        ) from error
    open_kinds = {finding.kind for finding in report.not_checked}
    verdict = quality.Assertion(
        assertion=str(report.guarantee),
        success=report.verdict is Outcome.HOLDS,
        severity="error",
        description=report.why,
    )
    each = [
        quality.Assertion(
            assertion=finding.kind,
            success=finding.outcome is Outcome.HOLDS,
            severity="error",
            description=finding.why,
            actual=None if finding.outcome is Outcome.HOLDS else str(finding.count),
        )
        for finding in report.findings
        if finding.kind not in open_kinds
    ]
    facet = quality.DataQualityAssertionsDatasetFacet(assertions=[verdict, *each])
    source, sink = report.source.topic, report.sink.topic
    return RunEvent(
        eventType=RunState.COMPLETE,
        eventTime=ended.astimezone(UTC).isoformat(),
        run=Run(runId=str(uuid.uuid5(uuid.NAMESPACE_URL, f"topicproof:{report.run}:{ended}"))),
        job=Job(namespace=NAMESPACE, name=f"check {source} -> {sink}"),
        inputs=[
            InputDataset(namespace=_cluster(of_source), name=source),
            InputDataset(
                namespace=_cluster(of_sink),
                name=sink,
                inputFacets={"dataQualityAssertions": facet},
            ),
        ],
        producer=PRODUCER,
    )


def _cluster(servers: str) -> str:
    return f"kafka://{servers.split(',')[0]}"


def emit(url: str, events: Sequence[RunEvent]) -> None:
    """Send events to an OpenLineage endpoint. Raises EvidenceError if it does not take them."""
    from openlineage.client.transport.http import ApiKeyTokenProvider, HttpConfig, HttpTransport

    config = HttpConfig(url=url, retry=RETRY)
    if key := os.environ.get(API_KEY):
        config.auth = ApiKeyTokenProvider({"apiKey": key})
    try:
        transport = HttpTransport(config)
        for event in events:
            transport.emit(event)
    # The client's HTTP libraries have no exception in common.
    except Exception as error:
        answer = getattr(error, "response", None)
        why = type(error).__name__ if answer is None else f"HTTP {answer.status_code}"
        raise EvidenceError(
            f"The OpenLineage endpoint at {urlsplit(url).hostname} did not take the verdict"
            f" ({why}). It is in the history."
        ) from error

"""Pipelines: what verdicts have in common that answer one question again and again, whatever the
version of its contract."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from topicproof.backend.history.store import History, Kind, Run
from topicproof.backend.history.trend import scenario

LOOKED_BACK = 300
"""Verdicts among which the one before is looked for."""


@dataclass(frozen=True)
class Pipeline:
    """Two topics that are checked under one name, or a scenario of our runs."""

    name: str
    """Of the contract, or of the sink: what a check of the page is kept as."""
    source: str
    sink: str
    cluster: str
    """`east`, `east → west`, an address, or `embedded`."""
    guarantee: str = ""
    """Of a scenario. A contract's is one of its terms."""


@dataclass(frozen=True)
class CheckedPipeline:
    """A pipeline and its newest checks."""

    pipeline: Pipeline
    newest: Run
    """Its newest check, also without a verdict."""
    judged: Run | None
    """Its newest check with a verdict."""
    earlier: tuple[Run, ...]
    """The checks with the verdicts before that, newest first."""

    @property
    def before(self) -> Run | None:
        """The check with the verdict before the newest."""
        return self.earlier[0] if self.earlier else None


def default_name(sink: str | None, contract: str | None) -> str:
    """Return the name of a contract that nobody has named: of its file, or of the sink."""
    for ending in (".yaml", ".yml"):
        contract = contract.removesuffix(ending) if contract else contract
    return contract or sink or "contract"


def clusters(run: Run) -> str:
    """Name the cluster of a run or check, or both clusters of a check across two."""
    sides = run.plan.get("clusters")
    if isinstance(sides, dict):
        return f"{sides.get('source')} → {sides.get('sink')}"
    where = run.facts.cluster
    return where.name or where.bootstrap or "embedded"


def pipeline_of(run: Run) -> Pipeline:
    """Return the pipeline that a run or check is of."""
    if run.kind != Kind.CHECK:
        guarantee = str(run.plan.get("guarantee", ""))
        return Pipeline(scenario(run), "", "", clusters(run), guarantee)
    facts = run.facts
    name = default_name(facts.sink, run.plan.get("contract"))
    return Pipeline(name, facts.source, facts.sink, clusters(run))


def checked_pipelines(checks: Sequence[Run]) -> list[CheckedPipeline]:
    """Group checks, newest first, by their pipelines."""
    by_pipeline: dict[Pipeline, list[Run]] = {}
    for run in checks:
        # A damaged row does not say what it is of.
        if run.kind == Kind.CHECK and run.facts.sink:
            by_pipeline.setdefault(pipeline_of(run), []).append(run)
    pipelines = []
    for pipeline, runs in by_pipeline.items():
        judged = [run for run in runs if run.verdict is not None]
        newest = judged[0] if judged else None
        pipelines.append(CheckedPipeline(pipeline, runs[0], newest, tuple(judged[1:])))
    return pipelines


def verdict_before(history: History, run: Run) -> Run | None:
    """Return the run or check with the last verdict on the same pipeline before this one; None if
    it is the first."""
    pipeline = pipeline_of(run)
    earlier = history.judged_before(run, pipeline.sink or pipeline.name, LOOKED_BACK)
    return next((other for other in earlier if pipeline_of(other) == pipeline), None)

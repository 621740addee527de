"""Runs: start, stop, resume, list, show and delete them, and judge any two topics."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from operator import not_
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.table import Table

from topicproof.backend.commands.options import (
    AbortProbability,
    AttemptsMax,
    Bootstrap,
    Brokers,
    Config,
    Fault,
    Json,
    Lineage,
    OffsetsForced,
    Out,
    Partitions,
    PerTransaction,
    PlanFile,
    Rate,
    Records,
    RunId,
    Scenario,
    Seed,
    SourceOption,
    UntilStopped,
    settings_of,
)
from topicproof.backend.commands.show import balances, plain, progress_line, side_effects
from topicproof.backend.commands.terminal import emit, err, out, print_report, say, stopping
from topicproof.backend.errors import TopicproofError, UsageError
from topicproof.backend.evidence.copy import copy_evidence, require_room
from topicproof.backend.evidence.folder import EVIDENCE, REPORT
from topicproof.backend.evidence.manifest import Payloads
from topicproof.backend.exit_codes import UNJUDGED, code_of, worst
from topicproof.backend.history.run_state import progress_fields
from topicproof.backend.history.signoff import signoffs
from topicproof.backend.history.store import History, Run
from topicproof.backend.judging.contract import Contract, make_contract, question_of, read_contract
from topicproof.backend.judging.selftest import NOTHING_TO_INJECT_INTO, self_test
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.runs import lifecycle as runs_of
from topicproof.backend.runs.duplicates import Cause
from topicproof.backend.runs.plan import RunPlan, make_plan
from topicproof.backend.runs.scenarios import SCENARIOS
from topicproof.backend.runs.stage_verdicts import stage_folder
from topicproof.backend.services.keeper import Services, services
from topicproof.backend.services.spark import spark_session
from topicproof.backend.settings import Settings
from topicproof.backend.waiting import ask_until
from topicproof.backend.yaml_fields import read_yaml
from topicproof.validators.finding import Guarantee
from topicproof.validators.lineage.identity import Identity
from topicproof.validators.report import Report

STOP_WAIT_S = 60.0


def run(
    plan_file: PlanFile = None,
    scenario: Scenario = None,
    guarantee: Annotated[
        str | None,
        typer.Option(
            help="What to promise: exactly_once, at_least_once or at_most_once.", metavar="NAME"
        ),
    ] = None,
    records: Records = None,
    partitions: Partitions = None,
    per_transaction: PerTransaction = None,
    lineage: Lineage = None,
    abort_probability: AbortProbability = None,
    attempts_max: AttemptsMax = None,
    fault: Fault = None,
    seed: Seed = None,
    rate: Rate = None,
    until_stopped: UntilStopped = False,
    source: Annotated[
        str | None, typer.Option(help="An existing source topic: nothing is filled.", metavar="T")
    ] = None,
    source_option: SourceOption = None,
    sink: Annotated[
        str | None,
        typer.Option(
            help="The sink topic, or the table, instead of one of the run's own.", metavar="T"
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            help=(
                "In the scenario table: the database, such as postgresql+psycopg://user@host/name;"
                " else SQLite."
            ),
            metavar="URL",
        ),
    ] = None,
    duplicates: Annotated[
        Cause | None,
        typer.Option(help="In the scenario totals: why payments come into the source twice."),
    ] = None,
    deduplicate_s: Annotated[
        int | None,
        typer.Option(
            help="In the scenario totals: drop payments that came before, within so many seconds.",
            metavar="S",
        ),
    ] = None,
    reader: Annotated[
        bool,
        typer.Option(
            "--reader", help="Also read the sink while it is written, as one more witness."
        ),
    ] = False,
    bootstrap: Bootstrap = None,
    config: Config = None,
    brokers: Brokers = None,
    json_: Json = None,
) -> None:
    """One run from end to end: fill, transactional pipeline on Spark, verdict. The exit code is the
    verdict's.

    Example: `topicproof run --records 100000 --abort-probability 0.2 --fault crash@transaction=3
    --seed 1`
    """
    named = plan_file is not None and str(plan_file) in SCENARIOS and not plan_file.exists()
    fields: dict[str, Any] = read_yaml(plan_file) if plan_file and not named else {}
    _merge(
        fields,
        scenario=scenario or (str(plan_file) if named else None),
        guarantee=guarantee,
        records=records,
    )
    _merge(fields, partitions=partitions, rate=rate, lineage=lineage)
    _merge(
        fields,
        per_transaction=per_transaction,
        abort_probability=abort_probability,
        attempts_max=attempts_max,
    )
    _merge(fields, faults=fault, seed=seed, until_stopped=until_stopped or None)
    _merge_topics(fields, source, source_option, sink)
    _merge(
        fields,
        duplicates=duplicates and duplicates.value,
        deduplicate_s=deduplicate_s,
        reader=reader or None,
    )
    if url:
        fields["sink"] = {**(fields.get("sink") or {}), "url": url}
    _launch(settings_of(bootstrap, config, brokers), make_plan(fields), json_)


def process(
    source: Annotated[str, typer.Option(help="The topic to read.", metavar="T")] = "numbers",
    sink: Annotated[
        str, typer.Option(help="The topic to write; made when it is missing.", metavar="T")
    ] = "squares",
    scenario: Scenario = None,
    per_transaction: PerTransaction = None,
    lineage: Lineage = None,
    abort_probability: AbortProbability = None,
    attempts_max: AttemptsMax = None,
    fault: Fault = None,
    seed: Seed = None,
    until_stopped: UntilStopped = False,
    source_option: SourceOption = None,
    bootstrap: Bootstrap = None,
    config: Config = None,
    brokers: Brokers = None,
    json_: Json = None,
) -> None:
    """Only the transactional pipeline: from a source topic to a sink topic, without a verdict.

    Example: `topicproof process --source numbers --sink squares`
    """
    fields: dict[str, Any] = {"judged": False}
    _merge(
        fields,
        scenario=scenario,
        per_transaction=per_transaction,
        abort_probability=abort_probability,
    )
    _merge(
        fields,
        attempts_max=attempts_max,
        faults=fault,
        seed=seed,
        until_stopped=until_stopped or None,
    )
    _merge(fields, lineage=lineage)
    _merge_topics(fields, source, source_option, sink)
    _launch(settings_of(bootstrap, config, brokers), make_plan(fields), json_)


def check(
    source: Annotated[
        str | None, typer.Option(help="The topic that was read; else numbers.", metavar="T")
    ] = None,
    sink: Annotated[
        str | None, typer.Option(help="The topic that was written; else squares.", metavar="T")
    ] = None,
    identity: Annotated[
        Identity | None, typer.Option(help="How a sink record names its input; else by lineage.")
    ] = None,
    guarantee: Annotated[
        Guarantee | None, typer.Option(help="What was promised; else exactly_once.")
    ] = None,
    contract: Annotated[
        Path | None,
        typer.Option(help="A contract in YAML, which says all of these.", metavar="FILE"),
    ] = None,
    self_tested: Annotated[
        bool,
        typer.Option(
            "--self-test",
            help="Also show that faults injected into copies of the readings are caught.",
        ),
    ] = False,
    folder: Out = None,
    payloads: Annotated[
        Payloads,
        typer.Option(
            help=(
                "Keys, values and headers in --out: as read, as digests; none: kept nowhere, and"
                " faster."
            )
        ),
    ] = Payloads.ALL,
    bootstrap: Bootstrap = None,
    config: Config = None,
    brokers: Brokers = None,
    json_: Json = None,
) -> None:
    """Judge any two topics of any cluster, whoever wrote them. The exit code is the verdict's; 3
    where the self-test was asked for and cannot run.

    Example: `topicproof check --source numbers --sink squares --identity key`, or
    `topicproof check --contract contracts/squares.yaml`
    """
    given = {"source": source, "sink": sink, "identity": identity, "guarantee": guarantee}
    if self_tested and payloads is Payloads.NONE:
        raise UsageError(
            "--self-test needs the records, which --payloads none does not keep. Leave one of them"
            " out."
        )
    agreed, fields = _agreed(
        contract, {name: str(value) for name, value in given.items() if value is not None}
    )
    settings = settings_of(bootstrap, config, brokers)
    if folder is not None:
        require_room(folder)
    history = History(settings)
    with services(settings, say=say) as found:
        cluster = Cluster(found.address)
        cluster.check()
        attachments = (
            {"contract.yaml": contract.read_text(encoding="utf-8")} if contract is not None else {}
        )
        name = contract.name if contract is not None else None
        reports, codes = [], []
        for one in agreed.each():
            question = question_of(one, fields, cluster)
            report = runs_of.check(settings, found, history, question, attachments, name, payloads)
            reports.append(report)
            codes.append(code_of(report))
            if self_tested and report.run is not None:
                with spark_session(found.spark_remote) as spark:
                    caught = self_test(spark, history.get(report.run).folder(settings))
                kinds = ", ".join(one.kind for one in caught)
                if not kinds:
                    codes.append(UNJUDGED)
                told = (
                    f"{kinds} caught, each once" if kinds else f"not run: {NOTHING_TO_INJECT_INTO}."
                )
                say(f"self-test: {told}")
    for report in reports:
        if folder is not None and report.run is not None:
            kept = Payloads.MASKED if payloads is Payloads.MASKED else Payloads.ALL
            place = folder if len(reports) == 1 else folder / report.sink.topic
            copy_evidence(history.get(report.run).folder(settings) / EVIDENCE, place, kept)
    _conclude_all(reports, json_, worst(codes))


def _agreed(contract: Path | None, given: Mapping[str, str]) -> tuple[Contract, dict[str, Any]]:
    """The contract of a check, from a file or from options. Raises UsageError, ContractError."""
    if contract is not None:
        if given:
            raise UsageError(
                f"The contract says this already. Remove --{next(iter(given))}, or --contract."
            )
        return read_contract(contract)
    fields: dict[str, Any] = {"source": {"topic": "numbers"}, "sink": {"topic": "squares"}}
    fields |= {name: {"topic": said} if name in fields else said for name, said in given.items()}
    return make_contract(fields), fields


def stop(run_id: RunId, json_: Json = None) -> None:
    """Stop a run: its current transaction ends or is aborted, none is left open; `resume` goes on
    from there.

    Example: `topicproof stop squares-k3f9a2`
    """
    history = History(settings_of())
    found = history.get(run_id)
    if not found.alive:
        raise UsageError(f"Run {run_id} is not running (it is {found.state}).")
    history.request_stop(run_id)
    found = ask_until(lambda: history.get(run_id), lambda one: not one.alive, STOP_WAIT_S)
    if found.alive:
        raise TopicproofError(
            f"Run {run_id} has been asked to stop but still runs. Look again: topicproof show"
            f" {run_id}"
        )
    emit(json_, _run_json(found))
    out.print(f"{run_id} is {found.state}.")


def resume(
    run_id: RunId,
    offsets_forced: OffsetsForced = False,
    bootstrap: Bootstrap = None,
    config: Config = None,
    json_: Json = None,
) -> None:
    """Go on with a run that was stopped or killed, from what it had committed.

    Example: `topicproof resume squares-k3f9a2`
    """
    settings = settings_of(bootstrap, config)
    history = History(settings)
    settings = where_it_ran(settings, history.get(run_id))
    with stopping() as stop, services(settings, say=say) as found, _followed(history, run_id):
        report = runs_of.resume(settings, found, history, run_id, stop, offsets_forced)
    _conclude_run(history, run_id, report, json_)


def list_runs(json_: Json = None) -> None:
    """All runs and checks, newest first.

    Example: `topicproof runs`
    """
    found = History(settings_of()).list()
    emit(json_, [_run_json(one) for one in found])
    if json_ is not None:
        return
    if not found:
        out.print("No runs yet. Start one: topicproof run")
        return
    table = Table("run", "started (UTC)", "state", "verdict", "why", box=None, pad_edge=False)
    for one in found:
        state = one.state if one.alive or one.ended_at else "killed"
        table.add_row(
            one.id,
            f"{one.created_at:%Y-%m-%d %H:%M:%S}",
            state,
            one.verdict or "",
            one.why or one.error or "",
        )
    out.print(table)


def show(run_id: RunId, json_: Json = None) -> None:
    """A run's report, or how far it is.

    Example: `topicproof show squares-k3f9a2`
    """
    settings = settings_of()
    history = History(settings)
    found = history.get(run_id)
    path = report_path(settings, found)
    report = Report.from_json(path.read_text(encoding="utf-8")) if path.exists() else None
    stages = {
        name: json.loads(
            (stage_folder(found.folder(settings), name) / REPORT).read_text(encoding="utf-8")
        )
        for name in found.facts.verdicts
    }
    signed = signoffs(history, run_id)
    said = {
        **_run_json(found),
        "report": json.loads(report.to_json()) if report else None,
        "stages": stages,
    }
    emit(json_, {**said, "signoffs": [asdict(one) for one in signed]})
    if json_ is not None:
        return
    out.print(f"{found.id}: {found.state}" + (f". {found.error}" if found.error else ""))
    out.print(progress_line(found.progress)) if report is None else print_report(report)
    _print_stages(found)
    if counted := side_effects(found.progress):
        out.print(counted)
    for one in signed:
        out.print(f"signed: {plain(one.said)}", highlight=False)


def clean(
    run_id: RunId,
    signed_too: Annotated[
        bool,
        typer.Option(
            "--signed-too", help="Also a run that somebody signed: its evidence is gone then."
        ),
    ] = False,
    bootstrap: Bootstrap = None,
    config: Config = None,
    json_: Json = None,
) -> None:
    """Delete a run: the topics it made, its group, its folder, its entry in the history.

    Example: `topicproof clean squares-k3f9a2`
    """
    settings = settings_of(bootstrap, config)
    history = History(settings)
    found_run = history.get(run_id)
    signed = signoffs(history, run_id)
    if signed and not signed_too:
        raise UsageError(
            f"Run {run_id} was signed by {signed[-1].name}, and the evidence of that would be"
            f" deleted. Take it along first (topicproof evidence {run_id} --out DIR), then repeat"
            " with --signed-too."
        )
    settings = where_it_ran(settings, found_run)
    with services(
        settings, spark=found_run.facts.session is not None and not found_run.ended_at, say=say
    ) as found:
        deleted = runs_of.clean(settings, found, history, run_id)
    emit(json_, {"run": run_id, "deleted": deleted})
    out.print(
        f"{run_id} is gone" + (f", with its topics {', '.join(deleted)}." if deleted else ".")
    )


def execute(
    settings: Settings, found: Services, plan: RunPlan, stop: threading.Event
) -> tuple[str, Report | None]:
    """One run from end to end, told line by line: its name and its verdict."""
    history = History(settings)
    made = runs_of.create(settings, found, history, plan)
    say(f"run {made.id}: {made.facts.source} -> {made.facts.sink}")
    with _followed(history, made.id):
        report = runs_of.execute(runs_of.make_context(settings, found, history, made, stop))
    return made.id, report


def stop_all(settings: Settings) -> None:
    """Stop every run that still goes on in this home, so that none is cut off in the middle of a
    transaction."""
    history = History(settings)
    going = [one.id for one in history.list() if one.alive]
    for run_id in going:
        history.request_stop(run_id)
    ask_until(lambda: any(history.get(run_id).alive for run_id in going), not_, STOP_WAIT_S)


def _launch(settings: Settings, plan: RunPlan, json_: str | None) -> None:
    with stopping() as stop, services(settings, say=say) as found:
        history = History(settings)
        run_id, report = execute(settings, found, plan, stop)
    _conclude_run(history, run_id, report, json_)


def _conclude_run(history: History, run_id: str, report: Report | None, json_: str | None) -> None:
    found = history.get(run_id)
    if report is not None:
        _conclude(report, json_, runs_of.exit_code(found, report), found)
    emit(json_, _run_json(found))
    out.print(f"{run_id} is {found.state}: {progress_line(found.progress)}")


def _conclude(report: Report, json_: str | None, code: int, found: Run | None = None) -> NoReturn:
    emit(json_, json.loads(report.to_json()))
    if json_ != "-":
        print_report(report)
        if found is not None:
            _print_stages(found)
            if said := side_effects(found.progress):
                out.print(said)
            out.print(f"Look closer: topicproof show {found.id}")
            if found.error:
                err.print(f"[red]{found.error}[/]", highlight=False)
    raise typer.Exit(code)


def _conclude_all(reports: Sequence[Report], json_: str | None, code: int) -> NoReturn:
    """As `_conclude`, for a check of one or several sinks."""
    if len(reports) == 1:
        _conclude(reports[0], json_, code)
    emit(json_, [json.loads(report.to_json()) for report in reports])
    if json_ != "-":
        for report in reports:
            print_report(report)
    raise typer.Exit(code)


def _print_stages(found: Run) -> None:
    """What each of several stages proves, below what the run proves end to end; of totals, whether
    they are right."""
    for name, said in found.facts.verdicts.items():
        out.print(f"stage {name}: {said.verdict}: {plain(said.why)}")
    for name, said in found.facts.values.items():
        out.print(f"values of {name}: {said.verdict}: {plain(said.why)}")
    if text := balances(found.facts):
        out.print(text)


@contextmanager
def _followed(history: History, run_id: str) -> Iterator[None]:
    """One line a second about a run while the block works on it."""
    ended = threading.Event()

    def follow() -> None:
        last = ""
        while not ended.wait(1.0):
            line = progress_line(history.get(run_id).progress)
            if line and line != last:
                say(line)
                last = line

    teller = threading.Thread(target=follow, daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()


def where_it_ran(settings: Settings, run_: Run) -> Settings:
    """The cluster a run was made on, unless another address is given."""
    where = run_.facts.cluster
    if settings.bootstrap is not None:
        return settings
    return replace(settings, bootstrap=where.bootstrap, brokers=where.brokers or settings.brokers)


def _merge(fields: dict[str, Any], **given: Any) -> None:
    fields.update({name: value for name, value in given.items() if value not in (None, [])})


def _merge_topics(
    fields: dict[str, Any], source: str | None, options: list[str] | None, sink: str | None
) -> None:
    pairs = {}
    for text in options or []:
        name, separator, value = text.partition("=")
        if not separator:
            raise UsageError(f"--source-option {text}: expected NAME=VALUE.")
        pairs[name] = value
    if source or pairs:
        own = dict(fields.get("source") or {})
        _merge(own, topic=source, options=({**own.get("options", {}), **pairs}) or None)
        fields["source"] = own
    if sink:
        fields["sink"] = {**(fields.get("sink") or {}), "topic": sink}


def report_path(settings: Settings, run_: Run) -> Path:
    return run_.folder(settings) / REPORT


def _run_json(found: Run) -> dict[str, Any]:
    return {
        "run": found.id,
        "kind": found.kind,
        "state": found.state,
        "created_at": found.created_at.isoformat() + "Z",
        "ended_at": found.ended_at.isoformat() + "Z" if found.ended_at else None,
        "alive": found.alive,
        "verdict": found.verdict,
        "why": found.why,
        "error": found.error,
        "plan": found.plan,
        "topics": {
            name: topic
            for name in ("source", "sink", "journal")
            if (topic := getattr(found.facts, name))
        },
        "progress": progress_fields(found.progress),
    }

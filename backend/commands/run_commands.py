"""Runs: start, stop, resume, list, show and delete them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from operator import not_
from typing import Annotated, Any, Literal

import typer

from topicproof.backend.characters import visible
from topicproof.backend.commands.outcome import conclude_run, print_report, print_stages, run_json
from topicproof.backend.commands.run_options import (
    PLANNED,
    ByHand,
    CommitInterval,
    NamesFromHistory,
    OffsetsForced,
    PlanFile,
    PlanOption,
    RealTime,
    Scenario,
    SourceOption,
    TransactionOptions,
    pairs,
    plan_options,
)
from topicproof.backend.commands.shared_options import (
    EMBEDDED,
    AllKinds,
    Brokers,
    Json,
    Partitions,
    Rate,
    Records,
    RunId,
    Target,
    UntilStopped,
    kafka_settings,
    settings_of,
)
from topicproof.backend.commands.show import progress_line, side_effects
from topicproof.backend.commands.terminal import Styled, Table, emit, give_up, out, say, stopping
from topicproof.backend.errors import TopicproofError, UsageError
from topicproof.backend.evidence.folder import REPORT, evidence_hash
from topicproof.backend.faults.by_hand import FREEZE_S, Freeze, Kill
from topicproof.backend.history.audit import allow
from topicproof.backend.history.run_reports import read_run_report
from topicproof.backend.history.signoff import read_chain, run_standings, standing_text
from topicproof.backend.history.since_last import since_last_of
from topicproof.backend.history.store import History, Kind, Run, State
from topicproof.backend.runs.clean import clean as clean_run
from topicproof.backend.runs.context import (
    finish as finish_run,
    make_context,
    release as release_run,
    stop as stop_run,
)
from topicproof.backend.runs.create import create
from topicproof.backend.runs.duplicates import Cause
from topicproof.backend.runs.execute import execute as execute_run
from topicproof.backend.runs.plan import RunPlan, make_plan
from topicproof.backend.runs.resume import resume as resume_run
from topicproof.backend.runs.scenarios import SCENARIOS
from topicproof.backend.runs.stage_verdicts import stage_folder
from topicproof.backend.runs.strikes import strike as strike_run
from topicproof.backend.services.keeper import Services, services
from topicproof.backend.settings import Settings, read_settings
from topicproof.backend.trust.identity import Action
from topicproof.backend.waiting import ask_until
from topicproof.backend.yaml_fields import PLAN_FIELDS, read_yaml
from topicproof.validators.report import Report
from topicproof.validators.shell_words import shell_word

STOP_WAIT_S = 60.0
"""Seconds that a run may stay in one state after a stop request, unless it is being judged."""


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
    transactions: TransactionOptions = PLANNED,
    rate: Rate = None,
    until_stopped: UntilStopped = False,
    by_hand: ByHand = False,
    real_time: RealTime = False,
    commit_interval_ms: CommitInterval = None,
    source: Annotated[
        str | None, typer.Option(help="An existing source topic: nothing is filled.", metavar="T")
    ] = None,
    source_option: SourceOption = None,
    plan_option: PlanOption = None,
    sink: Annotated[
        str | None,
        typer.Option(help="An existing sink topic or table, instead of a new one.", metavar="T"),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            help=(
                "Scenario table: the database, such as postgresql+psycopg://user@host/name."
                " Default: SQLite."
            ),
            metavar="URL",
        ),
    ] = None,
    duplicates: Annotated[
        Cause | None,
        typer.Option(help="Scenario totals: why payments enter the source twice."),
    ] = None,
    deduplicate_s: Annotated[
        int | None,
        typer.Option(
            help="Scenario totals: drop payments repeated within this many seconds.",
            metavar="S",
        ),
    ] = None,
    reader: Annotated[
        bool,
        typer.Option(
            "--reader", help="Also read the sink while it is being written: one more witness."
        ),
    ] = False,
    target: Target = EMBEDDED,
    brokers: Brokers = None,
    json_: Json = None,
) -> None:
    """Run end to end: fill a topic, process it in transactions on Spark, judge the result.

    The exit code is the verdict's.

    Example: `topicproof run --records 100000 --abort-probability 0.2 --fault crash@transaction=3
    --seed 1`
    """
    named = plan_file is not None and str(plan_file) in SCENARIOS and not plan_file.exists()
    fields: dict[str, Any] = read_yaml(plan_file, PLAN_FIELDS) if plan_file and not named else {}
    fields |= transactions.fields | plan_options(plan_option)
    fields |= given(
        scenario=scenario or (str(plan_file) if named else None),
        guarantee=guarantee,
        records=records,
        partitions=partitions,
        rate=rate,
        until_stopped=until_stopped or None,
        by_hand=by_hand or None,
        trigger="real_time" if real_time else None,
        commit_interval_ms=commit_interval_ms,
        duplicates=duplicates and duplicates.value,
        deduplicate_s=deduplicate_s,
        reader=reader or None,
    )
    fields |= _topics(fields, source, source_option, sink, url)
    _launch(kafka_settings(target, brokers), make_plan(fields), json_)


def process(
    source: Annotated[str, typer.Option(help="The topic to read.", metavar="T")] = "numbers",
    sink: Annotated[
        str, typer.Option(help="The topic to write. It is created if missing.", metavar="T")
    ] = "squares",
    scenario: Scenario = None,
    transactions: TransactionOptions = PLANNED,
    until_stopped: UntilStopped = False,
    real_time: RealTime = False,
    commit_interval_ms: CommitInterval = None,
    source_option: SourceOption = None,
    plan_option: PlanOption = None,
    target: Target = EMBEDDED,
    brokers: Brokers = None,
    json_: Json = None,
) -> None:
    """Process a source topic into a sink topic in transactions, without a verdict.

    Example: `topicproof process --source numbers --sink squares`
    """
    fields = transactions.fields | plan_options(plan_option)
    fields |= given(
        judged=False,
        scenario=scenario,
        until_stopped=until_stopped or None,
        trigger="real_time" if real_time else None,
        commit_interval_ms=commit_interval_ms,
    )
    fields |= _topics(fields, source, source_option, sink)
    _launch(kafka_settings(target, brokers), make_plan(fields), json_)


def stop(
    run_id: RunId,
    finishes: Annotated[
        bool,
        typer.Option(
            "--finish",
            help="For a run with --until-stopped: stop the fill, process the rest, then judge.",
        ),
    ] = False,
    json_: Json = None,
) -> None:
    """Stop a run. Its current transaction is committed or aborted, and none stays open. `resume`
    continues from there.

    Example: `topicproof stop squares-k3f9a2`
    """
    history = History(settings_of())
    run_ = history.get(run_id)
    if not run_.alive:
        raise UsageError(f"Run {run_id} is not running (it is {run_.state}).")
    if finishes:
        finish_run(history, run_)
    else:
        stop_run(history, run_id)
    while run_.alive:
        before = run_
        run_ = ask_until(
            partial(history.get, run_id), partial(_has_moved, before.state), STOP_WAIT_S
        )
        if not run_.alive or run_.state != before.state:
            continue
        if run_.state is not State.JUDGING:
            raise TopicproofError(
                f"Run {run_id} has been asked to stop but is still {run_.state}. Look again:"
                f" topicproof show {shell_word(run_id)}"
            )
        say(f"{run_id} has stopped and is still being judged.")
    emit(json_, run_json(run_))
    out.line(f"{run_id} is {run_.state}.")


def release(run_id: RunId, json_: Json = None) -> None:
    """End what a run's fault holds open: the transaction of `open@...,end=release`.

    Example: `topicproof release squares-k3f9a2`
    """
    settings = settings_of()
    history = History(settings)
    run_ = history.get(run_id)
    release_run(history, run_)
    emit(json_, run_json(run_))
    out.line(f"{run_id} is released.")


def strike(
    run_id: RunId,
    what: Annotated[
        Literal["kill", "freeze"],
        typer.Argument(help="Kill one worker with SIGKILL, or freeze the network of all."),
    ],
    partition: Annotated[
        int, typer.Option(help="kill: the source partition whose worker is killed.", metavar="P")
    ] = 0,
    topic: Annotated[
        str | None,
        typer.Option(help="kill: its topic, if the run reads several.", metavar="T"),
    ] = None,
    seconds: Annotated[
        int, typer.Option(help="freeze: how long nothing passes.", metavar="S")
    ] = FREEZE_S,
    json_: Json = None,
) -> None:
    """Strike a live run by hand: kill a worker, or freeze the network. The run must have been
    started with `--by-hand`.

    Example: `topicproof strike squares-k3f9a2 kill --partition 1`
    """
    history = History(settings_of())
    request = Kill(partition, topic) if what == "kill" else Freeze(seconds)
    strike_run(history, history.get(run_id), request)
    emit(json_, run_json(history.get(run_id)))
    out.line(f"{run_id} will be struck at once, or as soon as the worker is at work.")


def _has_moved(state: str, run: Run) -> bool:
    """Return whether the run has ended or left this state."""
    return not run.alive or run.state != state


def resume(
    run_id: RunId,
    offsets_forced: OffsetsForced = False,
    names_from_history: NamesFromHistory = False,
    target: Target = EMBEDDED,
    json_: Json = None,
) -> None:
    """Continue a run that was stopped or killed, from its committed offsets.

    Example: `topicproof resume squares-k3f9a2`
    """
    settings = settings_of(target)
    history = History(settings)
    settings = where_it_ran(settings, history.get(run_id))
    with stopping() as stop, services(settings, say=say) as running, _followed(history, run_id):
        report = resume_run(
            settings,
            running,
            history,
            run_id,
            stop,
            offsets_forced=offsets_forced,
            names_from_history=names_from_history,
            give_up=give_up,
        )
    conclude_run(history, run_id, report, json_)


def list_runs(json_: Json = None) -> None:
    """List all runs and checks, newest first.

    Example: `topicproof runs`
    """
    history = History(settings_of())
    runs = history.list()
    if json_ is not None:
        standings = run_standings(history, runs)
        emit(json_, [{**run_json(run_), "sign_off": standings[run_.id]} for run_ in runs])
        return
    if not runs:
        out.line("No runs yet. Start one: topicproof run")
        return
    table = Table(("run", "started (UTC)", "state", "verdict", "why"))
    for run_ in runs:
        state = run_.state if run_.alive or run_.ended_at else "killed"
        table.add(
            run_.id,
            f"{run_.created_at:%Y-%m-%d %H:%M:%S}",
            state,
            run_.verdict or "",
            run_.why or run_.error or "",
        )
    out.table(table)


def show(run_id: RunId, all_kinds: AllKinds = False, json_: Json = None) -> None:
    """Show a run's report, or its progress.

    Example: `topicproof show squares-k3f9a2`
    """
    settings = settings_of()
    history = History(settings)
    run_ = history.get(run_id)
    folder = run_.folder(settings)
    report = read_run_report(run_, folder) if (folder / REPORT).exists() else None
    stages = {
        name: json.loads(read_run_report(run_, stage_folder(folder, name), name).to_json())
        for name in run_.facts.results.verdicts
    }
    since = None if report is None else since_last_of(history, run_, report)
    signoffs = read_chain(history).of(run_id, run_.verdict)
    today = datetime.now(UTC).date()
    document = {
        **run_json(run_),
        "report": json.loads(report.to_json()) if report else None,
        "stages": stages,
        "since_last": None if since is None else since.as_json(),
        "sign_off": standing_text(signoffs, evidence_hash(folder), today),
        "signoffs": [
            {**entry.as_json(), "not_vouched": signoffs.doubts.get(entry.number)}
            for entry in signoffs.entries
        ],
    }
    emit(json_, document)
    if json_ is not None:
        return
    out.line(f"{run_.id}: {run_.state}" + (f". {run_.error}" if run_.error else ""))
    if report is None:
        out.line(progress_line(run_.progress))
    else:
        print_report(report, all_kinds)
    if since is not None:
        what = "contract" if run_.kind == Kind.CHECK else "plan"
        last = since.comparison.before.run or ""
        out.line(f"since {visible(last)}: {since.sentence({}, what)}")
    print_stages(run_)
    if counted := side_effects(run_.progress):
        out.line(counted)
    for entry in signoffs.entries:
        says = signoffs.doubts.get(entry.number)
        if says is None:
            out.line(f"signed: {entry.said}")
        else:
            out.line(Styled("not vouched for", "bold red"), f": {entry.said}. {says}")


def clean(
    run_id: RunId,
    signed_too: Annotated[
        bool,
        typer.Option("--signed-too", help="Also delete a signed run. Its evidence is then lost."),
    ] = False,
    target: Target = EMBEDDED,
    json_: Json = None,
) -> None:
    """Delete a run: the topics it created, its group, its folder and its history entry.

    Example: `topicproof clean squares-k3f9a2`
    """
    settings = settings_of(target)
    history = History(settings)
    run_ = history.get(run_id)
    signoffs = read_chain(history).of(run_id, run_.verdict)
    if signoffs.entries and not signed_too:
        last = signoffs.entries[-1]
        by = f"was signed by {last.who}"
        if last.number in signoffs.doubts:
            by = "has a sign-off that nobody vouches for"
        raise UsageError(
            f"Run {run_id} {by}. This would delete its evidence: copy it first (topicproof evidence"
            f" {shell_word(run_id)} --out DIR), then repeat with --signed-too."
        )
    allow(history, Action.CLEAN, run_id)
    settings = where_it_ran(settings, run_)
    with services(
        settings, spark=run_.facts.session is not None and not run_.ended_at, say=say
    ) as running:
        deleted = clean_run(settings, running, history, run_id, say)
    emit(json_, {"run": run_id, "deleted": deleted})
    out.line(f"{run_id} is gone" + (f", with its topics {', '.join(deleted)}." if deleted else "."))


def execute(
    settings: Settings,
    running: Services,
    plan: RunPlan,
    stop: threading.Event,
    give_up: Callable[[TopicproofError], None] | None = None,
) -> tuple[str, Report | None]:
    """Run from end to end and print the progress. Returns the run's name and its report. `give_up`
    ends this process if Kafka or Spark is gone for good."""
    history = History(settings)
    run_ = create(settings, running, history, plan)
    say(f"run {run_.id}: {run_.facts.source} -> {run_.facts.sink}")
    with _followed(history, run_.id):
        report = execute_run(make_context(settings, running, history, run_, stop, give_up))
    return run_.id, report


def stop_all(settings: Settings) -> None:
    """Stop every live run of this home, so that none ends inside a transaction."""
    history = History(settings)
    going = [run_.id for run_ in history.list() if run_.alive]
    for run_id in going:
        history.request_stop(run_id)
    ask_until(lambda: any(history.get(run_id).alive for run_id in going), not_, STOP_WAIT_S)


def _launch(settings: Settings, plan: RunPlan, json_: str | None) -> None:
    with stopping() as stop, services(settings, say=say) as running:
        history = History(settings)
        run_id, report = execute(settings, running, plan, stop, give_up)
    conclude_run(history, run_id, report, json_)


@contextmanager
def _followed(history: History, run_id: str) -> Iterator[None]:
    """Print a run's progress, at most once a second, while the block works on it."""
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
    """Return settings for the cluster that a run used, unless another address is given. A check
    left nothing there. Raises UsageError for properties without an address: they log in, and the
    run's address is from the history, where an administrator of a shared database can write."""
    where = run_.facts.cluster
    if settings.bootstrap is not None or run_.kind == "check":
        return settings
    if where.name is not None:
        return read_settings(home=settings.home, cluster=where.name)
    if settings.client and where.bootstrap is not None:
        raise UsageError(
            f"The properties have no address, and a login is not sent to the one that the history"
            f" has for {run_.id}. Give your Kafka's with --bootstrap, or in the properties."
        )
    update = {"bootstrap": where.bootstrap, "brokers": where.brokers or settings.brokers}
    return settings.model_copy(update=update)


def _topics(
    fields: Mapping[str, Any],
    source: str | None,
    source_options: list[str] | None,
    sink: str | None,
    url: str | None = None,
) -> dict[str, Any]:
    """Return a plan's source and sink. Options override `fields`."""
    more = pairs("--source-option", source_options)
    options = {**(fields.get("source") or {}).get("options", {}), **more} if more else None
    changed = {
        "source": given(topic=source or None, options=options),
        "sink": given(topic=sink or None, url=url or None),
    }
    return {name: {**(fields.get(name) or {}), **new} for name, new in changed.items() if new}


def given(**options: Any) -> dict[str, Any]:
    """Return the options that were given."""
    return {name: value for name, value in options.items() if value not in (None, [])}

"""The command line. Every command has `--help` with an example and `--json [FILE]` for machines.

Exit codes: 0 holds; 1 violated; 3 could not judge or could not do; 4 evidence could not be written; 64 wrong usage.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table
from typer._click.exceptions import ClickException  # typer carries its own click

from backend.dashboard import dashboard, require_port
from backend.errors import EvidenceError, TopicproofError, UsageError
from backend.history.store import History, Run
from backend.judge import REPORT, Question
from backend.kafka.cluster import Cluster
from backend.pipeline import run as runs_of
from backend.pipeline.fill import fill as fill_topic
from backend.pipeline.plan import RunPlan, make_plan, read_plan
from backend.pipeline.run import require_records
from backend.services import Services, services
from backend.settings import DASHBOARD_PORT, Settings, read_settings
from backend.show import print_topic, progress_line, report_lines
from validators.finding import Guarantee
from validators.identity import Identity
from validators.report import Report

USAGE = 64
STOP_WAIT_S = 60.0

app = typer.Typer(
    help="See, and prove, what Kafka transactions did to your topics.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
out = Console(soft_wrap=True)
err = Console(stderr=True, soft_wrap=True)

Bootstrap = Annotated[
    str | None, typer.Option(help="host:port of a given Kafka; without it an embedded one is started.", metavar="B")
]
Config = Annotated[Path | None, typer.Option(help="Client properties (TLS, SASL) of the given Kafka.", metavar="FILE")]
Brokers = Annotated[int | None, typer.Option(help="Brokers of the embedded Kafka: 1 or 3.", metavar="1|3")]
Json = Annotated[str | None, typer.Option("--json", help="The result as JSON, to FILE or (no FILE) to the terminal.")]
RunId = Annotated[str, typer.Argument(help="Name of the run, as `topicproof runs` lists it.", metavar="RUN")]
Records = Annotated[int | None, typer.Option(help="How many integers to fill in, from 0 on.", metavar="N")]
Partitions = Annotated[int | None, typer.Option(help="Partitions of the topics that are made.", metavar="P")]
PerTransaction = Annotated[int | None, typer.Option(help="Records per transaction.", metavar="N")]
AbortProbability = Annotated[float | None, typer.Option(help="Abort a transaction on purpose: 0 to 1.", metavar="p")]
AttemptsMax = Annotated[int | None, typer.Option(help="Tries per transaction before the run gives up.", metavar="N")]
Fault = Annotated[list[str] | None, typer.Option(help="Go wrong on purpose: crash@transaction=3", metavar="SPEC")]
Seed = Annotated[int | None, typer.Option(help="Seed of every draw; the same seed repeats the run.", metavar="S")]
Rate = Annotated[float | None, typer.Option(help="Fill at this rate, in records per second.", metavar="R")]
Scenario = Annotated[str | None, typer.Option(help="What to do with each record: squares.", metavar="NAME")]
PlanFile = Annotated[Path | None, typer.Argument(help="A plan in YAML; options win over it.", metavar="[PLAN.yaml]")]
UntilStopped = Annotated[bool, typer.Option("--until-stopped", help="Go on until `topicproof stop` or Ctrl-C.")]
SourceOption = Annotated[
    list[str] | None, typer.Option(help="A further option of Spark's Kafka source.", metavar="NAME=VALUE")
]


@app.command()
def up(
    brokers: Brokers = None,
    port: Annotated[int, typer.Option(help="Port of the dashboard.")] = DASHBOARD_PORT,
    bootstrap: Bootstrap = None,
    config: Config = None,
    demo: Annotated[bool, typer.Option("--demo/--no-demo", help="Run one small demo first.")] = True,
    json_: Json = None,
) -> None:
    """Start what is missing (Kafka, Spark, the dashboard) and keep it up until Ctrl-C.

    Example: `topicproof up --brokers 3`
    """
    settings = _settings(bootstrap, config, brokers)
    require_port(port)
    with _stopping() as stop, services(settings, say=_say) as found, dashboard(settings, port) as address:
        _say(f"Kafka {found.bootstrap}, Spark {found.spark_remote}")
        if demo and not stop.is_set():
            plan = make_plan({"abort_probability": 0.2, "faults": ["crash@transaction=2"], "seed": 1})
            _say(
                "one small demo: 10,000 numbers squared, a fifth of the transactions aborted, every worker killed once"
            )
            _run(settings, found, plan, stop)
        _emit(json_, {"address": address, "bootstrap": found.bootstrap, "spark": found.spark_remote})
        out.print(f"\n[bold]The dashboard is at {address}[/]\nCtrl-C stops everything.")
        stop.wait()
        _say("stopping")
        _stop_all(settings)


@app.command()
def fill(
    topic: Annotated[str, typer.Option(help="Where to; made when it is missing.", metavar="T")] = "numbers",
    records: Records = 10_000,
    partitions: Partitions = 3,
    rate: Rate = None,
    until_stopped: UntilStopped = False,
    bootstrap: Bootstrap = None,
    config: Config = None,
    brokers: Brokers = None,
    json_: Json = None,
) -> None:
    """Fill a topic with the integers from 0 on, as text, keyed, by an idempotent producer.

    Example: `topicproof fill --topic numbers --records 100000 --partitions 4`
    """
    settings = _settings(bootstrap, config, brokers)
    with _stopping() as stop, services(settings, spark=False, say=_say) as found:
        cluster = Cluster(found.bootstrap, settings.client)
        cluster.create_topic(topic, partitions or 3, exists_ok=True)
        held = cluster.bounds(topic)
        if held.offsets:
            raise UsageError(f"Topic {topic} holds {held.offsets:,} offsets already. Choose another with --topic.")
        count = fill_topic(cluster, topic, None if until_stopped else records, rate, stop.is_set)
    _emit(json_, {"topic": topic, "records": count, "bootstrap": found.bootstrap})
    out.print(f"{topic} holds {count:,} integers.")


@app.command()
def run(
    plan_file: Annotated[
        Path | None, typer.Argument(help="A plan in YAML; options win over it.", metavar="[PLAN.yaml]")
    ] = None,
    scenario: Scenario = None,
    guarantee: Annotated[str | None, typer.Option(help="What to promise: exactly_once.", metavar="NAME")] = None,
    records: Records = None,
    partitions: Partitions = None,
    per_transaction: PerTransaction = None,
    abort_probability: AbortProbability = None,
    attempts_max: AttemptsMax = None,
    fault: Fault = None,
    seed: Seed = None,
    rate: Annotated[float | None, typer.Option(help="Fill at this rate, in records per second.", metavar="R")] = None,
    until_stopped: UntilStopped = False,
    source: Annotated[
        str | None, typer.Option(help="An existing source topic: nothing is filled.", metavar="T")
    ] = None,
    source_option: SourceOption = None,
    sink: Annotated[
        str | None, typer.Option(help="The sink topic, instead of one of the run's own.", metavar="T")
    ] = None,
    bootstrap: Bootstrap = None,
    config: Config = None,
    brokers: Brokers = None,
    json_: Json = None,
) -> None:
    """One run from end to end: fill, transactional pipeline on Spark, verdict. The exit code is the verdict's.

    Example: `topicproof run --records 100000 --abort-probability 0.2 --fault crash@transaction=3 --seed 1`
    """
    fields = read_plan(plan_file) if plan_file else {}
    _merge(fields, scenario=scenario, guarantee=guarantee, records=records, partitions=partitions, rate=rate)
    _merge(fields, per_transaction=per_transaction, abort_probability=abort_probability, attempts_max=attempts_max)
    _merge(fields, faults=fault, seed=seed, until_stopped=until_stopped or None)
    _merge_topics(fields, source, source_option, sink)
    _launch(_settings(bootstrap, config, brokers), make_plan(fields, str(plan_file or "The plan")), json_)


@app.command()
def process(
    source: Annotated[str, typer.Option(help="The topic to read.", metavar="T")] = "numbers",
    sink: Annotated[str, typer.Option(help="The topic to write; made when it is missing.", metavar="T")] = "squares",
    scenario: Scenario = None,
    per_transaction: PerTransaction = None,
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
    _merge(fields, scenario=scenario, per_transaction=per_transaction, abort_probability=abort_probability)
    _merge(fields, attempts_max=attempts_max, faults=fault, seed=seed, until_stopped=until_stopped or None)
    _merge_topics(fields, source, source_option, sink)
    _launch(_settings(bootstrap, config, brokers), make_plan(fields), json_)


@app.command()
def check(
    source: Annotated[str, typer.Option(help="The topic that was read.", metavar="T")] = "numbers",
    sink: Annotated[str, typer.Option(help="The topic that was written.", metavar="T")] = "squares",
    identity: Annotated[Identity, typer.Option(help="How a sink record names its input.")] = Identity.LINEAGE,
    guarantee: Annotated[Guarantee, typer.Option(help="What was promised.")] = Guarantee.EXACTLY_ONCE,
    folder: Annotated[Path | None, typer.Option("--out", help="Folder for report and evidence.", metavar="DIR")] = None,
    bootstrap: Bootstrap = None,
    config: Config = None,
    brokers: Brokers = None,
    json_: Json = None,
) -> None:
    """Judge any two topics of any cluster, whoever wrote them. The exit code is the verdict's.

    Example: `topicproof check --source numbers --sink squares --identity key`
    """
    settings = _settings(bootstrap, config, brokers)
    history = History(settings)
    with services(settings, say=_say) as found:
        cluster = Cluster(found.bootstrap, settings.client)
        cluster.check()
        bounds = cluster.bounds(source)
        require_records(bounds)
        cluster.partitions(sink)
        question = Question(source=bounds, sink=sink, guarantee=guarantee, identity=identity)
        report = runs_of.check(settings, found, history, question, folder)
    _conclude(report, json_)


@app.command()
def inspect(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    bootstrap: Bootstrap = None,
    config: Config = None,
    brokers: Brokers = None,
    json_: Json = None,
) -> None:
    """Fates, LSO and HW, transactions, open ones, producers, true lag of every group.

    Example: `topicproof inspect squares --bootstrap localhost:9092`
    """
    from backend.kafka.inspect import inspect_topic

    settings = _settings(bootstrap, config, brokers)
    with services(settings, spark=False, say=_say) as found:
        view = inspect_topic(found.bootstrap, settings.client, topic)
    _emit(json_, view.to_json())
    if json_ is None:
        print_topic(out, view)


@app.command()
def stop(run_id: RunId, json_: Json = None) -> None:
    """Stop a run: its current transaction ends or is aborted, none is left open; `resume` goes on from there.

    Example: `topicproof stop squares-k3f9a2`
    """
    history = History(_settings())
    found = history.get(run_id)
    if not found.alive:
        raise UsageError(f"Run {run_id} is not running (it is {found.state}).")
    history.request_stop(run_id)
    deadline = time.monotonic() + STOP_WAIT_S
    while (found := history.get(run_id)).alive:
        if time.monotonic() > deadline:
            raise TopicproofError(
                f"Run {run_id} was asked to stop and has not yet. Look again: topicproof show {run_id}"
            )
        time.sleep(0.1)
    _emit(json_, _run_json(found))
    out.print(f"{run_id} is {found.state}.")


@app.command()
def resume(run_id: RunId, bootstrap: Bootstrap = None, config: Config = None, json_: Json = None) -> None:
    """Go on with a run that was stopped or killed, from what it had committed.

    Example: `topicproof resume squares-k3f9a2`
    """
    settings = _settings(bootstrap, config)
    history = History(settings)
    settings = _where_it_ran(settings, history.get(run_id))
    with _stopping() as stop, services(settings, say=_say) as found, _followed(history, run_id):
        report = runs_of.resume(settings, found, history, run_id, stop)
    _conclude_run(history, run_id, report, json_)


@app.command("runs")
def list_runs(json_: Json = None) -> None:
    """All runs and checks, newest first.

    Example: `topicproof runs`
    """
    found = History(_settings()).list()
    _emit(json_, [_run_json(one) for one in found])
    if json_ is not None:
        return
    if not found:
        out.print("No runs yet. Start one: topicproof run")
        return
    table = Table("run", "started (UTC)", "state", "verdict", "why", box=None, pad_edge=False)
    for one in found:
        state = one.state if one.alive or one.ended_at else "killed"
        table.add_row(
            one.id, f"{one.created_at:%Y-%m-%d %H:%M:%S}", state, one.verdict or "", one.why or one.error or ""
        )
    out.print(table)


@app.command()
def show(run_id: RunId, json_: Json = None) -> None:
    """A run's report, or how far it is.

    Example: `topicproof show squares-k3f9a2`
    """
    settings = _settings()
    found = History(settings).get(run_id)
    path = report_path(settings, found)
    report = Report.from_json(path.read_text(encoding="utf-8")) if path.exists() else None
    _emit(json_, {**_run_json(found), "report": json.loads(report.to_json()) if report else None})
    if json_ is not None:
        return
    out.print(f"{found.id}: {found.state}" + (f". {found.error}" if found.error else ""))
    out.print(progress_line(found.progress)) if report is None else _print_report(report)


@app.command()
def clean(run_id: RunId, bootstrap: Bootstrap = None, config: Config = None, json_: Json = None) -> None:
    """Delete a run: the topics it made, its group, its folder, its entry in the history.

    Example: `topicproof clean squares-k3f9a2`
    """
    settings = _settings(bootstrap, config)
    history = History(settings)
    found_run = history.get(run_id)
    settings = _where_it_ran(settings, found_run)
    with services(settings, spark="session" in found_run.facts and not found_run.ended_at, say=_say) as found:
        deleted = runs_of.clean(settings, found, history, run_id)
    _emit(json_, {"run": run_id, "deleted": deleted})
    out.print(f"{run_id} is gone" + (f", with its topics {', '.join(deleted)}." if deleted else "."))


def report_path(settings: Settings, run_: Run) -> Path:
    return Path(run_.facts.get("folder", settings.runs / run_.id)) / REPORT


def _launch(settings: Settings, plan: RunPlan, json_: str | None) -> None:
    with _stopping() as stop, services(settings, say=_say) as found:
        history = History(settings)
        run_id, report = _run(settings, found, plan, stop)
    _conclude_run(history, run_id, report, json_)


def _run(settings: Settings, found: Services, plan: RunPlan, stop: threading.Event) -> tuple[str, Report | None]:
    history = History(settings)
    made = runs_of.create(settings, found, history, plan)
    _say(f"run {made.id}: {made.facts['source']} -> {made.facts['sink']}")
    with _followed(history, made.id):
        report = runs_of.execute(runs_of.make_context(settings, found, history, made, stop))
    return made.id, report


def _conclude_run(history: History, run_id: str, report: Report | None, json_: str | None) -> None:
    found = history.get(run_id)
    if report is not None:
        _conclude(report, json_, found)
    _emit(json_, _run_json(found))
    out.print(f"{run_id} is {found.state}: {progress_line(found.progress)}")


def _conclude(report: Report, json_: str | None, found: Run | None = None) -> NoReturn:
    _emit(json_, json.loads(report.to_json()))
    if json_ != "-":
        _print_report(report)
        if found is not None:
            out.print(f"Look closer: topicproof show {found.id}")
            if found.error:
                err.print(f"[red]{found.error}[/]", highlight=False)
    raise typer.Exit(report.exit_code if found is None else runs_of.exit_code(found, report))


def _print_report(report: Report) -> None:
    for line in report_lines(report):
        out.print(line, highlight=False)


def _emit(json_: str | None, value: Any) -> None:
    """To a file, or (for `-`) to the terminal, where it is then the only thing printed on standard output."""
    if json_ is None:
        return
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    if json_ == "-":
        sys.stdout.write(text + "\n")
        out.quiet = True
        return
    try:
        Path(json_).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise EvidenceError(f"{json_} cannot be written: {error.strerror}.") from error


def _say(text: str) -> None:
    err.print(f"[dim]{datetime.now(UTC):%H:%M:%S}[/] {text}", highlight=False)


@contextmanager
def _followed(history: History, run_id: str) -> Iterator[None]:
    """One line a second about a run while the block works on it."""
    ended = threading.Event()

    def follow() -> None:
        last = ""
        while not ended.wait(1.0):
            line = progress_line(history.get(run_id).progress)
            if line and line != last:
                _say(line)
                last = line

    teller = threading.Thread(target=follow, daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()


@contextmanager
def _stopping() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set, so that work ends in good order; a second Ctrl-C ends it at once."""
    stop = threading.Event()

    def heard(number: int, _frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        _say("stopping; the current transaction ends first (Ctrl-C again ends at once)" if number else "")

    before = {number: signal.signal(number, heard) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop_all(settings: Settings) -> None:
    """Stop every run that still goes on in this home, so that none is cut off in the middle of a transaction."""
    history = History(settings)
    going = [one.id for one in history.list() if one.alive]
    for run_id in going:
        history.request_stop(run_id)
    deadline = time.monotonic() + STOP_WAIT_S
    while any(history.get(run_id).alive for run_id in going) and time.monotonic() < deadline:
        time.sleep(0.1)


def _settings(bootstrap: str | None = None, config: Path | None = None, brokers: int | None = None) -> Settings:
    if brokers not in (None, 1, 3):
        raise UsageError(f"--brokers is {brokers}; the embedded Kafka has 1 or 3.")
    return read_settings(bootstrap, config, brokers)


def _where_it_ran(settings: Settings, run_: Run) -> Settings:
    """The cluster a run was made on, unless another address is given."""
    where = run_.facts.get("cluster", {})
    if settings.bootstrap is not None:
        return settings
    return replace(settings, bootstrap=where.get("bootstrap"), brokers=where.get("brokers", settings.brokers))


def _merge(fields: dict[str, Any], **given: Any) -> None:
    fields.update({name: value for name, value in given.items() if value not in (None, [])})


def _merge_topics(fields: dict[str, Any], source: str | None, options: list[str] | None, sink: str | None) -> None:
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
        "topics": {name: found.facts[name] for name in ("source", "sink", "journal") if name in found.facts},
        "progress": found.progress,
    }


def _with_json_value(arguments: list[str]) -> list[str]:
    """`--json` without a file means the terminal; click has no option whose value may be left out."""
    made: list[str] = []
    for number, argument in enumerate(arguments):
        made.append(argument)
        following = arguments[number + 1] if number + 1 < len(arguments) else "-"
        if argument == "--json" and ((following.startswith("-") and following != "-") or number + 1 == len(arguments)):
            made.append("-")
    return made


def main(arguments: list[str] | None = None) -> NoReturn:
    """The entry point: errors become one sentence and an exit code, never a traceback."""
    given = _with_json_value(sys.argv[1:] if arguments is None else arguments)
    try:
        code = app(args=given, prog_name="topicproof", standalone_mode=False)
    except ClickException as error:
        error.show()
        code = USAGE
    except TopicproofError as error:
        err.print(f"[red]{type(error).__name__}[/]: {error}", highlight=False)
        code = error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        err.print("interrupted")
        code = 130
    sys.exit(code or 0)


if __name__ == "__main__":
    main()

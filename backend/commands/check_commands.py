"""Judge any two topics of any cluster."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from topicproof.backend.commands.outcome import conclude_check
from topicproof.backend.commands.run_options import Out, out_folder, require_sides
from topicproof.backend.commands.shared_options import (
    EMBEDDED,
    SAME_CLUSTER,
    AllKinds,
    Brokers,
    Json,
    SourceTarget,
    Target,
    settings_of,
    source_settings,
)
from topicproof.backend.commands.terminal import give_up, out, say, write_file
from topicproof.backend.contracts.contract import (
    Contract,
    make_contract,
    parse_fields,
    read_text_of,
)
from topicproof.backend.contracts.contract_question import question_of
from topicproof.backend.contracts.lint import lint, needs_spark
from topicproof.backend.errors import ContractError, EvidenceError, UsageError
from topicproof.backend.evidence.annotations import markdown, workflow_commands
from topicproof.backend.evidence.copy import copy_parts, without_values
from topicproof.backend.evidence.ctrf import as_ctrf
from topicproof.backend.evidence.delivery import require_room
from topicproof.backend.evidence.folder import CONTRACT, EVIDENCE
from topicproof.backend.evidence.manifest import Payloads
from topicproof.backend.evidence.open_lineage import emit as emit_events, event_of
from topicproof.backend.exit_codes import UNJUDGED, code_of, worst
from topicproof.backend.history.kept_contracts import find
from topicproof.backend.history.store import History
from topicproof.backend.judging.selftest import self_test
from topicproof.backend.judging.table_rows import TableSink
from topicproof.backend.runs.check import CheckOptions, check as judge
from topicproof.backend.runs.sides import settings_of_sides
from topicproof.backend.services.keeper import Services, services
from topicproof.backend.services.spark_session import spark_session
from topicproof.backend.settings import Settings
from topicproof.backend.storage import is_url
from topicproof.backend.yaml_fields import YamlFields
from topicproof.validators.finding import Guarantee
from topicproof.validators.lineage.identity import Identity
from topicproof.validators.report import Report


@dataclass(frozen=True)
class Topics:
    """Options that say what is checked: two topics, or a contract."""

    source: Annotated[
        str | None, typer.Option(help="The topic that was read. Default: numbers.", metavar="T")
    ] = None
    sink: Annotated[
        str | None, typer.Option(help="The topic that was written. Default: squares.", metavar="T")
    ] = None
    identity: Annotated[
        Identity | None,
        typer.Option(help="How a sink record identifies its input. Default: lineage."),
    ] = None
    guarantee: Annotated[
        Guarantee | None, typer.Option(help="What was promised. Default: exactly_once.")
    ] = None
    contract: Annotated[
        str | None,
        typer.Option(
            help=(
                "A contract instead of these options: a YAML file, or the name of a kept one, with"
                " or without a version, such as orders@3."
            ),
            metavar="FILE|NAME",
        ),
    ] = None

    def require_contract_alone(self) -> None:
        """Raises UsageError if another option says what a contract says."""
        for option in fields(self):
            if option.name != "contract" and getattr(self, option.name) is not None:
                raise UsageError(
                    f"The contract already says this. Remove --{option.name}, or --contract."
                )


@dataclass(frozen=True)
class Outlets:
    """Options that hand the verdict to other programs."""

    annotate: Annotated[
        bool,
        typer.Option(
            "--annotate",
            help="Also print the verdict as annotations of a GitHub workflow, with a summary.",
        ),
    ] = False
    ctrf: Annotated[
        Path | None,
        typer.Option(
            help="Write the verdict in the Common Test Report Format. JUnit is in --out.",
            metavar="FILE",
        ),
    ] = None
    openlineage: Annotated[
        str | None,
        typer.Option(
            help="Send the verdict to an OpenLineage endpoint, with OPENLINEAGE_API_KEY if set.",
            metavar="URL",
        ),
    ] = None


DEFAULT_TOPICS, TERMINAL_ALONE = Topics(), Outlets()


def check(
    topics: Topics = DEFAULT_TOPICS,
    self_tested: Annotated[
        bool,
        typer.Option(
            "--self-test",
            help="Also inject faults into copies of the readings, and show that they are caught.",
        ),
    ] = False,
    folder: Out = None,
    payloads: Annotated[
        Payloads,
        typer.Option(
            help=(
                "Keys, values and headers in --out: all as read, masked as digests, or none. With"
                " none they are stored nowhere, and the check is faster."
            )
        ),
    ] = Payloads.ALL,
    target: Target = EMBEDDED,
    source_target: SourceTarget = SAME_CLUSTER,
    brokers: Brokers = None,
    outlets: Outlets = TERMINAL_ALONE,
    keep_as: Annotated[
        str | None,
        typer.Option(
            "--keep",
            help="Keep the contract under this name, as its next version, once there is a verdict.",
            metavar="NAME",
        ),
    ] = None,
    all_kinds: AllKinds = False,
    json_: Json = None,
) -> None:
    """Judge any two topics of any cluster, written by any program.

    The exit code is the verdict's; it is 3 if the self-test was requested and cannot run.

    The source may be on another cluster, for mirroring and migrations. Records are then matched by
    key, or by the contract's identity.

    Example: `topicproof check --source numbers --sink squares --identity key`, or
    `topicproof check --contract orders.yaml`
    """
    if self_tested and payloads is Payloads.NONE:
        raise UsageError(
            "--self-test needs the records, which --payloads none does not keep. Leave one of them"
            " out."
        )
    source_side = source_settings(source_target)
    across = source_side is not None
    contract = _read_check_contract(settings_of(), topics, across)
    if keep_as is not None:
        contract = contract.kept_as(keep_as)
    if folder is not None and not is_url(folder):
        require_room(Path(folder))
    _require_one_name(contract.terms, target)
    settings = settings_of(target, brokers)
    checks = [
        (terms, require_sides(settings_of_sides(terms, settings, source_side)))
        for terms in contract.terms.each()
    ]
    history = History(settings)
    reports, codes, servers = [], [], []
    with (
        nullcontext() if folder is None else out_folder(folder) as place,
        _services(sides.sink for _, sides in checks) as running,
    ):
        _require_expressions(contract.terms, running.values(), across)
        for terms, sides in checks:
            sink_services = running[sides.sink.cluster]
            clusters = sides.clusters(sink_services.address)
            for side in clusters:
                side.check()
            report = judge(
                sides.sink,
                sink_services,
                history,
                question_of(terms, *clusters),
                contract.options(terms, payloads, sides.source),
                give_up=give_up,
            )
            reports.append(report)
            # The sink's cluster is the first one, and the source's the last one.
            of_source, of_sink = (clusters[at].address.bootstrap for at in (-1, 0))
            servers.append((of_source, of_sink))
            codes.append(code_of(report))
            if self_tested and report.run is not None:
                codes.append(_self_tested(sink_services, history.get(report.run).folder(settings)))
        parts = {
            history.get(report.run).folder(settings) / EVIDENCE: (
                Path() if len(reports) == 1 else Path(terms.of.cluster or "") / report.sink.topic
            )
            for (terms, _), report in zip(checks, reports, strict=True)
            if report.run is not None
        }
        if place is not None and parts:
            copied_payloads = Payloads.MASKED if payloads is Payloads.MASKED else Payloads.ALL
            copy_parts(parts, place, copied_payloads, settings=settings)
    if payloads is not Payloads.ALL:
        # Logs, annotations, summaries and files of CI have more readers than the evidence.
        reports = [without_values(report) for report in reports]
    codes.append(_hand_out(outlets, reports, servers))
    conclude_check(reports, json_, worst(codes), all_kinds)


def _self_tested(sink_services: Services, folder: Path) -> int:
    """Test the judge on copies of the check's readings. Returns `UNJUDGED` if that cannot be."""
    with spark_session(sink_services.spark_remote, sink_services.storage) as spark:
        test = self_test(spark, folder)
    if not test.caught:
        say(f"self-test: not run: {test.reason}.")
        return UNJUDGED
    say(f"self-test: {', '.join(fault.kind for fault in test.caught)} caught, each once")
    return 0


def _hand_out(
    outlets: Outlets, reports: Sequence[Report], servers: Sequence[tuple[str, str]]
) -> int:
    """Hand the verdicts to other programs. Returns `UNJUDGED` if a catalogue does not take them."""
    if outlets.annotate:
        _annotate(reports)
    if outlets.ctrf is not None:
        document = json.dumps(as_ctrf(reports, round(time.time() * 1000)), indent=2)
        write_file(outlets.ctrf, document + "\n")
    if outlets.openlineage is None:
        return 0
    return _told_catalogue(outlets.openlineage, reports, servers)


def _told_catalogue(url: str, reports: Sequence[Report], servers: Sequence[tuple[str, str]]) -> int:
    """Send the verdicts. Returns `UNJUDGED` if the endpoint does not take them: the verdicts are
    still printed."""
    ended = datetime.now(UTC)
    try:
        emit_events(
            url,
            [
                event_of(report, *addresses, ended)
                for report, addresses in zip(reports, servers, strict=True)
            ],
        )
    except EvidenceError as error:
        say(str(error))
        return UNJUDGED
    return 0


def _annotate(reports: Sequence[Report]) -> None:
    """Print workflow commands, and write the summary where GitHub wants it. Raises
    EvidenceError."""
    for report in reports:
        for line in workflow_commands(report):
            out.command(line)
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        write_file(Path(summary), "\n".join(map(markdown, reports)))


@dataclass(frozen=True)
class _CheckContract:
    """The contract of a check. Without one, options say the same."""

    terms: Contract
    name: str | None = None
    version: int | None = None
    text: str | None = None
    is_kept_after: bool = False

    def kept_as(self, name: str) -> _CheckContract:
        """Return the contract as one to be kept under this name. Raises UsageError."""
        if self.text is None:
            raise UsageError("--keep needs a contract: --contract FILE.")
        return replace(self, name=name, version=None, is_kept_after=True)

    def options(
        self, terms: Contract, payloads: Payloads, source_side: Settings | None
    ) -> CheckOptions:
        """Return the options of the check of one sink, whose terms these are."""
        fields = terms.yaml_fields or self.terms.yaml_fields
        return CheckOptions(
            table=None if terms.table is None else TableSink(terms.table, fields),
            contract=self.name,
            version=self.version,
            attachments={} if self.text is None else {CONTRACT: self.text},
            payloads=payloads,
            source_side=source_side,
            keeps_contract=self.is_kept_after,
        )


def _read_check_contract(settings: Settings, topics: Topics, across: bool) -> _CheckContract:
    """Return the contract of a check: from a file, from the history, or from options. `across`: the
    topics are in two clusters. Raises UsageError, ContractError."""
    if topics.contract is None:
        terms = {
            "source": {"topic": topics.source or "numbers"},
            "sink": {"topic": topics.sink or "squares"},
            "identity": topics.identity or (Identity.KEY if across else Identity.LINEAGE),
            "guarantee": topics.guarantee or Guarantee.EXACTLY_ONCE,
        }
        return _CheckContract(make_contract(terms, across))
    topics.require_contract_alone()
    path = Path(topics.contract)
    if path.suffix in (".yaml", ".yml") or path.exists():
        # Read once: what is judged is what the evidence keeps, whoever else writes the file.
        text = read_text_of(path)
        contract = make_contract(parse_fields(text, str(path)), across)
        return _CheckContract(contract, path.name, text=text)
    kept_contract = find(History(settings), topics.contract)
    fields = parse_fields(kept_contract.text, kept_contract.label)
    return _CheckContract(
        make_contract(fields, across),
        kept_contract.name,
        kept_contract.version,
        kept_contract.text,
    )


def _require_expressions(contract: Contract, running: Iterable[Services], across: bool) -> None:
    """Raises ContractError for what only Spark finds wrong in expressions: rather now than after
    hours of reading."""
    fields = contract.yaml_fields
    if isinstance(fields, YamlFields) and needs_spark(fields):
        first = next(iter(running))
        mistakes = lint(fields, lambda: spark_session(first.spark_remote, first.storage), across)
        if mistakes:
            raise ContractError(*mistakes)


def _require_one_name(terms: Contract, target: Target) -> None:
    """Raises UsageError if contract and options both say where a sink is."""
    for sink_contract in terms.each():
        cluster = sink_contract.sink_cluster
        if cluster is not None and target != EMBEDDED:
            raise UsageError(
                f"The contract already names the cluster {cluster}. Remove {target.first_option}."
            )


@contextmanager
def _services(sinks: Iterable[Settings]) -> Iterator[dict[str | None, Services]]:
    """Give the services of each sink's cluster, by its name. They share one Spark."""
    with ExitStack() as stack:
        running: dict[str | None, Services] = {}
        for settings in sinks:
            if settings.cluster not in running:
                sink_services = stack.enter_context(services(settings, say=say))
                running[settings.cluster] = sink_services
        yield running

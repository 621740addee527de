"""Judge any two topics of any cluster."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from topicproof.backend.commands.outcome import conclude_check
from topicproof.backend.commands.run_commands import given
from topicproof.backend.commands.run_options import (
    Out,
    out_folder,
    require_sides,
)
from topicproof.backend.commands.shared_options import (
    AllKinds,
    Bootstrap,
    Brokers,
    ClusterName,
    Config,
    Json,
    SourceBootstrap,
    SourceCluster,
    SourceConfig,
    settings_of,
    source_settings,
)
from topicproof.backend.commands.terminal import give_up, out, say, write_file
from topicproof.backend.errors import ContractError, EvidenceError, UsageError
from topicproof.backend.evidence.annotations import markdown, workflow_commands
from topicproof.backend.evidence.attestation import attest_copy
from topicproof.backend.evidence.copy import copy_evidence, require_room, without_values
from topicproof.backend.evidence.ctrf import as_ctrf
from topicproof.backend.evidence.folder import EVIDENCE
from topicproof.backend.evidence.manifest import Payloads
from topicproof.backend.evidence.open_lineage import emit as emit_events
from topicproof.backend.evidence.open_lineage import event_of
from topicproof.backend.exit_codes import UNJUDGED, code_of, worst
from topicproof.backend.history.kept_contracts import find
from topicproof.backend.history.store import History
from topicproof.backend.judging.contract import (
    Contract,
    make_contract,
    parse_fields,
    question_of,
    read_contract,
)
from topicproof.backend.judging.contract_lint import lint, needs_spark
from topicproof.backend.judging.selftest import self_test
from topicproof.backend.runs.check import check as judge
from topicproof.backend.runs.sides import settings_of_sides
from topicproof.backend.services.keeper import Services, services
from topicproof.backend.services.spark import spark_session
from topicproof.backend.settings import Settings
from topicproof.backend.storage import is_url
from topicproof.backend.yaml_fields import YamlFields
from topicproof.validators.finding import Guarantee
from topicproof.validators.lineage.identity import Identity
from topicproof.validators.report import Report


def check(
    source: Annotated[
        str | None, typer.Option(help="The topic that was read. Default: numbers.", metavar="T")
    ] = None,
    sink: Annotated[
        str | None, typer.Option(help="The topic that was written. Default: squares.", metavar="T")
    ] = None,
    identity: Annotated[
        Identity | None,
        typer.Option(help="How a sink record identifies its input. Default: lineage."),
    ] = None,
    guarantee: Annotated[
        Guarantee | None, typer.Option(help="What was promised. Default: exactly_once.")
    ] = None,
    contract: Annotated[
        str | None,
        typer.Option(
            help=(
                "A contract instead of these options: a YAML file, or the name of a kept one, with"
                " or without a version, such as orders@3."
            ),
            metavar="FILE|NAME",
        ),
    ] = None,
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
    bootstrap: Bootstrap = None,
    config: Config = None,
    cluster: ClusterName = None,
    source_bootstrap: SourceBootstrap = None,
    source_config: SourceConfig = None,
    source_cluster: SourceCluster = None,
    brokers: Brokers = None,
    annotate: Annotated[
        bool,
        typer.Option(
            "--annotate",
            help="Also print the verdict as annotations of a GitHub workflow, with a summary.",
        ),
    ] = False,
    ctrf: Annotated[
        Path | None,
        typer.Option(
            help="Write the verdict in the Common Test Report Format. JUnit is in --out.",
            metavar="FILE",
        ),
    ] = None,
    openlineage: Annotated[
        str | None,
        typer.Option(
            help="Send the verdict to an OpenLineage endpoint, with OPENLINEAGE_API_KEY if set.",
            metavar="URL",
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
    `topicproof check --contract contracts/squares.yaml`
    """
    options = given(source=source, sink=sink, identity=identity, guarantee=guarantee)
    if self_tested and payloads is Payloads.NONE:
        raise UsageError(
            "--self-test needs the records, which --payloads none does not keep. Leave one of them"
            " out."
        )
    source_side = source_settings(source_bootstrap, source_config, source_cluster)
    option_texts = {name: str(value) for name, value in options.items()}
    check_contract = _read_check_contract(
        settings_of(), contract, option_texts, across=source_side is not None
    )
    terms, fields = check_contract.terms, check_contract.fields
    if folder is not None and not is_url(folder):
        require_room(Path(folder))
    _require_one_name(terms, given(bootstrap=bootstrap, config=config, cluster=cluster))
    settings = settings_of(bootstrap, config, brokers, cluster)
    checks = [
        (sink_contract, require_sides(settings_of_sides(sink_contract, settings, source_side)))
        for sink_contract in terms.each()
    ]
    history = History(settings)
    attachments = {} if check_contract.text is None else {"contract.yaml": check_contract.text}
    reports, codes, servers = [], [], []
    with (
        nullcontext() if folder is None else out_folder(folder) as place,
        _services(sides.sink for _, sides in checks) as running,
    ):
        _require_expressions(fields, running.values(), across=source_side is not None)
        for sink_contract, sides in checks:
            sink_services = running[sides.sink.cluster]
            clusters = sides.clusters(sink_services.address)
            for side in clusters:
                side.check()
            report = judge(
                sides.sink,
                sink_services,
                history,
                question_of(sink_contract, fields, *clusters),
                attachments=attachments,
                contract=check_contract.name,
                payloads=payloads,
                version=check_contract.version,
                source_side=sides.source,
                give_up=give_up,
            )
            reports.append(report)
            # The sink's cluster is the first one, and the source's the last one.
            of_source, of_sink = (clusters[at].address.bootstrap for at in (-1, 0))
            servers.append((of_source, of_sink))
            codes.append(code_of(report))
            if self_tested and report.run is not None:
                with spark_session(sink_services.spark_remote, sink_services.storage) as spark:
                    test = self_test(spark, history.get(report.run).folder(settings))
                if test.caught:
                    kinds = ", ".join(fault.kind for fault in test.caught)
                    say(f"self-test: {kinds} caught, each once")
                else:
                    codes.append(UNJUDGED)
                    say(f"self-test: not run: {test.reason}.")
        for (sink_contract, _), report in zip(checks, reports, strict=True):
            if place is not None and report.run is not None:
                copied_payloads = Payloads.MASKED if payloads is Payloads.MASKED else Payloads.ALL
                subfolder = place / (sink_contract.of.cluster or "") / report.sink.topic
                target = place if len(reports) == 1 else subfolder
                kept_at = history.get(report.run).folder(settings) / EVIDENCE
                copy_evidence(kept_at, target, copied_payloads)
                attest_copy(settings, kept_at, target)
    if payloads is not Payloads.ALL:
        # Logs, annotations, summaries and files of CI have more readers than the evidence.
        reports = [without_values(report) for report in reports]
    if annotate:
        _annotate(reports)
    if ctrf is not None:
        write_file(ctrf, json.dumps(as_ctrf(reports, round(time.time() * 1000)), indent=2) + "\n")
    if openlineage is not None:
        codes.append(_told_catalogue(openlineage, reports, servers))
    conclude_check(reports, json_, worst(codes), all_kinds)


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
    fields: dict[str, Any]
    name: str | None = None
    version: int | None = None
    text: str | None = None


def _read_check_contract(
    settings: Settings, contract: str | None, options: Mapping[str, str], across: bool
) -> _CheckContract:
    """Return the contract of a check: from a file, from the history, or from options. `across`: the
    topics are in two clusters. Raises UsageError, ContractError."""
    if contract is None:
        fields: dict[str, Any] = {"source": {"topic": "numbers"}, "sink": {"topic": "squares"}}
        if across:
            fields["identity"] = "key"
        for name, value in options.items():
            fields[name] = {"topic": value} if name in fields else value
        return _CheckContract(make_contract(fields, across), fields)
    if options:
        raise UsageError(
            f"The contract already says this. Remove --{next(iter(options))}, or --contract."
        )
    path = Path(contract)
    if path.suffix in (".yaml", ".yml") or path.exists():
        terms, read = read_contract(path, across)
        return _CheckContract(terms, read, path.name, text=path.read_text(encoding="utf-8"))
    kept_contract = find(History(settings), contract)
    read = parse_fields(kept_contract.text, kept_contract.label)
    return _CheckContract(
        make_contract(read, across),
        read,
        kept_contract.name,
        kept_contract.version,
        kept_contract.text,
    )


def _require_expressions(fields: dict[str, Any], running: Iterable[Services], across: bool) -> None:
    """Raises ContractError for what only Spark finds wrong in expressions: rather now than after
    hours of reading."""
    if isinstance(fields, YamlFields) and needs_spark(fields):
        first = next(iter(running))
        mistakes = lint(fields, lambda: spark_session(first.spark_remote, first.storage), across)
        if mistakes:
            raise ContractError(*mistakes)


def _require_one_name(terms: Contract, cluster_options: Mapping[str, Any]) -> None:
    """Raises UsageError if contract and options both say where a sink is."""
    for sink_contract in terms.each():
        if sink_contract.of.cluster is not None and cluster_options:
            raise UsageError(
                f"The contract already names the cluster {sink_contract.of.cluster}. Remove"
                f" --{next(iter(cluster_options))}."
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

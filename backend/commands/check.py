"""Judge any two topics of any cluster."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from topicproof.backend.address import Address
from topicproof.backend.commands.options import (
    Bootstrap,
    Brokers,
    ClusterName,
    Config,
    Json,
    Out,
    SourceBootstrap,
    SourceCluster,
    SourceConfig,
    kafka_settings,
    settings_of,
)
from topicproof.backend.commands.outcome import conclude_check
from topicproof.backend.commands.runs import given
from topicproof.backend.commands.terminal import say, write_file
from topicproof.backend.errors import UsageError
from topicproof.backend.evidence.annotations import markdown, workflow_commands
from topicproof.backend.evidence.attestation import attest_copy
from topicproof.backend.evidence.copy import copy_evidence, require_room
from topicproof.backend.evidence.ctrf import as_ctrf
from topicproof.backend.evidence.folder import EVIDENCE
from topicproof.backend.evidence.manifest import Payloads
from topicproof.backend.exit_codes import UNJUDGED, code_of, worst
from topicproof.backend.history.contracts import find
from topicproof.backend.history.store import History
from topicproof.backend.judging.contract import (
    Contract,
    Topic,
    make_contract,
    parse_fields,
    question_of,
    read_contract,
)
from topicproof.backend.judging.selftest import NOTHING_TO_INJECT_INTO, self_test
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.runs.check import check as judge
from topicproof.backend.services.keeper import services
from topicproof.backend.services.spark import spark_session
from topicproof.backend.settings import Settings
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
    told = given(bootstrap=source_bootstrap, config=source_config, cluster=source_cluster)
    said = {name: str(value) for name, value in options.items()}
    given_by = _given(settings_of(), contract, said, across=bool(told))
    terms, fields = given_by.terms, given_by.fields
    if folder is not None:
        require_room(folder)
    settings = kafka_settings(bootstrap, config, brokers, _only(cluster, terms.sink, "--cluster"))
    other = _other(settings, terms, told)
    history = History(settings)
    attachments = {} if given_by.text is None else {"contract.yaml": given_by.text}
    reports, codes = [], []
    with services(settings, say=say) as found:
        sides = [Cluster(address) for address in (found.address, other) if address is not None]
        for side in sides:
            side.check()
        for one in terms.each():
            question = question_of(one, fields, *sides)
            report = judge(
                *(settings, found, history, question, attachments),
                *(given_by.name, payloads, given_by.version, other),
            )
            reports.append(report)
            codes.append(code_of(report))
            if self_tested and report.run is not None:
                with spark_session(found.spark_remote) as spark:
                    caught = self_test(spark, history.get(report.run).folder(settings))
                if caught:
                    say(f"self-test: {', '.join(each.kind for each in caught)} caught, each once")
                else:
                    codes.append(UNJUDGED)
                    say(f"self-test: not run: {NOTHING_TO_INJECT_INTO}.")
    for report in reports:
        if folder is not None and report.run is not None:
            kept = Payloads.MASKED if payloads is Payloads.MASKED else Payloads.ALL
            target = folder if len(reports) == 1 else folder / report.sink.topic
            kept_at = history.get(report.run).folder(settings) / EVIDENCE
            copy_evidence(kept_at, target, kept)
            attest_copy(settings, kept_at, target)
    if annotate:
        _annotate(reports)
    if ctrf is not None:
        write_file(ctrf, json.dumps(as_ctrf(reports, round(time.time() * 1000)), indent=2) + "\n")
    conclude_check(reports, json_, worst(codes))


def _annotate(reports: Sequence[Report]) -> None:
    """Print workflow commands, and write the summary where GitHub wants it. Raises
    EvidenceError."""
    for report in reports:
        for line in workflow_commands(report):
            sys.stdout.write(f"{line}\n")
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        write_file(Path(summary), "\n".join(map(markdown, reports)))


@dataclass(frozen=True)
class _Given:
    """The contract of a check. Without one, options say the same."""

    terms: Contract
    fields: dict[str, Any]
    name: str | None = None
    version: int | None = None
    text: str | None = None


def _given(
    settings: Settings, contract: str | None, options: Mapping[str, str], across: bool
) -> _Given:
    """Return the contract of a check: from a file, from the history, or from options. `across`: the
    topics are in two clusters. Raises UsageError, ContractError."""
    if contract is None:
        fields: dict[str, Any] = {"source": {"topic": "numbers"}, "sink": {"topic": "squares"}}
        if across:
            fields["identity"] = "key"
        for name, value in options.items():
            fields[name] = {"topic": value} if name in fields else value
        return _Given(make_contract(fields, across), fields)
    if options:
        raise UsageError(
            f"The contract already says this. Remove --{next(iter(options))}, or --contract."
        )
    path = Path(contract)
    if path.suffix in (".yaml", ".yml") or path.exists():
        terms, read = read_contract(path, across)
        return _Given(terms, read, path.name, text=path.read_text(encoding="utf-8"))
    kept = find(History(settings), contract)
    read = parse_fields(kept.text, kept.label)
    return _Given(make_contract(read, across), read, kept.name, kept.version, kept.text)


def _only(option: str | None, side: Topic | None, name: str) -> str | None:
    """Return the name of a side's cluster, from the option or the contract. Raises UsageError if
    both name one."""
    said = None if side is None else side.cluster
    if option and said:
        raise UsageError(f"The contract already names the cluster {said}. Remove {name}.")
    return option or said


def _other(settings: Settings, terms: Contract, told: Mapping[str, Any]) -> Address | None:
    """Return the source's cluster, if it is not the sink's. Raises UsageError, ClusterError."""
    cluster = _only(told.get("cluster"), terms.source, "--source-cluster")
    if told or (cluster is not None and cluster != settings.cluster):
        other = kafka_settings(**{**told, "cluster": cluster})
        if other.bootstrap is None:
            raise UsageError("Name the source's cluster: --source-bootstrap or --source-cluster.")
        return other.address
    return None

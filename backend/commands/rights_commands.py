"""Rights: the ACLs that a user of Topicproof needs, as commands of Kafka."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from topicproof.backend.commands.shared_options import Json
from topicproof.backend.commands.terminal import emit, out
from topicproof.backend.errors import UsageError
from topicproof.backend.kafka.acls import Task, rights_for


def rights(
    task: Annotated[Task, typer.Option("--for", help="The task that the user needs rights for.")],
    principal: Annotated[
        str, typer.Option(help="The user in Kafka's words, as User:judge.", metavar="P")
    ],
    topic: Annotated[
        list[str] | None,
        typer.Option(
            help="A topic. For check: source and sink. For run: a source that exists.", metavar="T"
        ),
    ] = None,
    group: Annotated[
        list[str] | None,
        typer.Option(help="inspect, check: a group that may be seen. Default: all.", metavar="G"),
    ] = None,
    prefix: Annotated[
        str | None,
        typer.Option(
            help=(
                "Prefix of the transactional ids. Default: all ids. For run: prefix of all its"
                " topics, groups and ids, the scenario's name and a dash. Default: squares-."
            ),
            metavar="X",
        ),
    ] = None,
    mirror: Annotated[
        list[str] | None,
        typer.Option(
            help=(
                "inspect, check: an alias of MirrorMaker, to see the offsets that it translated."
                " One of its two topics may lie on the other cluster."
            ),
            metavar="ALIAS",
        ),
    ] = None,
    bootstrap: Annotated[
        str, typer.Option(help="host:port in the commands.", metavar="B")
    ] = "localhost:9092",
    config: Annotated[
        str | None,
        typer.Option(help="Client properties of the operator who runs them.", metavar="FILE"),
    ] = None,
    json_: Json = None,
) -> None:
    """Print the `kafka-acls.sh` commands that grant the least rights for a task. Nothing is
    changed.

    Example: `topicproof rights --for inspect --principal User:judge --topic invoices`
    """
    topics = topic or []
    if task is not Task.RUN and not topics:
        raise UsageError(f"--for {task} needs the topics: name each with --topic.")
    if task is Task.RUN and group:
        raise UsageError("--group has no effect with --for run. Its groups begin with --prefix.")
    if task is Task.RUN and mirror:
        raise UsageError("--mirror has no effect with --for run, which reads no mirror's offsets.")
    if ":" not in principal:
        raise UsageError(f"--principal is {principal}; Kafka's form is User:{principal}.")
    needed = rights_for(
        task,
        topics,
        group or [],
        prefix or ("squares-" if task is Task.RUN else None),
        mirror or [],
    )
    commands = [(right, right.command(principal, bootstrap, config)) for right in needed]
    emit(json_, [asdict(right) | {"command": command} for right, command in commands])
    for right, command in commands:
        out.line(f"# {right.why}")
        out.document(command)

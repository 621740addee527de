"""Abort a hanging transaction, or commit one whose program is dead."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from topicproof.backend.commands.shared_options import (
    EMBEDDED,
    Brokers,
    Json,
    Target,
    kafka_settings,
)
from topicproof.backend.commands.terminal import Styled, emit, out, say
from topicproof.backend.history.audit import allow
from topicproof.backend.history.store import History
from topicproof.backend.kafka.coordination.abort import abort as abort_transaction, plan_abort
from topicproof.backend.kafka.coordination.commit import (
    commit as commit_transaction,
    plan_commit,
    require_confirmed,
)
from topicproof.backend.services.keeper import require_topics, services
from topicproof.backend.trust.identity import Action
from topicproof.validators.finding import PartitionBounds
from topicproof.validators.shell_words import shell_word

Partition = Annotated[int, typer.Argument(metavar="PARTITION")]
Offset = Annotated[
    int | None,
    typer.Argument(
        help="First offset of the transaction, as `topicproof inspect` shows it.",
        metavar="[OFFSET]",
    ),
]
ProducerId = Annotated[int | None, typer.Option(help="Or the id of its producer.", metavar="N")]


def abort(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    partition: Partition,
    offset: Offset = None,
    producer_id: ProducerId = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Abort it. Without --yes, only show what would be lost.")
    ] = False,
    open_too: Annotated[
        bool,
        typer.Option(
            "--open-too", help="Also abort one that is not hanging; this fences its producer."
        ),
    ] = False,
    two_phase_too: Annotated[
        bool,
        typer.Option(
            "--two-phase-too",
            help="With --open-too: also abort one of a two-phase commit, whose other side may have"
            " committed.",
        ),
    ] = False,
    target: Target = EMBEDDED,
    brokers: Brokers = None,
    json_: Json = None,
) -> None:
    """Abort a hanging transaction, which would withhold all later records for good. A dry run
    unless `--yes` is given.

    Example: `topicproof abort invoices 0 12345 --bootstrap broker:9092`
    """
    settings = kafka_settings(target, brokers)
    require_topics(settings)
    with services(settings, spark=False, say=say) as running:
        plan = plan_abort(
            running.address,
            topic,
            partition,
            offset=offset,
            producer_id=producer_id,
            open_too=open_too,
            two_phase_too=two_phase_too,
        )
        if yes:
            allow(History(settings), Action.ABORT, f"of {topic}-{partition}")
        after = abort_transaction(running.address, plan) if yes else None
    emit(json_, plan.to_json() | {"done": yes, "after": asdict(after) if after else None})
    for sentence in (plan.found.why, plan.lost, plan.gained, plan.means):
        out.line(sentence)
    _conclude(topic, partition, after, "To abort it, repeat the command with --yes.")


def commit(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    partition: Partition,
    offset: Offset = None,
    producer_id: ProducerId = None,
    confirm: Annotated[
        str | None,
        typer.Option(
            help="The transactional id that is committed, as the dry run shows it.", metavar="ID"
        ),
    ] = None,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes", help="Commit it, with --confirm. Without --yes, only show what would happen."
        ),
    ] = False,
    target: Target = EMBEDDED,
    brokers: Brokers = None,
    json_: Json = None,
) -> None:
    """Commit an open transaction that a dead program left prepared, such as a Flink job whose last
    checkpoint is complete. A dry run unless `--yes` and `--confirm` are given.

    Example: `topicproof commit invoices 0 12345 --bootstrap broker:9092`
    """
    settings = kafka_settings(target, brokers)
    require_topics(settings)
    with services(settings, spark=False, say=say) as running:
        plan = plan_commit(
            running.address, topic, partition, offset=offset, producer_id=producer_id
        )
        if yes:
            require_confirmed(plan, confirm)
            of = f"of {topic}-{partition}, transactional id {plan.found.transactional_id}"
            allow(History(settings), Action.COMMIT, of)
        after = commit_transaction(running.address, plan) if yes else None
    emit(json_, plan.to_json() | {"done": yes, "after": asdict(after) if after else None})
    for sentence in (plan.found.why, plan.delivered, plan.gained, plan.risk, plan.means):
        out.line(sentence)
    confirmed = shell_word(plan.found.transactional_id or "")
    again = f"To commit it, repeat the command with --yes --confirm {confirmed}"
    _conclude(topic, partition, after, again)


def _conclude(topic: str, partition: int, after: PartitionBounds | None, again: str) -> None:
    """Print what was done. `again`: how to do it, if nothing was."""
    if after is None:
        out.line(Styled("Nothing was done.", "bold"), f" {again}")
    else:
        where = (
            f"{topic}-{partition}: last stable offset {after.lso:,}, high watermark {after.hw:,}"
        )
        out.line(Styled("Done.", "bold"), f" {where}.")

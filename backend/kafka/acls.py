"""The least rights that each task needs, as ACLs, and the commands of Kafka that grant them.

Which operation a request needs is in Kafka's documentation, "Operations and resources on
protocols". Read, Write, Delete and Alter imply Describe. A producer that may write to a topic may
be idempotent (KIP-679).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from topicproof.validators.shell_words import shell_words

TRANSACTION_STATE = "__transaction_state"
ANY = "*"


class Task(StrEnum):
    """What a principal shall be able to do."""

    INSPECT = "inspect"
    CHECK = "check"
    RUN = "run"


class Resource(StrEnum):
    """A kind of resource, in the spelling of kafka-acls.sh."""

    TOPIC = "topic"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional-id"


@dataclass(frozen=True)
class Right:
    """Operations on one resource."""

    resource: Resource
    name: str
    """A name, a prefix, or `*` for all."""
    prefixed: bool
    operations: tuple[str, ...]
    why: str
    """What the task cannot do without it, in a sentence."""

    def command(self, principal: str, bootstrap: str, config: str | None) -> str:
        """Return the line for a shell."""
        words = ["kafka-acls.sh", "--bootstrap-server", bootstrap]
        words += ["--command-config", config] if config else []
        words += ["--add", "--allow-principal", principal]
        words += [word for each in self.operations for word in ("--operation", each)]
        words += ["--resource-pattern-type", "prefixed"] if self.prefixed else []
        return shell_words([*words, f"--{self.resource}", self.name])


def rights_for(
    task: Task,
    topics: Sequence[str],
    groups: Sequence[str] = (),
    prefix: str | None = None,
    mirrors: Sequence[str] = (),
) -> tuple[Right, ...]:
    """Return what the task needs on these topics.

    `groups` are the groups whose lag or offsets it shows; none stands for all. `prefix` begins the
    transactional ids; None stands for all. For a run it begins all of its names, and `topics` are
    existing sources. `mirrors` are aliases of MirrorMaker's clusters, whose translated offsets it
    shows.
    """
    if task is Task.RUN:
        return _run(topics, prefix or "")
    rights = [_read(task, topic) for topic in topics]
    rights.append(
        Right(
            Resource.TRANSACTIONAL_ID,
            prefix or ANY,
            prefix is not None,
            ("Describe",),
            "Without it nobody can tell whether an open transaction hangs.",
        )
    )
    operations = ("Describe", "DescribeConfigs") if task is Task.INSPECT else ("Describe",)
    why = {
        Task.INSPECT: "Without it the lag of groups, or a share group's isolation, is not shown.",
        Task.CHECK: "Without it offsets that a transaction holds back are not seen.",
    }
    rights += [
        Right(Resource.GROUP, group, False, operations, why[task]) for group in groups or (ANY,)
    ]
    why_mirrored = "Without it the offsets that MirrorMaker translated are not shown."
    rights += [
        Right(Resource.TOPIC, name, False, ("Read",), why_mirrored)
        for alias in mirrors
        for name in (f"{alias}.checkpoints.internal", f"mm2-offset-syncs.{alias}.internal")
    ]
    if task is Task.INSPECT:
        why_aborted = "Without it the reason of an abort is not known."
        rights.append(Right(Resource.TOPIC, TRANSACTION_STATE, False, ("Read",), why_aborted))
    return tuple(rights)


def _read(task: Task, topic: str) -> Right:
    if task is Task.INSPECT:
        return Right(Resource.TOPIC, topic, False, ("Read",), "Without it nothing can be read.")
    why = "Without Read nothing can be judged; without DescribeConfigs the retention is unknown."
    return Right(Resource.TOPIC, topic, False, ("Read", "DescribeConfigs"), why)


def _run(sources: Sequence[str], prefix: str) -> tuple[Right, ...]:
    names = "A run's topics, groups and transactional ids begin with its scenario's name."
    return (
        *(
            Right(Resource.TOPIC, topic, False, ("Read",), "The run reads this source.")
            for topic in sources
        ),
        Right(Resource.TOPIC, prefix, True, ("Create", "Read", "Write"), names),
        Right(Resource.GROUP, prefix, True, ("Read",), "The sink commits its inputs' offsets."),
        Right(Resource.TRANSACTIONAL_ID, prefix, True, ("Write",), "The sink writes transactions."),
    )

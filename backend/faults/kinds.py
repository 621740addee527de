"""The kinds of fault. CONTRIBUTING.md shows how to add one."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from topicproof.backend.faults.fault import TRANSACTION, Fault, Key, Kind, Side, parse, step_key
from topicproof.backend.sink.hooks import Step

_OPEN = step_key(Step.BEGUN, Step.PRODUCING, Step.PRODUCED, Step.OFFSET_SENT)
"""Steps at which a transaction is open."""

RELEASE = "release"
"""Something stays as it is until somebody ends it."""

CRASH = Kind(
    "crash",
    "The worker is killed with SIGKILL, as if by a power cut.",
    Side.WORKER,
    (TRANSACTION, step_key()),
)
ERROR = Kind(
    "error",
    "The worker's code raises an exception, and Spark runs the task again.",
    Side.WORKER,
    (TRANSACTION, step_key(*(step for step in Step if step is not Step.COMMITTING))),
)
ZOMBIE = Kind(
    "zombie",
    "The worker is cut off from Spark and stopped (SIGSTOP), and resumes when its successor has"
    " begun.",
    Side.WORKER,
    (TRANSACTION, _OPEN),
)
HIJACK = Kind(
    "hijack",
    "Another process takes the worker's transactional id over, begins a transaction, and leaves.",
    Side.WORKER,
    (TRANSACTION, _OPEN),
    needs_transactions=True,
)
OFFSETS = Kind(
    "offsets",
    "The group's committed offset is moved by one transaction, or deleted. Then the task fails, so"
    " that Spark replays its batch, or continues.",
    Side.WORKER,
    (
        TRANSACTION,
        Key("how", None, ("rewound", "forwarded", "deleted")),
        Key("replay", "yes", ("yes", "no")),
    ),
    step=Step.DECLARED,
)
REFUSED = Kind(
    "refused",
    "The worker produces a record that is larger than the topic allows, in the given number of"
    " attempts.",
    Side.WORKER,
    (TRANSACTION, Key("times", "1")),
    step=Step.BEGUN,
    needs_transactions=True,
)

NETWORK = Kind(
    "network",
    "Requests of the workers to the brokers, or their answers, are lost or late. Every worker"
    " reaches the brokers through a proxy.",
    Side.RUN,
    (
        TRANSACTION,
        Key("request", None, ("produce", "partitions", "offset", "end", "abort")),
        Key("how", "unanswered", ("unanswered", "lost", "late", "overtaken", "ghost")),
        Key("times", "1"),
        Key("seconds", "2"),
        Key("defence", "yes", ("yes", "no")),
    ),
    step=Step.BEGUN,
    transactional_words=("partitions", "end", "abort"),
)
ISOLATED = Kind(
    "isolated",
    "The workers are cut off from the brokers for the given number of seconds.",
    Side.RUN,
    (TRANSACTION, step_key(), Key("seconds", "5")),
)
BROKER = Kind(
    "broker",
    "The embedded broker that leads a role's partition is killed and restarted, pauses, or is cut"
    " off from its peers, for the given number of seconds.",
    Side.RUN,
    (
        TRANSACTION,
        Key("role", None, ("source", "sink", "transactions", "offsets")),
        Key("how", "kill", ("kill", "pause", "isolate")),
        Key("seconds", "2"),
        step_key(),
    ),
)
UNCLEAN = Kind(
    "unclean",
    "The follower of sink partition 0 is killed, its leader continues alone for the given number of"
    " seconds, and is killed too. The follower is elected without what it missed.",
    Side.RUN,
    (TRANSACTION, Key("seconds", "2"), step_key()),
)
OPEN = Kind(
    "open",
    "A foreign producer leaves a transaction open in the sink, until it is aborted after the given"
    " number of seconds, expires, or is ended by `topicproof release`.",
    Side.RUN,
    (TRANSACTION, Key("end", "abort", ("abort", "expiry", RELEASE)), Key("seconds", "5")),
    step=Step.BEGUN,
)
MEMBER = Kind(
    "member",
    "Another consumer joins the run's group and owns its source partitions, for the given number of"
    " seconds.",
    Side.RUN,
    (TRANSACTION, step_key(), Key("seconds", "2")),
)
RESTART = Kind(
    "restart",
    "The query is stopped and started again, with its checkpoint or without it, and with as many"
    " partitions as before or with one more on each side.",
    Side.RUN,
    (
        TRANSACTION,
        step_key(),
        Key("checkpoint", "kept", ("kept", "lost")),
        Key("partitions", "same", ("same", "more")),
    ),
)
RIGHTS = Kind(
    "rights",
    "An ACL denies every client the sink, the run's transactional ids or its group, for the"
    " given number of seconds.",
    Side.RUN,
    (
        TRANSACTION,
        step_key(Step.BEGUN, Step.PRODUCING, Step.PRODUCED, Step.OFFSET_SENT, Step.COMMITTED),
        Key("to", None, ("sink", "id", "group")),
        Key("seconds", "1"),
    ),
    needs_transactions=True,
)

KINDS: tuple[Kind, ...] = (
    CRASH,
    ERROR,
    ZOMBIE,
    HIJACK,
    REFUSED,
    OFFSETS,
    NETWORK,
    ISOLATED,
    BROKER,
    UNCLEAN,
    OPEN,
    MEMBER,
    RESTART,
    RIGHTS,
)


@dataclass(frozen=True)
class Choice:
    """A kind of fault, with a word for each required key."""

    kind: Kind
    words: Mapping[str, str]

    def at(self, transaction: int, step: Step) -> str:
        """Return the fault's text. A kind without a key for the step ignores `step`."""
        place = {
            "transaction": transaction,
            **({"step": step} if self.kind.has("step") else {}),
            **self.words,
        }
        return f"{self.kind.name}@{','.join(f'{key}={value}' for key, value in place.items())}"


def choices() -> dict[str, Choice]:
    """Return the choices of a form by label: `crash`, `offsets rewound`."""
    by_label = {}
    for kind in KINDS:
        needed = [key for key in kind.keys if key.words and key.default is None]
        for words in itertools.product(*(key.words for key in needed)):
            by_label[" ".join([kind.name, *words])] = Choice(
                kind, dict(zip((key.name for key in needed), words, strict=True))
            )
    return by_label


def parse_fault(text: str) -> Fault:
    """Raises UsageError for an unknown fault."""
    return parse(text, KINDS)

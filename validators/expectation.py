"""Found is not wrong: decides which kinds break which guarantee, and how outcomes are merged.

A row is judged by its cause: a primary row by its own kind, an explained row by the kind that
explains it. So an order row that a duplicate explains breaks exactly_once but not at_least_once,
like the duplicate itself.

A kind counts for the verdict in one of three ways. A required kind must hold: unheard or empty, it
makes the verdict UNKNOWN. A contradiction counts only if it is found: it can break exactly_once,
but its absence never matters. An advisory kind never counts; it is looked for and shown.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from topicproof.validators.finding import Guarantee, Outcome

RANGE = "range"
"""Explains rows outside the judged range: not examined, so neither right nor wrong."""
PENDING = "pending"
"""Explains rows that an open transaction may still settle: unknown."""
MOVEMENT = "movement"
"""Explains rows of topics that grew during the check, if nothing tells what was due: unknown."""
UNTOLD = "no_offset"
"""Explains rows of a source partition without a committed offset of the group: unknown."""

FIRST_COPY = "first_copy"
TOO_MANY = "too_many"
"""Explains rows whose order depends on which of several copies came first, if nothing tells that:
unknown."""
FORGOTTEN = "forgotten"
"""Explains outputs without an input, once a watch no longer remembers every input: unknown."""
UNREADABLE = "unreadable"
"""Explains rows that may follow from records that a watch did not read, because they are too large
or broken: unknown."""

NO_NUMBER = "no_number"
SEVERAL_SINKS, SEVERAL_SOURCES = "several_sinks", "several_sources"
"""Explain rows about the aggregate of a group: unknown."""

UNDECIDED: Mapping[str, str] = {
    PENDING: "an open transaction may still commit or abort what it depends on",
    MOVEMENT: "the topics grew during the check, and nothing tells which outputs were due",
    UNTOLD: "the group has committed no offset there",
    FIRST_COPY: "nothing tells which of several copies came first",
    TOO_MANY: "there are more of them than are examined",
    FORGOTTEN: "a watch does not remember every input that is older than `remember`",
    UNREADABLE: "some records are too large to be read, or broken",
    NO_NUMBER: (
        "an input or output of the group holds no number that can be added or compared exactly"
    ),
    SEVERAL_SINKS: (
        "outputs of the group lie in several partitions of the sink, so none is known as the last"
    ),
    SEVERAL_SOURCES: (
        "inputs of the group lie in several partitions of the source, so nothing tells which ones"
        " an output had counted"
    ),
}
"""Why rows with such a cause cannot be judged, as clauses."""

PROMISES: Mapping[Guarantee, str] = {
    Guarantee.EXACTLY_ONCE: "exactly once",
    Guarantee.AT_LEAST_ONCE: "at least once",
    Guarantee.AT_MOST_ONCE: "at most once",
}

EXEMPT: Mapping[Guarantee, Mapping[str, str]] = {
    Guarantee.EXACTLY_ONCE: {},
    Guarantee.AT_LEAST_ONCE: {
        "duplicate": (
            "at least once allows an input to be committed again when its acknowledgement was lost"
        ),
        "offset_behind": "at least once commits the offset after the output",
    },
    Guarantee.AT_MOST_ONCE: {
        "gap": (
            "at most once allows an input to be lost when it was acknowledged before its output was"
            " committed"
        ),
        "offset_ahead": "at most once commits the offset before the output",
    },
}
"""Kinds that a guarantee allows, with the reason. They are looked for and shown, and break
nothing."""

REQUIRED: Mapping[Guarantee, tuple[str, ...]] = {
    Guarantee.EXACTLY_ONCE: ("duplicate", "gap", "order", "aborted_read", "phantom"),
    Guarantee.AT_LEAST_ONCE: ("gap", "order", "phantom"),
    Guarantee.AT_MOST_ONCE: ("duplicate", "order", "phantom"),
}
"""The kinds that make the verdict, unless a contract names others."""

CONTRADICTIONS: Mapping[Guarantee, tuple[str, ...]] = {
    Guarantee.EXACTLY_ONCE: (
        "fate_split",
        "wrong_attribution",
        "late_append",
        "reading_mismatch",
        "marker_accounting",
        "zombie_write",
        "torn",
        "resurrected",
        "aborted_input",
        "circular_flow",
        "precommitted_read",
        "poll_skip",
    ),
    # Even if records are repeated or lost, a record aborted in the source is never an input.
    Guarantee.AT_LEAST_ONCE: ("aborted_input",),
    Guarantee.AT_MOST_ONCE: ("aborted_input",),
}
"""Kinds in which witnesses contradict one another, or the log contradicts itself. A primary row
breaks the guarantee. If a witness was not heard, or there is nothing to examine, the other kinds
decide: topics without a transaction are judged too."""


@dataclass(frozen=True)
class Premise:
    """A condition that other kinds rest on, which name it in their traits
    (validators/kinds/traits.py). If it is broken, they never hold."""

    remedy: str
    """The remedy, in one sentence."""
    broken: str
    """Why rows of other kinds cannot be judged if it is broken, as a clause."""
    asked: str = ""
    """Why it is not asked, as a clause; empty: it always is."""
    remedy_of_sink: str = ""
    """The remedy if the contract is about the sink alone; empty: the same one."""


PREMISES: Mapping[str, Premise] = {
    "undecodable": Premise(
        "Name the registry (`schema.registry.url` with --config) or the schema that they were"
        " written with, or identify records by something else.",
        "some records cannot be decoded",
        "the contract names no decoded field",
    ),
    "identity_missing": Premise(
        "Have each record written with one, or name what every record holds: `topicproof contract"
        " init` proposes an identity.",
        "some records hold no identity",
        "records are matched by lineage",
        remedy_of_sink="Name what every record holds.",
    ),
    "identity_repeated": Premise(
        "If they are one input that was sent twice, mend its producer. If not, name what differs"
        " from input to input: `topicproof contract init` proposes an identity.",
        "several inputs share an identity",
        "records are matched by lineage",
    ),
    "identity_disjoint": Premise(
        "Match them by something else: `topicproof contract init` proposes an identity.",
        "no committed record names an input of the source",
    ),
    "outputs_alike": Premise(
        "Give each output a key or value of its own, or judge each sink by itself under `sinks:`.",
        "some outputs of an input cannot be told apart",
        "only the identity tells outputs apart",
    ),
    "key_spread": Premise(
        "Let all writers of the sink partition by key in one way (librdkafka's default partitioner"
        " is not Java's), or promise another order.",
        "some keys lie in several partitions",
        "the contract promises no order per key",
    ),
    "source_removed": Premise(
        "Say `range: retained` in the contract to judge only what is still there, or check sooner"
        " the next time.",
        "the source has lost records",
    ),
    "sink_removed": Premise(
        "Say `range: retained` in the contract to judge only what is still there, or check sooner"
        " the next time.",
        "the sink has lost records",
    ),
    "recreated": Premise(
        "Name an `identity:` that no two inputs share, old ones included; or let the pipeline write"
        " to a new sink, and check that one: it then processes every input again.",
        "a topic was deleted and made again under its name",
        "records are matched by what they hold, whatever the topic",
    ),
}
"""Conditions that are checked before any kind is judged. A broken premise is UNKNOWN, and so is
every row of another kind that it explains. What is a violation regardless remains one."""


@dataclass(frozen=True)
class RequiringTerm:
    """A term that makes kinds count in a contract that has it."""

    name: str
    """The field of the contract."""
    field: str
    """The field of `ContractTerms` (validators/contract_terms.py); None: the term is not given."""
    missing: str
    """Why its kinds are not looked for otherwise, as a clause."""


VALUE = RequiringTerm("value", "value", "the contract gives no `value:`")
GROUP = RequiringTerm("group", "offsets", "the contract names no `group:`")
AGGREGATE = RequiringTerm("aggregate", "aggregate", "the contract names no `aggregate:`")
LETTERS = RequiringTerm("dead_letters", "letters", "the contract names no `dead_letters:`")
BY_CONTRACT: Mapping[str, RequiringTerm] = {
    "both_outcomes": LETTERS,
    "wrong_value": VALUE,
    "offset_ahead": GROUP,
    "offset_behind": GROUP,
    "group_missing": AGGREGATE,
    "group_unknown": AGGREGATE,
    "wrong_aggregate": AGGREGATE,
    "wrong_update": AGGREGATE,
}
"""Kinds that are required if a contract has the term."""

ADVISORY: Mapping[str, str] = {
    "intruder": "only a topic's owner knows which other producers may write to it",
    "sequence_hole": (
        "the broker keeps sequences, and a hole in them alone loses no acknowledged record"
    ),
    "identity_change": "a transactional id may change its producer id and epoch",
    "aborted_volume": "aborted records are part of every transactional topic",
    "interleaving": "Kafka never promised that a transaction's records are contiguous",
    "unknown_outcome": "the log settles what a client does not know",
    "letter_repeated": (
        "dead letters are usually written outside of the transaction, so at least once"
    ),
    "hanging": (
        "it withholds records but loses none; what it withholds is pending and not judged yet"
    ),
    "lso_stall": (
        "it withholds records but loses none; what it withholds is pending and not judged yet"
    ),
    "unstable_offsets": "it delays consumers and loses no record",
    "movement": "growing topics are judged up to a cut, and the rest is not judged yet",
    "source_pending": "no output is expected yet for a pending input",
}
"""Kinds that break no guarantee, with the reason. They are looked for and shown, but do not
count."""

COVERAGE = ("movement", "source_pending")
"""Kinds that show what a verdict leaves out. They are always looked for, even if a contract names
its kinds."""

NORMAL = frozenset(
    {
        "identity_change",
        "aborted_volume",
        "interleaving",
        "unknown_outcome",
        "movement",
        "source_pending",
    }
)
"""Advisory kinds whose rows tell what happened, not that anything is wrong."""

OF_AGGREGATE = tuple(kind for kind, term in BY_CONTRACT.items() if term is AGGREGATE)
OF_ALL_UPDATES = "wrong_update"
"""Of `OF_AGGREGATE`: required only if the contract says `running: true`."""
OF_LOG = ("aborted_read", "reading_mismatch", "late_append", "marker_accounting", "resurrected")
"""Kinds about the log alone, which break a contract with `aggregate:` where they are found."""
MEANINGLESS: Mapping[str, str] = {
    kind: f"Not judged: it has no meaning for an aggregate. {reason}"
    for kind, reason in {
        "duplicate": "An output is of many inputs, and one that counts an input twice is wrong.",
        "gap": "An input owes no output of its own: its group does.",
        "order": "An aggregate does not depend on the order of its inputs.",
        "phantom": "An output is judged by its group.",
    }.items()
}
"""Kinds about single outputs, which a contract with `aggregate:` cannot promise anything about."""

MEANINGLESS_OF_TABLE: Mapping[str, str] = {
    kind: f"Not judged: a table has no {what}."
    for kind, what in {
        "order": "order of its rows",
        "aborted_read": "rows of aborted transactions: its database shows none",
        "key_spread": "partitions that keys could lie in",
        "sink_removed": "offsets, so nothing tells which rows were removed; a removed row is a gap",
        "recreated": (
            "ids of topics and no times of its rows, so rows of a deleted topic look like those of"
            " the present one"
        ),
        "offset_behind": (
            "transaction that also commits a group's offset in Kafka, so an offset that is behind"
            " its rows is normal"
        ),
        "torn": "transactions of Kafka",
        "circular_flow": "transactions of Kafka",
        **dict.fromkeys(
            (
                *("reading_mismatch", "fate_split", "wrong_attribution", "late_append"),
                *("zombie_write", "marker_accounting", "resurrected", "intruder"),
                *("sequence_hole", "identity_change", "aborted_volume", "interleaving"),
                "unknown_outcome",
            ),
            "log with batches and markers",
        ),
        **dict.fromkeys(("precommitted_read", "poll_skip"), "reader of Kafka"),
        **dict.fromkeys(
            ("hanging", "lso_stall", "unstable_offsets"), "coordinator, and no open transactions"
        ),
    }.items()
}
"""Kinds that cannot be asked of a table. They are never counted as held."""

NOT_NAMED = "Not required: the contract does not name it."
"""Why a kind does not count, if a contract names the kinds that do."""

WORST_FIRST = (Outcome.VIOLATED, Outcome.UNKNOWN, Outcome.HOLDS)
EXIT_CODES: Mapping[Outcome, int] = {Outcome.HOLDS: 0, Outcome.VIOLATED: 1, Outcome.UNKNOWN: 3}


def remedy(premise: str, of_sink: bool) -> str:
    """Returns what to do about a broken premise. `of_sink`: the contract is about the sink
    alone."""
    terms = PREMISES[premise]
    return terms.remedy_of_sink if of_sink and terms.remedy_of_sink else terms.remedy


def merge(outcomes: Iterable[Outcome]) -> Outcome:
    """Returns the worst outcome; UNKNOWN if there is none: without questions nothing is known."""
    distinct = set(outcomes)
    return next((outcome for outcome in WORST_FIRST if outcome in distinct), Outcome.UNKNOWN)


def counts(kind: str) -> bool:
    """Whether a kind can make or break a verdict: by a guarantee, a contract, or as a premise."""
    tables = (*REQUIRED.values(), *CONTRADICTIONS.values(), BY_CONTRACT, PREMISES)
    return any(kind in kinds for kinds in tables)


def required_by_terms(terms: Collection[RequiringTerm], *, of_table: bool) -> tuple[str, ...]:
    """Returns the kinds that the terms of a contract require. `of_table`: its sink is a table."""
    kinds = (kind for kind, term in BY_CONTRACT.items() if term in terms)
    return tuple(kind for kind in kinds if not of_table or kind not in MEANINGLESS_OF_TABLE)


def required_of_table(guarantee: Guarantee) -> tuple[str, ...]:
    """Returns the kinds that a guarantee requires of a table."""
    return tuple(kind for kind in REQUIRED[guarantee] if kind not in MEANINGLESS_OF_TABLE)


def covers(guarantee: Guarantee, kinds: Iterable[str], order: bool) -> bool:
    """Whether `kinds` are all that a guarantee requires. `order`: an order is promised."""
    return set(kinds) >= {kind for kind in REQUIRED[guarantee] if order or kind != "order"}


def looked_for(kind: str, guarantee: Guarantee) -> bool:
    """Whether a kind is looked for and shown although it is not required."""
    kind_sets = (EXEMPT[guarantee], CONTRADICTIONS[Guarantee.EXACTLY_ONCE])
    return not counts(kind) or any(kind in kinds for kinds in kind_sets)


def judge_rows(kind: str, causes: Mapping[str | None, int], guarantee: Guarantee) -> Outcome:
    """Judges a kind whose rows have these causes (None: primary), under a guarantee."""
    return merge(
        [_judge_cause(cause or kind, kind, guarantee) for cause, count in causes.items() if count]
        or [Outcome.HOLDS]
    )


def is_undecided(cause: str, kind: str) -> bool:
    """Whether rows of `kind` with this cause are unknown: neither right nor wrong."""
    return (cause in UNDECIDED or cause in PREMISES) and (cause, kind) != (MOVEMENT, MOVEMENT)


def reason_not_required(kind: str, guarantee: Guarantee, chosen: bool) -> str:
    """Explains why a kind does not count for the verdict. `chosen`: the contract named the kinds
    itself."""
    if kind in EXEMPT[guarantee]:
        return f"Not required: {EXEMPT[guarantee][kind]}."
    if chosen:
        return NOT_NAMED
    if kind == "order" and kind in REQUIRED[guarantee]:
        return "Not required: no order is promised."
    if kind in PREMISES:
        return f"Not looked for: {PREMISES[kind].asked or 'no required kind depends on it'}."
    if kind in BY_CONTRACT:
        return f"Not looked for: {BY_CONTRACT[kind].missing}."
    if kind in ADVISORY:
        return f"Not counted: {ADVISORY[kind]}."
    if not counts(kind):
        return "Not counted: no guarantee promises anything about it."
    return f"Not required: {PROMISES[guarantee]} promises nothing about it."


def _judge_cause(cause: str, kind: str, guarantee: Guarantee) -> Outcome:
    if is_undecided(cause, kind):
        return Outcome.UNKNOWN
    allowed = cause == RANGE or cause in NORMAL or cause in EXEMPT[guarantee]
    return Outcome.HOLDS if allowed else Outcome.VIOLATED

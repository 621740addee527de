"""The guided demos: what each one starts, its text while it runs, and the pages it leads to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st

from topicproof.app import wording
from topicproof.app.session.access import open_history
from topicproof.app.shell.url_state import example_position
from topicproof.backend.history.store import ENDED, Run, State
from topicproof.backend.runs.launch import start_run
from topicproof.backend.runs.plan import make_plan
from topicproof.backend.settings import Settings
from topicproof.backend.trust.identity import Identity
from topicproof.validators.finding import Outcome
from topicproof.validators.report import Report

_SMALL: Mapping[str, Any] = {"records": 9_000, "partitions": 3, "per_transaction": 500, "seed": 7}
_ENDLESS: Mapping[str, Any] = {
    "by_hand": True,
    "until_stopped": True,
    "trigger": "real_time",
    "commit_interval_ms": 300,
    # Transactions stay open for long enough to be aimed at.
    "slow_motion_ms": 1_200,
    "rate": 40,
    # In real time each takes one of Spark's task slots, and other runs need some too.
    "partitions": 2,
    "seed": 7,
}


@dataclass(frozen=True)
class Part:
    """One run of a story."""

    title: str
    plan: Mapping[str, Any]
    """Fields of a RunPlan."""


@dataclass(frozen=True)
class Story:
    """One demo: one click, one or two real runs, and plain words."""

    name: str
    """Its name in the URL."""
    title: str
    question: str
    icon: str
    parts: tuple[Part, ...]
    """Runs that start together and are shown side by side."""
    processing: str
    """The text while the pipeline runs."""
    ended: str
    """The text afterwards."""
    takes: str = "about half a minute"
    """How long its runs take, in words."""


_FILLING = (
    "Integers are written into a new source topic, by an idempotent producer: nothing twice,"
    " nothing missing."
)
_JUDGING = (
    "The pipeline is done. Now the sink is read twice, as read_committed and as read_uncommitted,"
    " and compared with the source, with the log's markers and with what the pipeline declared."
)
_BROKEN = (
    "This time the story stopped before it had a verdict. The error is shown below; start it again."
)
_DIFFERENT = (
    "This time it ended differently from the story. Open the verdict below to see what was found,"
    " and where."
)

STORIES: tuple[Story, ...] = (
    Story(
        "clean",
        "A clean run",
        "What does exactly-once look like when nothing goes wrong?",
        ":material/check_circle:",
        (Part("exactly once", _SMALL),),
        "Spark reads the source, squares each number, and writes it inside a transaction together"
        " with the offset of the input. Both become visible at once, or neither does.",
        "Every input has one output, and both isolation levels get the same records. Between the"
        " transactions lie their markers: each takes an offset and reaches no consumer, so the"
        " topic has more offsets than records.",
    ),
    Story(
        "aborts",
        "Aborts that only read_uncommitted sees",
        "Where do aborted records go?",
        ":material/visibility_off:",
        (
            Part(
                "exactly once, 40% of the transactions aborted",
                {**_SMALL, "abort_probability": 0.4},
            ),
        ),
        "Two of five transactions are aborted on purpose after their records are sent, and are"
        " tried again. Their records stay in the topic; an abort marker after them says that they"
        " do not count.",
        "Above, the boxes with a cross are aborted. A read_uncommitted consumer gets them, and then"
        " their replacements; a read_committed consumer gets each output once.",
    ),
    Story(
        "crash",
        "The same crash, at least once and exactly once",
        "What does a killed worker leave in the topic?",
        ":material/compare_arrows:",
        tuple(
            Part(
                guarantee.replace("_", " "),
                {**_SMALL, "guarantee": guarantee, "faults": ("crash@transaction=2",)},
            )
            for guarantee in ("at_least_once", "exactly_once")
        ),
        "In both runs the worker is killed with SIGKILL in the second transaction of every"
        " partition, when its records are in the log and its offset is not committed. Spark starts"
        " the task again.",
        "With at-least-once, the killed workers' records are in the topic twice (marked 2×), and"
        " every consumer gets both copies: this is allowed, and shown. With exactly-once, the first"
        " copy is aborted when the next worker takes over, and no read_committed consumer ever gets"
        " it.",
    ),
    Story(
        "zombie",
        "A zombie is fenced",
        "What if a worker that was given up for dead comes back?",
        ":material/skull:",
        (Part("exactly once, with a zombie", {**_SMALL, "faults": ("zombie@transaction=2",)}),),
        "A worker is stopped in the middle of its transaction. A successor takes over its"
        " transactional id, which raises the producer's epoch. Then the first worker wakes, and"
        " continues as if nothing had happened.",
        "Kafka refuses the zombie: its epoch is too old. The transactions it had begun are"
        " aborted, as the number of fenced ones shows, and each input is still committed once.",
    ),
    Story(
        "hanging",
        "An open transaction freezes the last stable offset",
        "Why do consumers stall although records arrive?",
        ":material/ac_unit:",
        (
            Part(
                "exactly once, with a foreign open transaction",
                {**_SMALL, "faults": ("open@transaction=2,end=release",)},
            ),
        ),
        "A foreign producer leaves a transaction open in the sink. The last stable offset (LSO)"
        " cannot pass it: whatever is committed behind it is withheld from every read_committed"
        " consumer. The bar shows how much. It stays so until you end the transaction.",
        "The open transaction was ended, the LSO moved on, and all that was withheld was"
        " delivered, in order. The foreign records are aborted; Transactions shows who wrote them"
        " and how long they blocked consumers.",
        "until you end the transaction",
    ),
    Story(
        "by-hand",
        "Break it yourself",
        "Can you make exactly-once lose a record, or write one twice?",
        ":material/bolt:",
        (Part("exactly once, and your strikes", _ENDLESS),),
        "The pipeline writes until you end it. Kill a worker while one of its boxes is open"
        " (striped), or freeze the network, as often as you like. What a killed worker left open is"
        " aborted, and its successor continues at the committed offset. When you have seen enough,"
        " press Finish and judge: then every record is counted.",
        "Whatever you did, each input is committed exactly once: the verdict counts them all, and"
        " names your strikes. Boxes with a cross were open when you struck, or when Spark restarted"
        " the workers. No read_committed consumer gets them.",
        "until you end it",
    ),
)


def find_story(name: str | None) -> Story | None:
    return next((story for story in STORIES if story.name == name), None)


@dataclass(frozen=True)
class Step:
    """One of the steps that every story goes through, in plain words."""

    title: str
    text: str


def steps(story: Story, runs: Sequence[Run]) -> list[Step]:
    """Returns the story so far; the last step is the current one. Of several runs, the slowest
    counts."""
    way = (
        Step("Start", "Each run has its own process. It continues if you close this page."),
        Step("Fill", _FILLING),
        Step("Process", story.processing),
        Step("Judge", _JUDGING),
        Step("What there is to see", _ending(story, runs)),
    )
    return list(way[: 1 + min((_stage(run) for run in runs), default=0)])


def _ending(story: Story, runs: Sequence[Run]) -> str:
    """Returns what there is to see. Every story ends with verdicts that hold; if a run's does not,
    its text would be wrong."""
    verdicts = {run.verdict for run in runs if run.state in ENDED}
    if None in verdicts:
        return _BROKEN
    return story.ended if verdicts <= {Outcome.HOLDS} else _DIFFERENT


def _stage(run: Run) -> int:
    if run.state in ENDED:
        return 4
    return {State.FILLING: 1, State.PROCESSING: 2, State.STOPPING: 2, State.JUDGING: 3}.get(
        run.state, 0
    )


@dataclass(frozen=True)
class Way:
    """A link at the end of a story."""

    label: str
    view: str
    """The name of the page's file."""
    params: Mapping[str, str]
    icon: str


def ways(run: Run, report: Report | None) -> list[Way]:
    """Returns the pages to visit after a run: the harm first, then what was aborted, then
    everything."""
    if report is None:
        return []
    sink = report.sink.place(0)[0]
    pages = []
    for finding in report.findings:
        place = example_position(report, finding.examples[0]) if finding.examples else None
        if finding.kind in _HARM and place is not None:
            topic, partition, offset, label = place
            params = {"topic": topic, "partition": str(partition), "offset": str(offset)}
            pages.append(
                Way(f"{_HARM[finding.kind]}: {label}", "compare", params, ":material/compare:")
            )
    aborted = {"outcome": "aborted"} if report.fates["aborted"] else {}
    # Compare opens at the first aborted record if there is one.
    label = (
        "An aborted record, seen at both levels" if aborted else "The same records at both levels"
    )
    pages.append(Way(label, "compare", {"topic": sink}, ":material/compare:"))
    if report.transactions.committed:
        label = "The aborted transactions, and why" if aborted else "The transactions over time"
        pages.append(Way(label, "transactions", {"topic": sink} | aborted, ":material/timeline:"))
    pages.append(
        Way("The verdict, and where to sign it", "verdict", {"run": run.id}, ":material/gavel:")
    )
    return pages


_HARM: Mapping[str, str] = {
    "duplicate": "A record that came twice",
    "gap": "An input whose output is missing",
}


def own_runs(story: Story, runs: Sequence[Run], by: Identity) -> list[Run]:
    """Returns those runs that this person started for the story: their plans are the story's.
    Without a login nobody can tell people apart."""

    def is_own(run: Run) -> bool:
        return any(
            by.is_same_person(person) or not (by.authenticated or person.authenticated)
            for person in run.facts.launched_by
        )

    plans = (make_plan(dict(part.plan)) for part in story.parts)
    return [
        run
        for plan, run in zip(plans, runs, strict=True)
        if is_own(run) and run.plan == plan.model_dump(mode="json", by_alias=True)
    ]


def start_story(settings: Settings, story: Story) -> dict[str, str]:
    """Starts the story's runs, each in a process of its own. Returns the parameters of the page
    Demos that open it. Raises TopicproofError."""
    with st.status("Starting…") as status:
        runs = [
            start_run(
                open_history(settings),
                make_plan(dict(part.plan)),
                lambda line: status.update(label=wording.plain(line)),
            )
            for part in story.parts
        ]
    return {"story": story.name, "runs": ",".join(runs)}

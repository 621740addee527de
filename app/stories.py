"""The guided demos: what each one starts, and what is said about it while it happens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backend.history.store import ENDED, Run, State

_SMALL: Mapping[str, Any] = {"records": 9_000, "partitions": 3, "per_transaction": 500, "seed": 7}


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
    """In the URL."""
    title: str
    question: str
    icon: str
    parts: tuple[Part, ...]
    """Started together and shown side by side."""
    processing: str
    """What happens while the pipeline runs."""
    ended: str
    """What there is to see afterwards."""


_FILLING = "Integers are written into a new source topic, by an idempotent producer: nothing twice, nothing missing."
_JUDGING = (
    "The pipeline is done. Now the sink is read twice, as read_committed and as read_uncommitted, and compared with "
    "the source, with the log's markers and with what the pipeline declared."
)
_WAITING = "A process of its own starts the run. It goes on if you close this page."

STORIES: tuple[Story, ...] = (
    Story(
        "clean",
        "A clean run",
        "What does exactly-once look like when nothing goes wrong?",
        ":material/check_circle:",
        (Part("exactly once", _SMALL),),
        "Spark reads the source, squares each number, and writes it inside a transaction together with the offset of "
        "the input. Both become visible at once, or neither does.",
        "Every input has one output. In Compare both levels show the same records; between the transactions lie their "
        "markers, which take an offset each and reach no consumer.",
    ),
    Story(
        "aborts",
        "Aborts that only read_uncommitted sees",
        "Where do aborted records go?",
        ":material/visibility_off:",
        (Part("exactly once, 40% of the transactions aborted", {**_SMALL, "abort_probability": 0.4}),),
        "Two of five transactions are aborted on purpose after their records were sent, and tried again. What they "
        "wrote stays in the topic for ever; an abort marker behind it says that it does not count.",
        "Open Compare: the hatched stretches are aborted. A read_uncommitted consumer gets them, and their "
        "replacements too; a read_committed one gets each output once.",
    ),
    Story(
        "crash",
        "The same crash, at least once and exactly once",
        "What does a killed worker leave in the topic?",
        ":material/compare_arrows:",
        tuple(
            Part(guarantee.replace("_", " "), {**_SMALL, "guarantee": guarantee, "faults": ("crash@transaction=2",)})
            for guarantee in ("at_least_once", "exactly_once")
        ),
        "In both runs the worker is killed with SIGKILL in the second transaction of every partition, when its records "
        "are in the log and its offset is not committed. Spark starts the task again.",
        "At least once, the records of the killed workers stand in the topic twice, and every consumer gets both: "
        "allowed, and shown. Exactly once, the first copy is aborted when the next worker takes over, and nobody who "
        "reads committed ever gets it.",
    ),
    Story(
        "zombie",
        "A zombie is fenced",
        "What if a worker that was given up for dead comes back?",
        ":material/skull:",
        (Part("exactly once, with a zombie", {**_SMALL, "faults": ("zombie@transaction=2",)}),),
        "A worker is stopped in the middle of its transaction. A successor takes over its transactional id, which "
        "raises the producer's epoch. Then the first one is woken, and goes on as if nothing had happened.",
        "Kafka refuses the zombie: its epoch is too old. The transactions it had begun are aborted, as the number of "
        "fenced ones says, and each input is committed once all the same.",
    ),
    Story(
        "hanging",
        "An open transaction freezes the last stable offset",
        "Why do consumers stand still although records arrive?",
        ":material/ac_unit:",
        (
            Part(
                "exactly once, with a foreign open transaction",
                {**_SMALL, "faults": ("open@transaction=2,seconds=20",)},
            ),
        ),
        "A foreign producer leaves a transaction open in the sink. The last stable offset (LSO) cannot pass it: "
        "whatever is committed behind it is withheld from every read_committed consumer. The bar shows how much.",
        "The open transaction was ended, the LSO moved on, and all that was withheld was delivered, in order. The "
        "foreign records are aborted; Transactions shows whose they were and how long they stood in the way.",
    ),
)


def story(name: str | None) -> Story | None:
    return next((one for one in STORIES if one.name == name), None)


def narration(told: Story, runs: Sequence[Run]) -> str:
    """What is going on now, for whoever looks: of several runs, the one that is least far."""
    stage = min((_stage(run) for run in runs), default=0)
    return (_WAITING, _FILLING, told.processing, _JUDGING, told.ended)[stage]


def _stage(run: Run) -> int:
    if run.state in ENDED:
        return 4
    return {State.FILLING: 1, State.PROCESSING: 2, State.STOPPING: 2, State.JUDGING: 3}.get(run.state, 0)

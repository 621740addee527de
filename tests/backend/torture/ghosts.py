"""Many small runs, each with one late request (KAFKA-17754) at a random place.

    python -m tests.backend.torture.ghosts --seeds 200 [--first 0] [--request end] [--defence off]

A seed chooses the request, its transaction, the run's size, and what goes wrong after it. Each run
uses the code path of `topicproof run`, on one Kafka and one Spark. A line for each seed says
whether the ghost arrived in the next transaction, the verdict, what the judge found, and how many
outputs a plain read_committed reader gets too often or never. Runs that do not hold stay in the
home. Exit code: 0 when every run holds; with `--defence off`, when no run holds whose outputs are
wrong for the plain reader.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tests.runs import read_all
from topicproof.backend.address import Address
from topicproof.backend.errors import TopicproofError
from topicproof.backend.faults.proxy import IN_NEXT
from topicproof.backend.history.store import History
from topicproof.backend.runs.clean import clean
from topicproof.backend.runs.context import make_context
from topicproof.backend.runs.create import create
from topicproof.backend.runs.execute import execute
from topicproof.backend.runs.plan import make_plan
from topicproof.backend.services.keeper import Services, services
from topicproof.backend.settings import Settings, read_settings
from topicproof.backend.sink.entries import FaultPhase, FaultReport
from topicproof.backend.sink.hooks import Step
from topicproof.backend.sink.journal import read_journal
from topicproof.validators.finding import Outcome

REQUESTS = ("end", "abort", "partitions", "offset", "produce")
RECORDS = 60
AT_ONCE = 2


@dataclass(frozen=True)
class Tried:
    """What one seed showed."""

    seed: int
    plan: dict[str, Any]
    run: str
    hit: str
    """How the ghost was received; empty where it did not arrive in the next transaction."""
    verdict: str
    found: dict[str, int]
    """Findings by kind, without those that another one explains."""
    wrong: int
    """Outputs that a plain reader gets too often or never."""
    error: str
    took_s: float

    @property
    def holds(self) -> bool:
        return self.verdict == Outcome.HOLDS and not self.error

    def __str__(self) -> str:
        kinds = ", ".join(f"{kind} {count}" for kind, count in self.found.items()) or "nothing"
        faults = " ".join(self.plan["faults"])
        said = f"seed {self.seed}: {'hit' if self.hit else 'missed'}, {self.verdict}, {kinds}"
        said += f", {self.wrong} wrong by a plain count"
        return f"{said} ({self.took_s:.1f} s; {faults}; {self.error or self.hit})"


def plan_of(seed: int, request: str | None, defence: bool) -> dict[str, Any]:
    """One ghost of source partition 0, and in two of three runs a failure soon after it."""
    draw = random.Random(seed)
    partitions = draw.choice((1, 1, 2))
    per_transaction = draw.randint(3, 10)
    transaction = draw.randint(1, RECORDS // partitions // per_transaction // 2)
    request = request or draw.choice(REQUESTS)
    aborts = draw.choice((0.2, 0.4)) if request == "abort" else draw.choice((0.0, 0.0, 0.2))
    ghost = f"network@transaction={transaction},request={request},how=ghost,seconds=20"
    ghost += f",times={draw.choice((1, 1, 2))}"
    faults = [ghost if defence else f"{ghost},defence=no"]
    kind = draw.choice(("error", "crash", None))
    if kind is not None:
        step = draw.choice((Step.PRODUCED, Step.OFFSET_SENT, Step.COMMITTED))
        faults.append(f"{kind}@transaction={transaction + 1},step={step}")
    return {
        "records": RECORDS,
        "partitions": partitions,
        "per_transaction": per_transaction,
        "abort_probability": aborts,
        "faults": faults,
        "seed": seed,
    }


def attempt(settings: Settings, found: Services, seed: int, plan: dict[str, Any]) -> Tried:
    began, history = time.monotonic(), History(settings)
    run = create(settings, found, history, make_plan(plan))
    context = make_context(settings, found, history, run, threading.Event())
    verdict, kinds, error = Outcome.UNKNOWN, dict[str, int](), ""
    try:
        report = execute(context)
        assert report is not None
        verdict = report.verdict
        kinds = {one.kind: one.primary for one in report.findings if one.primary}
    except TopicproofError as failed:
        error = str(failed)
    told = [
        entry.said
        for entry in read_journal(Address(found.bootstrap, settings.client), context.names.journal)
        if isinstance(entry, FaultReport)
        and entry.what is FaultPhase.HEALED
        and IN_NEXT in entry.said
    ]
    error = error or history.get(run.id).error or ""
    got = Counter(one.value for one in read_all(found.bootstrap, context.names.sink))
    wanted = {str(number * number).encode() for number in range(RECORDS)}
    wrong = sum(got[value] != 1 for value in wanted | set(got))
    took_s = time.monotonic() - began
    tried = Tried(seed, plan, run.id, "; ".join(told), verdict, kinds, wrong, error, took_s)
    if tried.holds:
        clean(settings, found, history, run.id)
    return tried


def summary(tried: list[Tried]) -> Iterator[str]:
    hit = sum(bool(one.hit) for one in tried)
    yield f"{len(tried)} seeds: {hit} ghosts hit, {sum(one.holds for one in tried)} runs hold."
    harmed = [one for one in tried if one.wrong]
    named = sum(one.verdict == Outcome.VIOLATED for one in harmed)
    yield f"{len(harmed)} runs are wrong by a plain count; {named} of them are VIOLATED."
    yield from (
        f"  does not hold: seed {one.seed}, run {one.run}" for one in tried if not one.holds
    )


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--request", choices=REQUESTS)
    parser.add_argument("--defence", choices=("on", "off"), default="on")
    parser.add_argument("--at-once", type=int, default=AT_ONCE)
    asked = parser.parse_args()
    settings = read_settings()
    tried: list[Tried] = []

    def one(seed: int) -> None:
        plan = plan_of(seed, asked.request, asked.defence == "on")
        tried.append(attempt(settings, found, seed, plan))
        say(str(tried[-1]))

    with services(settings, say=say) as found, ThreadPoolExecutor(asked.at_once) as pool:
        list(pool.map(one, range(asked.first, asked.first + asked.seeds)))
    say("\n".join(summary(tried)))
    if asked.defence == "off":
        return 1 if any(one.wrong and one.verdict != Outcome.VIOLATED for one in tried) else 0
    return 0 if all(one.holds and not one.wrong for one in tried) else 1


if __name__ == "__main__":
    sys.exit(main())

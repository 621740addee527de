"""Kill -9 at random moments: `python -m tests.kills --times 12 --seed 1 [--victims spark,broker]`.

A kill of a process of a run takes a minute or more, so `make test` leaves this out. Prints a line
for each kill and a table at the end. The exit code is 1 if there was a surprise.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.kills.dashboard import kill_dashboard
from tests.kills.files import WRITINGS, kill_writing
from tests.kills.kill import Kill
from tests.kills.pipeline import PLAN, REAL_TIME, STATES, VICTIMS, kill_once
from tests.kills.watched_topics import WATCH, kill_watch
from topicproof.backend.history.store import State
from topicproof.backend.services.keeper import services
from topicproof.backend.settings import Settings, read_settings

DASHBOARD = "dashboard"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.kills", description=__doc__)
    parser.add_argument("--times", type=int, default=12, help="kills for each victim")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--victims", default=",".join((*WRITINGS, WATCH, *VICTIMS, DASHBOARD)))
    parser.add_argument("--states", default=",".join(STATES), help="of a run, in turn")
    parser.add_argument("--real-time", action="store_true", help="runs in real time")
    given = parser.parse_args()
    plan = REAL_TIME if given.real_time else PLAN
    states = [State(one) for one in given.states.split(",")]
    victims = given.victims.split(",")
    kills = []
    for victim in victims:
        if victim in WRITINGS:
            kills += [_written(victim, given.seed, number) for number in range(given.times)]
    if WATCH in victims:
        with tempfile.TemporaryDirectory(prefix="kills-") as home:
            settings = read_settings(home=Path(home))
            kills += map(_told, kill_watch(settings, given.times, given.seed))
    left = [one for one in victims if one in (*VICTIMS, DASHBOARD)]
    if left:
        with tempfile.TemporaryDirectory(prefix="kills-") as home:
            settings = read_settings(home=Path(home))
            kills += all_kills(settings, left, given.times, given.seed, states, plan)
    _say(table(kills))
    sys.exit(any(one.surprise for one in kills))


def all_kills(
    settings: Settings,
    victims: list[str],
    times: int,
    seed: int,
    states: list[State],
    plan: Sequence[str],
) -> list[Kill]:
    """Kill each victim so many times, in one state of the run after the other."""
    kills = []
    for number in range(times):
        for victim in victims:
            chance = random.Random(f"{seed}-{victim}-{number}")
            # Held open, so that the next command finds warm services unless they were killed.
            with services(settings):
                one = (
                    kill_dashboard(settings, chance)
                    if victim == DASHBOARD
                    else kill_once(settings, victim, states[number % len(states)], chance, plan)
                )
            kills.append(_told(one))
    return kills


def _written(victim: str, seed: int, number: int) -> Kill:
    with tempfile.TemporaryDirectory(prefix="kills-") as home:
        return _told(kill_writing(Path(home), victim, random.Random(f"{seed}-{victim}-{number}")))


def _told(one: Kill) -> Kill:
    _say(f"{one.victim:9} {one.moment:20} {one.ended_s:6.1f} s  {one.told[:140]}")
    if one.surprise:
        _say(f"    SURPRISE {one.surprise}")
    return one


def table(kills: list[Kill]) -> str:
    """The kills as a table in Markdown."""
    count = Counter(one.victim for one in kills)
    bad = Counter(one.victim for one in kills if one.surprise)
    rows = [
        f"| {victim} | {count[victim]} | {bad[victim]} |"
        f" {max(one.ended_s for one in kills if one.victim == victim):.0f} |"
        for victim in count
    ]
    head = ["| killed | times | surprises | longest end, s |", "| --- | ---: | ---: | ---: |"]
    return "\n".join([*head, *rows])


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

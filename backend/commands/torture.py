"""Random fault schedules for a limited time, each run judged from its sink."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from topicproof.backend.commands.options import Bootstrap, Brokers, Config, Json, kafka_settings
from topicproof.backend.commands.show import plain
from topicproof.backend.commands.terminal import emit, out, say, stopping
from topicproof.backend.services.keeper import services
from topicproof.backend.torture.run import AT_ONCE, Torture, Tried, drawn
from topicproof.backend.torture.schedule import parse

SHRINKING_RUNS = 20
"""Maximum runs to reduce one failure."""


def torture(
    minutes: Annotated[
        float | None, typer.Option(help="Start no run after this many minutes.", min=0)
    ] = None,
    runs: Annotated[int | None, typer.Option(help="Number of schedules to try.", min=1)] = None,
    seed: Annotated[
        int, typer.Option(help="Seed of the first schedule. Each schedule increases it by one.")
    ] = 0,
    schedule: Annotated[
        list[str] | None,
        typer.Option(help="Replay this schedule instead of drawing one.", metavar="TEXT"),
    ] = None,
    shrink: Annotated[
        bool, typer.Option("--shrink/--no-shrink", help="Reduce each failure to fewer faults.")
    ] = True,
    at_once: Annotated[
        int, typer.Option(help="How many runs go on at once.", min=1, max=8)
    ] = AT_ONCE,
    bootstrap: Bootstrap = None,
    config: Config = None,
    brokers: Brokers = None,
    json_: Json = None,
) -> None:
    """Try to break the sink: random plans under several random faults at once.

    Each run is judged from its sink. Exactly-once must stay exact; the other guarantees may break
    only as the matrix says. A failure prints its seed, is replayed from it, and is made as small as
    possible. The exit code is 1 if a run failed. Example: `topicproof torture --minutes 10 --seed
    1`
    """
    settings = kafka_settings(bootstrap, config, brokers)
    given = [parse(text) for text in schedule or ()]
    if not given and minutes is None and runs is None:
        runs = 10
    possible = settings.brokers if settings.bootstrap is None else 1
    tried: list[Tried] = []

    def ended(one: Tried) -> None:
        tried.append(one)
        say(plain(_line(one)))

    smallest: list[Tried] = []
    with stopping() as stop, services(settings, say=say) as found:
        torturer = Torture(settings, found, stop)
        torturer.require_brokers(max([possible, *(one.brokers for one in given)]))
        schedules = iter(given) if given else drawn(seed, possible, runs, minutes, stop)
        torturer.try_all(schedules, ended, at_once)
        for failed in [one for one in tried if one.surprises]:
            made = torturer.shrink(failed, SHRINKING_RUNS, ended) if shrink else failed
            smallest.append(made)
    failures = [one for one in tried if one.surprises]
    emit(
        json_,
        {
            "runs": [_fields(one) for one in tried],
            "surprises": len(failures),
            "smallest": [_fields(one) for one in smallest],
        },
    )
    for one in smallest:
        out.print(f"[red]{plain(_line(one))}[/]", highlight=False)
        out.print(f"Replay: topicproof torture --schedule '{one.schedule}'", highlight=False)
    exact = sum(one.schedule.name == "exactly_once" for one in tried)
    out.print(
        f"{len(tried):,} runs, {exact:,} of them exactly-once, under"
        f" {sum(len(one.schedule.strikes) for one in tried):,} faults: {len(failures):,} surprises."
    )
    if failures:
        raise typer.Exit(1)


def _line(one: Tried) -> str:
    said = "; ".join(one.surprises) or f"as expected ({one.result.says})"
    return f"seed {one.schedule.seed}, {one.schedule}: {said} [{one.result.took_s:.0f} s]"


def _fields(one: Tried) -> dict[str, object]:
    return {"schedule": str(one.schedule), **asdict(one.result)}

"""Random fault schedules for a limited time, each run judged from its sink."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from topicproof.backend.commands.shared_options import (
    EMBEDDED,
    Brokers,
    Json,
    Target,
    kafka_settings,
)
from topicproof.backend.commands.show_torture import line, markdown, summary
from topicproof.backend.commands.terminal import (
    Styled,
    emit,
    give_up,
    out,
    say,
    stopping,
    write_file,
)
from topicproof.backend.errors import TopicproofError
from topicproof.backend.services.keeper import services
from topicproof.backend.torture.schedule import MICRO_BATCH, REAL_TIME, parse
from topicproof.backend.torture.torture_run import AT_ONCE, Torture, TriedSchedule, drawn
from topicproof.validators.shell_words import shell_word

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
    real_time: Annotated[
        bool, typer.Option("--real-time", help="Run drawn schedules in real time.")
    ] = False,
    shrink: Annotated[
        bool, typer.Option("--shrink/--no-shrink", help="Reduce each failure to fewer faults.")
    ] = True,
    at_once: Annotated[
        int, typer.Option(help="How many runs are active at once.", min=1, max=8)
    ] = AT_ONCE,
    markdown_file: Annotated[
        Path | None, typer.Option("--markdown", help="Write all runs as Markdown.", metavar="FILE")
    ] = None,
    target: Target = EMBEDDED,
    brokers: Brokers = None,
    json_: Json = None,
) -> None:
    """Try to break the sink: random plans under several random faults at once.

    Each run is judged from its sink. Exactly-once must stay exact; the other guarantees may break
    only as the matrix says. A failure prints its seed, is replayed from it, and is made as small as
    possible. The exit code is 1 if a run failed. Example: `topicproof torture --minutes 10 --seed
    1 --markdown torture.md`
    """
    settings = kafka_settings(target, brokers)
    replays = [parse(text) for text in schedule or ()]
    if not replays and minutes is None and runs is None:
        runs = 10
    possible = settings.brokers if settings.bootstrap is None else 1
    tried: list[TriedSchedule] = []

    def on_end(attempt: TriedSchedule) -> None:
        tried.append(attempt)
        say(line(attempt))

    smallest: list[TriedSchedule] = []

    def conclude() -> list[TriedSchedule]:
        """Print and write what the runs have shown. Returns the surprises."""
        failures = [attempt for attempt in tried if attempt.surprises]
        emit(
            json_,
            {
                "runs": [_fields(attempt) for attempt in tried],
                "surprises": len(failures),
                "smallest": [_fields(attempt) for attempt in smallest],
            },
        )
        if markdown_file is not None:
            options = {"minutes": minutes, "runs": runs, "seed": seed, "brokers": brokers}
            write_file(markdown_file, _page(options, real_time, tried, len(failures)))
        for attempt in smallest:
            out.line(Styled(line(attempt), "red"))
            out.line(f"Replay: topicproof torture --schedule {shell_word(str(attempt.schedule))}")
        out.line(summary([attempt.schedule for attempt in tried], len(failures)))
        return failures

    def on_gone(error: TopicproofError) -> None:
        try:
            conclude()
        finally:
            give_up(error)

    with stopping() as stop, services(settings, say=say) as running:
        torturer = Torture(settings, running, stop, on_gone)
        torturer.require_brokers(max([possible, *(replay.brokers for replay in replays)]))
        trigger = REAL_TIME if real_time else MICRO_BATCH
        chosen = iter(replays) if replays else drawn(seed, possible, runs, minutes, stop, trigger)
        try:
            torturer.try_all(chosen, on_end, at_once)
            for failed in [attempt for attempt in tried if attempt.surprises]:
                smaller = torturer.shrink(failed, SHRINKING_RUNS, on_end) if shrink else failed
                smallest.append(smaller)
        finally:
            # An error ends the torture, but does not take away what the runs before it have shown.
            failures = conclude()
    if failures:
        raise typer.Exit(1)


def _page(
    options: Mapping[str, float | None],
    real_time: bool,
    tried: Sequence[TriedSchedule],
    failures: int,
) -> str:
    """Render all runs as Markdown, with the command that made them."""
    options_text = [f" --{name} {value:g}" for name, value in options.items() if value is not None]
    command = f"topicproof torture{' --real-time' if real_time else ''}{''.join(options_text)}"
    return markdown(
        command,
        [attempt.schedule for attempt in tried],
        [line(attempt) for attempt in tried],
        failures,
    )


def _fields(attempt: TriedSchedule) -> dict[str, object]:
    return {"schedule": str(attempt.schedule), **asdict(attempt.result)}

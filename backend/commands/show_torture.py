"""Torture as Markdown: what was tried, how often each trouble struck, and every run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from topicproof.backend.characters import visible
from topicproof.backend.matrix.matrix_table import TABLE
from topicproof.backend.torture.schedule import Schedule
from topicproof.backend.torture.torture_run import TriedSchedule
from topicproof.validators.sentences import counted


def line(attempt: TriedSchedule) -> str:
    """Return one line on a run: its schedule, its result and the seconds that it took."""
    return f"{attempt.schedule}: {result(attempt)} [{attempt.result.took_s:.0f} s]"


def result(attempt: TriedSchedule) -> str:
    return "; ".join(attempt.surprises) or f"as expected ({attempt.result.says})"


def summary(schedules: Sequence[Schedule], surprises: int) -> str:
    """Return one sentence on all runs."""
    exactly = sum(schedule.name == "exactly_once" for schedule in schedules)
    faults = sum(len(schedule.strikes) for schedule in schedules)
    return (
        f"{counted(len(schedules), 'run')}, {exactly:,} of them exactly-once,"
        f" under {counted(faults, 'fault')}: {counted(surprises, 'surprise')}."
    )


def markdown(
    command: str, schedules: Sequence[Schedule], lines: Sequence[str], surprises: int
) -> str:
    """Render the summary, how often each trouble struck each guarantee, and a line per run.

    `lines`: one for each schedule. `command` made them.
    """
    names = list(
        dict.fromkeys(
            schedule.name for schedule in sorted(schedules, key=lambda schedule: schedule.name)
        )
    )
    struck = Counter(
        (schedule.name, trouble) for schedule in schedules for trouble, _ in schedule.strikes
    )
    rows = [trouble for trouble in TABLE if any(struck[name, trouble.name] for name in names)]
    quiet = Counter(schedule.name for schedule in schedules if not schedule.strikes)
    return "\n".join(
        [
            "# Torture",
            "",
            f"Made by `{command}`: random plans under up to three random faults at once. Each run"
            " is judged from its sink. Exactly-once must stay exact. The other guarantees may break"
            " only as [MATRIX.md](MATRIX.md) says.",
            "",
            summary(schedules, surprises),
            "",
            "## How often each fault was tried",
            "",
            f"| fault | {' | '.join(f'`{name}`' for name in names)} |",
            f"| --- |{' --- |' * len(names)}",
            f"| none | {' | '.join(str(quiet[name] or '') for name in names)} |",
            *(
                f"| `{trouble.name}`: {trouble.title} |"
                f" {' | '.join(str(struck[name, trouble.name] or '') for name in names)} |"
                for trouble in rows
            ),
            "",
            "## Every run",
            "",
            "`topicproof torture --schedule 'TEXT'` replays a run. The text ends before the result."
            " *hidden* does no harm: records of aborted transactions.",
            "",
            "```text",
            *(visible(text).replace("```", "'''") for text in lines),
            "```",
            "",
        ]
    )

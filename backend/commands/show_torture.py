"""Torture as Markdown: what was tried, how often each trouble struck, and every run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from topicproof.backend.characters import visible
from topicproof.backend.matrix.table import TABLE
from topicproof.backend.torture.run import TriedSchedule
from topicproof.backend.torture.schedule import Schedule
from topicproof.validators.sentences import counted


def line(one: TriedSchedule) -> str:
    """Return one line on a run: its schedule, its result and the seconds that it took."""
    return f"{one.schedule}: {result(one)} [{one.result.took_s:.0f} s]"


def result(one: TriedSchedule) -> str:
    return "; ".join(one.surprises) or f"as expected ({one.result.says})"


def summary(schedules: Sequence[Schedule], surprises: int) -> str:
    """Return one sentence on all runs."""
    exactly = sum(one.name == "exactly_once" for one in schedules)
    faults = sum(len(one.strikes) for one in schedules)
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
    names = list(dict.fromkeys(one.name for one in sorted(schedules, key=lambda one: one.name)))
    struck = Counter((one.name, trouble) for one in schedules for trouble, _ in one.strikes)
    rows = [trouble for trouble in TABLE if any(struck[name, trouble.name] for name in names)]
    quiet = Counter(one.name for one in schedules if not one.strikes)
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

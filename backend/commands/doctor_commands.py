"""The doctor: what is missing, before anything is started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated

import typer

from topicproof.backend.commands.shared_options import EMBEDDED, Json, Target, settings_of
from topicproof.backend.commands.terminal import Style, Styled, emit, out
from topicproof.backend.doctor.diagnosis import Health, exit_code
from topicproof.backend.doctor.examine import examine
from topicproof.backend.errors import TopicproofError
from topicproof.backend.kafka.acls import Task
from topicproof.backend.settings import Settings

COLOURS: Mapping[Health, Style] = {
    Health.OK: "green",
    Health.WARNING: "yellow",
    Health.FAILED: "red",
}


def doctor(
    target: Target = EMBEDDED,
    task: Annotated[
        Task, typer.Option("--for", help="The task that the user needs rights for.")
    ] = Task.CHECK,
    topic: Annotated[
        list[str] | None, typer.Option(help="A topic on which rights are compared.", metavar="T")
    ] = None,
    group: Annotated[
        list[str] | None, typer.Option(help="A group, likewise. Default: all.", metavar="G")
    ] = None,
    json_: Json = None,
) -> None:
    """Look for what is missing: Java, Python, memory, disk, ports, jars, brokers, rights, Spark.

    Nothing is started or changed. The exit code is 0 if all is well, 2 if something deserves
    attention, 3 if something is missing.

    Example: `topicproof doctor --bootstrap broker:9092 --for check --topic orders`
    """
    settings: Settings | TopicproofError
    try:
        settings = settings_of(target, make_home=False)
    except TopicproofError as error:
        settings = error
    diagnoses = examine(settings, task, topic or [], group or [])
    code = exit_code(diagnoses)
    emit(json_, {"exit_code": code, "found": [asdict(diagnosis) for diagnosis in diagnoses]})
    for diagnosis in diagnoses:
        out.line(
            Styled(f"{diagnosis.health:8}", COLOURS[diagnosis.health]),
            f" {diagnosis.name}: {diagnosis.found}",
        )
        if diagnosis.remedy:
            out.line(f"         {diagnosis.remedy}")
    raise typer.Exit(code)

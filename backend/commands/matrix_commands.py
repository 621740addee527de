"""Every guarantee against every fault, measured and compared with what theory expects."""

from __future__ import annotations

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
from topicproof.backend.commands.show_matrix import heat_map, line, markdown, summary
from topicproof.backend.commands.terminal import (
    Styled,
    emit,
    give_up,
    out,
    progress_bar,
    say,
    stopping,
    write_file,
)
from topicproof.backend.errors import TopicproofError
from topicproof.backend.matrix.cells import AT_ONCE, Result, run_cells, saved_results
from topicproof.backend.matrix.choice import cells, in_real_time
from topicproof.backend.services.keeper import services


def matrix(
    only: Annotated[
        list[str] | None,
        typer.Option(
            help=(
                "Only these cells: guarantee=NAME, fault=NAME, or both with a comma. `fault=crash`"
                " selects every crash."
            ),
            metavar="guarantee=NAME,fault=NAME",
        ),
    ] = None,
    small: Annotated[
        bool, typer.Option("--small", help="Only a few representative cells.")
    ] = False,
    real_time: Annotated[
        bool, typer.Option("--real-time", help="Run every cell in real time.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep the results that already exist.")
    ] = False,
    at_once: Annotated[
        int, typer.Option(help="How many cells run at once.", min=1, max=8)
    ] = AT_ONCE,
    markdown_file: Annotated[
        Path | None, typer.Option("--markdown", help="Write the table as Markdown.", metavar="FILE")
    ] = None,
    html_file: Annotated[
        Path | None,
        typer.Option(
            "--html", help="Write the table as a heat map in one HTML file.", metavar="FILE"
        ),
    ] = None,
    target: Target = EMBEDDED,
    brokers: Brokers = None,
    json_: Json = None,
) -> None:
    """Run every guarantee against every fault, judge each from its sink, and compare with what
    theory expects.

    The exit code is 0 if every cell agrees and 1 if one is a surprise. `--resume` continues a
    matrix that was stopped. Broker faults need three embedded brokers: `--brokers 3 --only
    fault=broker`. Example: `topicproof matrix --only fault=crash --markdown matrix.md`
    """
    settings = kafka_settings(target, brokers)
    planned = cells(only or (), small, settings.brokers if settings.bootstrap is None else 1)
    if real_time:
        planned = in_real_time(planned)
    done = saved_results(settings, planned) if resume else []
    done_cells = {(cell_result.guarantee, cell_result.fault) for cell_result in done}
    left = [cell for cell in planned if (cell.guarantee, cell.fault) not in done_cells]
    with stopping() as stop, progress_bar("cells", len(planned), len(done)) as advance:

        def on_end(result: Result) -> None:
            done.append(result)
            say(line(result))
            advance()

        def on_gone(error: TopicproofError) -> None:
            give_up(
                type(error)(f"{error} To continue the matrix, repeat the command with --resume.")
            )

        if left:
            with services(settings, say=say) as running:
                run_cells(settings, running, left, stop, on_end, at_once, on_gone)
    order = {(cell.guarantee, cell.fault): number for number, cell in enumerate(planned)}
    done.sort(key=lambda cell_result: order[cell_result.guarantee, cell_result.fault])
    for path, text in ((markdown_file, markdown(done, len(planned))), (html_file, heat_map(done))):
        if path is not None:
            write_file(path, text)
    surprising = [cell_result for cell_result in done if cell_result.surprises]
    emit(
        json_,
        {
            "cells": [asdict(cell_result) for cell_result in done],
            "planned": len(planned),
            "surprises": len(surprising),
        },
    )
    for cell_result in surprising:
        out.line(Styled(line(cell_result), "red"))
    out.line(summary(done))
    if surprising:
        raise typer.Exit(1)
    if len(done) < len(planned):
        raise TopicproofError(
            f"The matrix was stopped after {len(done)} of {len(planned)} cells. To continue, repeat"
            " the same command with --resume."
        )

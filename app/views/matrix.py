"""Matrix: every guarantee under every fault, expected against measured.
`?guarantee=NAME&fault=NAME` opens a cell."""

from __future__ import annotations

import time
from collections.abc import Sequence

import streamlit as st

from topicproof.app import wording
from topicproof.app.charts.matrix_chart import CELL_COLOURS, matrix_figure, matrix_pointer
from topicproof.app.run import matrix_cells
from topicproof.app.session.access import open_history, show_errors
from topicproof.app.session.connection import page_settings
from topicproof.app.shell import downloads, places
from topicproof.app.shell.downloads import clickable
from topicproof.app.shell.places import if_drawn
from topicproof.app.topic.payload import verbatim
from topicproof.backend.commands.show_matrix import summary
from topicproof.backend.errors import TopicproofError
from topicproof.backend.matrix.cells import RESULTS, Result, read_results
from topicproof.backend.matrix.choice import SMALL
from topicproof.backend.runs.launch import start_matrix, start_run
from topicproof.backend.runs.plan import make_plan

POLL_S = 3.0
GOES_ON_S = 60.0
"""A matrix may still be running if its last cell is younger than this."""
ROW_PX = 28
TABLE_PX = 560
COLUMNS = {
    name: st.column_config.TextColumn(width=pixels)
    for name, pixels in (
        ("fault", 190),
        ("guarantee", 185),
        ("", 95),
        ("expected", 170),
        ("found", 170),
        ("verdict", 85),
        ("what proves that it fired", 330),
        ("surprises", 220),
        ("run", 190),
    )
} | {"took, s": st.column_config.NumberColumn(format="%.1f", width=70)}
"""Fixed widths: Streamlit measures a table when it first sees it, which may be when a growing
matrix has a single cell."""

settings = page_settings()


def body() -> None:
    """Shows the last result of every cell."""
    with show_errors():
        results = matrix_cells.ordered(read_results(settings))
    if not results:
        empty()
        return
    chosen = chosen_of_url(results)
    st.markdown(f"### {wording.plain(summary(results))}")
    left, right = st.columns([2.1, 1], gap="medium")
    with left:
        heat_map(results, chosen)
        with st.expander("Run more of it", icon=":material/play_arrow:"):
            commands()
    with right:
        if chosen is None:
            st.info(
                "Click a cell to see what was expected there, what was found, and what proves that"
                " the fault fired."
            )
        else:
            detail(chosen)
    listing(results)


def chosen_of_url(results: Sequence[Result]) -> Result | None:
    """Returns the cell in the URL; shows a notice if there is no such cell."""
    guarantee, fault = (st.query_params.get(name) for name in ("guarantee", "fault"))
    if guarantee is None and fault is None:
        return None
    for result in results:
        if (result.guarantee, result.fault) == (guarantee, fault):
            return result
    named = wording.plain(f"{guarantee or 'no guarantee'} under {fault or 'no fault'}")
    st.warning(f"The matrix has no result of {named}.", icon=":material/info:")
    return None


def go(guarantee: str, fault: str) -> None:
    """Moves the page to that cell."""
    st.query_params.from_dict({"guarantee": guarantee, "fault": fault})


def heat_map(results: Sequence[Result], chosen: Result | None) -> None:
    guarantees = matrix_cells.guarantees(results)

    def clicked() -> None:
        points = st.session_state["matrix"].selection.points
        if points and "customdata" in points[0]:
            guarantee, fault = list(points[0]["customdata"])[:2]
            go(str(guarantee), str(fault))

    frame = matrix_cells.frame(results)
    figure = matrix_figure(frame, guarantees)
    pointer = (
        matrix_pointer(frame, guarantees, (chosen.guarantee, chosen.fault))
        if chosen is not None
        else None
    )
    clickable(
        figure,
        pointer,
        "matrix",
        clicked,
        "Every guarantee under every fault; the table below has the same results.",
    )
    legend = " · ".join(
        f"{matrix_cells.SYMBOLS[kind]} {matrix_cells.MEANINGS[kind]}" for kind in CELL_COLOURS
    )
    with st.container(horizontal=True, vertical_alignment="center"):
        st.caption(
            f"{legend} · ◇ shown beside it. *hidden*: records of aborted transactions, which no"
            " read_committed consumer gets."
        )
        caption = (
            f"{wording.count(len(results), 'cell')}: expected, found, and what proves each fault."
        )
        downloads.offer_table(
            "matrix", lambda: matrix_cells.table(results), caption, lambda: figure
        )


def detail(cell: Result) -> None:
    """Shows one cell, with a link to its run."""
    kind = matrix_cells.kind(cell)
    with st.container(border=True, gap="small"):
        colour = {
            matrix_cells.EXACT: "blue",
            matrix_cells.DAMAGED: "yellow",
            matrix_cells.REFUSED: "gray",
            matrix_cells.SURPRISE: "orange",
        }[kind]
        st.markdown(f"#### {wording.plain(cell.guarantee)} under {wording.plain(cell.fault)}")
        st.markdown(f":{colour}-badge[{matrix_cells.SYMBOLS[kind]} {matrix_cells.MEANINGS[kind]}]")
        st.markdown(f"{wording.plain(matrix_cells.TITLES[cell.fault].capitalize())}.")
        for surprise in cell.surprises:
            st.error(wording.plain(surprise), icon=":material/priority_high:")
        st.markdown(
            f"- **Expected:** {wording.plain(cell.expected)}\n- **Found:**"
            f" {wording.plain(cell.says)}; the verdict was {wording.plain(cell.verdict)}\n- **Proof"
            f" that the fault fired:** {wording.plain(cell.fired or 'none')}\n- **Took:**"
            f" {cell.took_s:.1f} s"
        )
        try:
            run = open_history(settings).get(cell.run)
        except TopicproofError:
            st.caption(
                f"Its run {wording.plain(cell.run)} was deleted, like every run that agrees with"
                " theory."
            )
        else:
            page = "views/verdict.py" if run.verdict else "views/run.py"
            st.page_link(
                page, label="Open its run", icon=":material/gavel:", query_params={"run": run.id}
            )
        if st.button("Run this cell again and watch it", icon=":material/play_arrow:", key="again"):
            with show_errors(), st.status("Starting…") as status:
                run_id = start_run(
                    open_history(settings),
                    make_plan(dict(cell.plan)),
                    lambda line: status.update(label=wording.plain(line)),
                )
            places.open_page(places.RUN, {"run": run_id})


def listing(results: Sequence[Result]) -> None:
    """Lists the cells of the chart."""
    table = matrix_cells.table(results)

    def picked() -> None:
        selected = st.session_state["cells"].selection.cells
        if selected and selected[0][0] < len(results):
            result = results[selected[0][0]]
            go(result.guarantee, result.fault)

    st.dataframe(
        table,
        hide_index=True,
        row_height=ROW_PX,
        height=min(TABLE_PX, ROW_PX * (len(table) + 1) + 10),
        key="cells",
        on_select=if_drawn(picked),
        selection_mode="single-cell",
        alt="Every cell of the matrix: expected, found, and what proves that the fault fired",
        column_config=COLUMNS,
    )
    st.caption(
        "Click a row to see its cell. The command topicproof matrix with --markdown FILE writes the"
        " same as a document."
    )


def empty() -> None:
    st.info(
        "The matrix runs every guarantee against every fault. Each cell is a real run, judged from"
        " its sink and compared with what theory expects.",
        title="No results yet",
        icon=":material/grid_on:",
    )
    commands()


def commands() -> None:
    """Shows the commands to run it, and a button for its smallest form."""
    st.markdown(
        "The whole matrix takes a while. Start it from the command line; its results appear here as"
        " they come:"
    )
    verbatim(
        "topicproof matrix                     # every cell\n"
        "topicproof matrix --only fault=crash  # one family of faults\n"
        "topicproof matrix --resume            # continue where it stopped"
    )
    running = time.time() - st.session_state.get("matrix_started", 0.0) < GOES_ON_S
    if st.button(
        f"Running: {len(SMALL)} cells, which appear here as they end"
        if running
        else f"Run the small one: {len(SMALL)} cells, about a minute",
        key="small",
        icon=":material/play_arrow:",
        disabled=running,
    ):
        with show_errors(), st.status("Starting…") as status:
            start_matrix(
                open_history(settings),
                lambda line: status.update(label=wording.plain(line)),
            )
        st.session_state["matrix_started"] = time.time()
        st.rerun()


def going() -> bool:
    """Whether new cells may come: a cell was written, or the small matrix started, a moment ago."""
    path = settings.home / RESULTS
    written = path.stat().st_mtime if path.exists() else 0.0
    started: float = st.session_state.get("matrix_started", 0.0)
    return time.time() - max(written, started) < GOES_ON_S


places.head(places.MATRIX)
st.fragment(body, run_every=POLL_S if going() else None)()

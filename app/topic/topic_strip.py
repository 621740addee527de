"""The head of a topic, the same on each tab: the balance, and the strip of all its offsets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from urllib.parse import urlencode

import streamlit as st

from topicproof.app import wording
from topicproof.app.charts.marks import Mark
from topicproof.app.charts.strip import (
    STRIP_PARTITIONS_MAX,
    strip_columns,
    strip_figure,
    strip_pointer,
    strip_with_pointer,
)
from topicproof.app.shell import downloads
from topicproof.app.shell.downloads import clickable
from topicproof.app.shell.places import COMPARE, open_next
from topicproof.app.shell.url_state import CompareState, verdict_params, write_compare
from topicproof.app.topic import tables
from topicproof.app.topic.snapshot import Snapshot, worst_place
from topicproof.app.topic.topic_findings import TopicFindings, marks_legend, marks_sentence
from topicproof.backend.kafka.log import fates
from topicproof.backend.services.keeper import Services
from topicproof.validators.finding import Bounds


def head(
    kafka: Services,
    snapshot: Snapshot,
    chosen: tuple[int, int] | None = None,
    on_cell: Callable[[int, int], None] | None = None,
    *,
    live: bool = False,
    topic_findings: TopicFindings | None = None,
) -> downloads.Chart:
    """Shows the balance and the strip of a topic that has offsets. Returns the strip, for export.

    `chosen`: partition and offset that the strip points at. `on_cell` gets both of a clicked cell;
    without it, a click opens Compare there.
    """
    slot = st.container()
    # First of all: the browser loads the drawing code and draws the strip while the rest is
    # computed.
    chart = strip(kafka, snapshot, chosen, on_cell or _compare_at(snapshot), live, topic_findings)
    with slot:
        balance(snapshot)
    return chart


def _compare_at(snapshot: Snapshot) -> Callable[[int, int], None]:
    def opened(partition: int, offset: int) -> None:
        place = CompareState(snapshot.bounds.topic, partition, offset, offset, "both", ())
        open_next(COMPARE, write_compare(place))

    return opened


def balance(snapshot: Snapshot) -> None:
    """Shows the balance in one line."""
    st.markdown(f"### {wording.balance(snapshot.bounds.offsets, snapshot.fates)}")


def in_numbers(kafka: Services, snapshot: Snapshot) -> None:
    """Offers the balance of each partition."""
    with st.popover("In numbers", icon=":material/table:", width="content", type="tertiary"):
        st.dataframe(
            tables.formatted(tables.balance_table(snapshot.bounds, snapshot.counts), "{:,}"),
            hide_index=True,
            width="content",
            alt="Bounds and fates of every partition",
        )
        st.caption(
            f"{wording.plain(snapshot.bounds.topic)} at {wording.plain(kafka.bootstrap)}:"
            f" {wording.count(snapshot.batches.num_rows, 'batch header', 'batch headers')}"
            f" read in {snapshot.took_s:.2f} s."
        )


def strip(
    kafka: Services,
    snapshot: Snapshot,
    chosen: tuple[int, int] | None,
    on_cell: Callable[[int, int], None],
    live: bool,
    topic_findings: TopicFindings | None,
) -> downloads.Chart:
    """Draws the strip: every partition on one axis of offsets, with what a verdict found. Returns
    the chart, for export."""
    topic = snapshot.bounds.topic
    bounds = around(snapshot.bounds, None if chosen is None else chosen[0])
    bins = fates.bins(snapshot.ranges, bounds, strip_columns(len(bounds.partitions)))
    width = int(bins.edges[1] - bins.edges[0])

    def clicked() -> None:
        points = st.session_state["strip"].selection.points
        if points and "customdata" in points[0]:
            st.session_state["strip_cell"] = (topic, *list(points[0]["customdata"])[:3])
        topic_then, *cell = st.session_state.get("strip_cell", ("",))
        # Clicking the same cell again deselects it. Go there anyway, because the page may have
        # moved elsewhere meanwhile.
        if topic_then == topic:
            partition, first, end = (int(part) for part in cell)
            on_cell(partition, worst_place(snapshot.ranges, partition, first, end))

    marks = (
        []
        if topic_findings is None
        else [mark for mark in topic_findings.marks if within(mark, bounds)]
    )
    figure = strip_figure(bins, bounds, marks)
    alt = (
        f"Fates of the offsets of {topic}, one row per partition. The balance table has the same"
        " figures."
    )
    if marks:
        alt += f" Marked on it: {marks_sentence(marks)}"
    pointer = None if chosen is None else strip_pointer(bins, *chosen)
    clickable(figure, pointer, "strip", clicked, alt)
    hidden = len(snapshot.bounds.partitions) - len(bounds.partitions)
    further = f" · {wording.count(hidden, 'further partition')} only in numbers" if hidden else ""
    left, right = st.columns([5, 1], vertical_alignment="center")
    left.caption(
        f"Bounds taken {snapshot.taken_at:%H:%M:%S} UTC, "
        + ("again every 2 s while the run continues. " if live else "kept until you refresh. ")
        + wording.bin_sentence(width)
        + ("" if chosen is None else " ◇ shown below ·")
        + f" ┃ LSO, where something is withheld{further}"
    )
    with right:
        in_numbers(kafka, snapshot)
    if topic_findings is not None and marks:
        st.markdown(
            f"{wording.plain(marks_sentence(marks))} {marks_legend(marks)}"
            f" [{wording.plain(f'Verdict of {topic_findings.run}')}]"
            f"(verdict?{urlencode(verdict_params(topic_findings.run, topic_findings.stage))})"
        )
    return lambda: figure if chosen is None else strip_with_pointer(figure, *chosen)


def within(mark: Mark, bounds: Bounds) -> bool:
    """Whether the topic still has the offsets of a mark."""
    return any(
        p.partition == mark.partition and p.start <= mark.first and mark.last < p.hw
        for p in bounds.partitions
    )


def around(bounds: Bounds, partition: int | None) -> Bounds:
    """Returns as many partitions as a strip can show, including the chosen one."""
    numbers = [p.partition for p in bounds.partitions]
    first = 0 if partition is None else numbers.index(partition) - STRIP_PARTITIONS_MAX // 2
    first = max(0, min(first, len(numbers) - STRIP_PARTITIONS_MAX))
    return replace(bounds, partitions=bounds.partitions[first : first + STRIP_PARTITIONS_MAX])

"""The part of the Check page that shows what a contract's identity matches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from topicproof.app import wording
from topicproof.app.check.check_reads import TopicSamples
from topicproof.backend.contracts.preview import Match, Preview, identity_only, preview
from topicproof.backend.contracts.sample import Sample
from topicproof.backend.contracts.sink_table import is_table
from topicproof.backend.kafka.browse.records import as_text

IDENTITY_CHARACTERS = 60
PLACES_SHOWN = 3
TABLE_PX = 300
MATCH_SYMBOLS = {Match.MATCHED: "✓", Match.NO_INPUT: "?", Match.NO_OUTPUT: "?"}


def show_preview(
    fields: Mapping[str, Any], samples: TopicSamples | None, letters: Sample | None
) -> None:
    """Shows which newest outputs and dead letters belong to which newest inputs."""
    terms = identity_only(fields)
    if is_table(fields):
        st.caption("No preview: it matches records of two topics, and this sink is a table.")
        return
    if "aggregate" in fields:
        st.caption("No preview: an aggregate has many inputs, and none of its own.")
        return
    if samples is None or terms is None:
        st.caption(
            "The preview comes when one source, one sink and an identity are chosen."
            if samples is not None or terms is None
            else "No preview: there is no sample of both topics."
        )
        return
    matches = preview(samples.inputs, samples.outputs, terms, letters)
    st.markdown("##### What the identity matches")
    letter_matches = matches.letters
    figures = [
        ("Outputs with an input", matches.outputs_matched, matches.outputs),
        (
            "Inputs with an outcome" if letter_matches else "Inputs with an output",
            matches.inputs_matched,
            matches.inputs,
        ),
    ]
    if letter_matches is not None:
        counts = letter_matches.matched, letter_matches.count
        figures.append(("Dead letters with an input", *counts))
    columns = st.columns(len(figures))
    for column, (title, part, whole) in zip(columns, figures, strict=True):
        column.metric(
            title,
            f"{part:,}",
            f"of {whole:,}",
            delta_color="off",
            delta_arrow="off",
            border=True,
        )
    show = st.success if matches.good else st.warning
    icon = ":material/check_circle:" if matches.good else ":material/rule:"
    show(wording.plain(matches.why), icon=icon)
    pairs_table(matches)


def pairs_table(matches: Preview) -> None:
    """Shows the identities of the newest records, those without a partner first."""
    if not matches.pairs:
        return
    frame = pd.DataFrame(
        {
            "identity": [as_text(pair.identity, IDENTITY_CHARACTERS) for pair in matches.pairs],
            "result": [
                f"{MATCH_SYMBOLS.get(pair.match, '✕')} {pair.match}" for pair in matches.pairs
            ],
            "input": [places(pair.inputs) for pair in matches.pairs],
            "outputs": [len(pair.outputs) for pair in matches.pairs],
            "at": [places(pair.outputs) for pair in matches.pairs],
        }
    )
    st.dataframe(
        frame,
        hide_index=True,
        height=TABLE_PX,
        alt="Identities of the newest records, with their inputs and outputs, the worst first",
        column_config={
            "input": st.column_config.TextColumn(help="Partition/offset in the source"),
            "at": st.column_config.TextColumn(help="Partition/offset in the sink"),
        },
    )
    cut = (
        ""
        if sum(matches.counts.values()) == len(matches.pairs)
        else f" The first {len(matches.pairs):,}."
    )
    st.caption(
        f"Newest records only, worst first.{cut} Partners may lie outside of the sample; the check"
        " reads both topics whole."
    )


def places(positions: Sequence[tuple[int, int]]) -> str:
    """Formats the first places of an identity as partition/offset."""
    text = ", ".join(f"{partition}/{offset}" for partition, offset in positions[:PLACES_SHOWN])
    return f"{text}, …" if len(positions) > PLACES_SHOWN else text

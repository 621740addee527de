"""The part of the Check page that shows what a contract's identity matches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from topicproof.app import wording
from topicproof.app.checking import Drafted
from topicproof.backend.judging.contract_preview import Match, Preview, identity_only, preview
from topicproof.backend.kafka.browse.records import as_text

IDENTITY_CHARACTERS = 60
PLACES_SHOWN = 3
TABLE_PX = 300
MATCH_SYMBOLS = {Match.MATCHED: "✓", Match.NO_INPUT: "?", Match.NO_OUTPUT: "?"}


def show_preview(fields: Mapping[str, Any], found: Drafted | None) -> None:
    """Shows which newest outputs belong to which newest inputs."""
    terms = identity_only(fields)
    if found is None or terms is None:
        st.caption(
            "The preview comes when one source, one sink and an identity are chosen."
            if found is not None or terms is None
            else "No preview: there is no sample of both topics."
        )
        return
    seen = preview(found.inputs, found.outputs, terms)
    st.markdown("##### What the identity matches")
    columns = st.columns(2)
    for column, title, part, whole in (
        (columns[0], "Outputs with an input", seen.outputs_matched, seen.outputs),
        (columns[1], "Inputs with an output", seen.inputs_matched, seen.inputs),
    ):
        column.metric(
            title,
            f"{part:,}",
            f"of {whole:,}",
            delta_color="off",
            delta_arrow="off",
            border=True,
        )
    said = st.success if seen.good else st.warning
    icon = ":material/check_circle:" if seen.good else ":material/rule:"
    said(wording.plain(seen.why), icon=icon)
    pairs_table(seen)


def pairs_table(seen: Preview) -> None:
    """Shows the identities of the newest records, those without a partner first."""
    if not seen.pairs:
        return
    frame = pd.DataFrame(
        {
            "identity": [as_text(one.identity, IDENTITY_CHARACTERS) for one in seen.pairs],
            "result": [f"{MATCH_SYMBOLS.get(one.match, '✕')} {one.match}" for one in seen.pairs],
            "input": [places(one.inputs) for one in seen.pairs],
            "outputs": [len(one.outputs) for one in seen.pairs],
            "at": [places(one.outputs) for one in seen.pairs],
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
    cut = "" if sum(seen.counts.values()) == len(seen.pairs) else f" The first {len(seen.pairs):,}."
    st.caption(
        f"Newest records only, worst first.{cut} Partners may lie outside of the sample; the check"
        " reads both topics whole."
    )


def places(found: Sequence[tuple[int, int]]) -> str:
    """Formats the first places of an identity as partition/offset."""
    shown = ", ".join(f"{partition}/{offset}" for partition, offset in found[:PLACES_SHOWN])
    return f"{shown}, …" if len(found) > PLACES_SHOWN else shown

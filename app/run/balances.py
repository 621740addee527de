"""Totals of a run of the scenario totals: each account's actual and required total."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
import streamlit as st

from topicproof.app import wording
from topicproof.app.session.access import note_look, show_errors
from topicproof.app.session.connection import running_kafka
from topicproof.app.session.page_masks import require_unmasked
from topicproof.backend.address import Address
from topicproof.backend.characters import visible
from topicproof.backend.commands.show import balances
from topicproof.backend.history.store import Run
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.look import LookBudget
from topicproof.backend.runs.totals import SinkTotals, current_totals
from topicproof.backend.settings import Settings

READ_AGAIN_S = 3
ROWS_MAX = 1_000
"""Accounts of the table: a page sends it whole."""


def totals(settings: Settings, run: Run) -> None:
    """Shows whether the totals are right and, on demand, each total as a consumer of the sink sees
    it now, if no parts of the run's records are masked for this person. For windows, shows whether
    their counts are right. Other runs show nothing."""
    for sink, result in run.facts.results.values.items():
        word = wording.OUTCOME_WORDS[result.verdict]
        st.markdown(
            f"{word.symbol} Values of **{wording.plain(sink)}**: {word.word}."
            f" {wording.plain(result.why)}"
        )
    if run.plan.get("scenario") != "totals" or not run.facts.sink:
        return
    if text := balances(run.facts):
        st.markdown(wording.plain(text))
    if not st.toggle(
        "Current totals of every account", key=f"totals {run.id}", help="Reads the sink."
    ):
        return
    with show_errors():
        # An account and its total are the key and the value of a record.
        require_unmasked(settings, *run.facts.every_topic)
        note_look(settings, f"{run.facts.sink}, the totals of every account")
        totals = _read(running_kafka(settings).bootstrap, run.facts.sink, settings)
    rows = sorted(totals.balances, key=lambda row: -abs(row.difference_cents))[:ROWS_MAX]
    rows.sort(key=lambda row: row.account)
    table = pd.DataFrame(
        {
            "account": [visible(row.account) for row in rows],
            "total": [row.cents / 100 for row in rows],
            "payments": [row.payments for row in rows],
            "should be": [row.due_cents / 100 for row in rows],
            "difference": [row.difference_cents / 100 for row in rows],
        }
    )
    amounts = {
        name: st.column_config.NumberColumn(format="%.2f")
        for name in ("total", "should be", "difference")
    }
    st.dataframe(
        table, hide_index=True, column_config=amounts, alt="The current total of every account"
    )
    st.caption(
        "Should be: each payment counted once, by its id. A difference means that payments arrived"
        " twice."
    )
    for sentence in _limits(totals):
        st.caption(wording.plain(sentence))


def _limits(totals: SinkTotals) -> Iterator[str]:
    """Yields what the table leaves out."""
    if len(totals.balances) > ROWS_MAX:
        yield (
            f"The table has the {ROWS_MAX:,} of {len(totals.balances):,} accounts with the largest"
            " differences."
        )
    if totals.note:
        yield totals.note
    if totals.foreign:
        yield f"Records of the sink that are not totals: {totals.foreign:,}."


@st.cache_data(ttl=READ_AGAIN_S, max_entries=4, show_spinner="Reading the totals…")
def _read(bootstrap: str, sink: str, _settings: Settings) -> SinkTotals:
    cluster = Cluster(Address(bootstrap, _settings.client))
    return current_totals(cluster, sink, budget=LookBudget())

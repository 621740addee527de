"""Selects transactions and builds their table. Pure: frames of `fates.transactions` in, frames
out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from pandas.io.formats.style import Styler

from topicproof.app.tables import TINTS
from topicproof.app.url_state import TransactionsState
from topicproof.app.wording import ABORT_WORDS, data_size, outcome_label, span
from topicproof.validators.coordinator import OpenTransaction
from topicproof.validators.facts.log_facts import ABORTED, OPEN, UNEXPLAINED
from topicproof.validators.finding import Fate

PAGE = 100
"""Number of transactions drawn and listed at once."""
LANES_MAX = 24
PRODUCERS_MAX = 500
TINT_OF: Mapping[str, Fate] = {
    ABORTED: Fate.ABORTED,
    OPEN: Fate.PENDING,
    UNEXPLAINED: Fate.UNEXPLAINED,
}


def matching(found: pd.DataFrame, selection: TransactionsState) -> pd.DataFrame:
    """Returns the transactions that match the selection, the latest to begin first."""
    fits = pd.Series(True, found.index)
    if selection.partition is not None:
        fits &= found["partition"] == selection.partition
    if selection.producer is not None:
        fits &= found["producer_id"] == selection.producer
    if selection.outcomes:
        fits &= found["outcome"].isin(list(selection.outcomes))
    return found[fits].sort_values(
        ["first_timestamp", "first_offset", "partition"],
        ascending=[False, False, True],
        kind="stable",
    )


def producer_ids(found: pd.DataFrame, chosen: int | None) -> list[int]:
    """Returns the producer ids to choose from: those that began a transaction last, and the chosen
    one."""
    latest = found.sort_values("first_timestamp", ascending=False, kind="stable")[
        "producer_id"
    ].unique()
    return sorted({*latest[:PRODUCERS_MAX].tolist(), *([] if chosen is None else [chosen])})


def timed(shown: pd.DataFrame, now_ms: int) -> pd.DataFrame:
    """Adds `end_ms` (the marker's time, or now without a marker) and `duration_ms`. The duration is
    never below 0: producers may give records any timestamp."""
    end = shown["marker_timestamp"].fillna(now_ms).astype("int64")
    return shown.assign(end_ms=end, duration_ms=(end - shown["first_timestamp"]).clip(lower=0))


def lanes(shown: pd.DataFrame) -> pd.Series[Any]:
    """Names each transaction's lane in the timeline: partition and producer id, or only the
    partition if there would be too many lanes."""
    by_partition = "p" + shown["partition"].astype(str)
    by_both = by_partition + " · " + shown["producer_id"].astype(str)
    return by_both if by_both.nunique() <= LANES_MAX else by_partition


def lane_order(shown: pd.DataFrame, named: pd.Series[Any]) -> list[str]:
    """Returns the lanes by partition and producer id, no more than fit."""
    ordered = shown.assign(lane=named).sort_values(["partition", "producer_id"], kind="stable")
    return list(dict.fromkeys(ordered["lane"]))[:LANES_MAX]


def table(
    shown: pd.DataFrame,
    parts: Mapping[tuple[int, int], tuple[int, ...]],
    names: Mapping[int, str],
    opened: Sequence[OpenTransaction],
    reasons: Mapping[tuple[int, int], str],
) -> pd.DataFrame:
    """Builds one row per transaction and partition. `parts` are all partitions of a transaction,
    and `reasons` why it was aborted, by partition and first offset. `names` are transactional ids
    by producer id."""
    open_at = {(one.partition, one.start_offset): one for one in opened}
    places = list(zip(shown["partition"], shown["first_offset"], strict=True))
    return pd.DataFrame(
        {
            "outcome": shown["outcome"].map(outcome_label),
            "partition": shown["partition"],
            "first offset": shown["first_offset"],
            "last offset": shown["last_offset"],
            "records": shown["records"],
            "size": shown["bytes"].map(data_size),
            "begin (UTC)": pd.to_datetime(shown["first_timestamp"], unit="ms", errors="coerce"),
            "end (UTC)": pd.to_datetime(
                shown["marker_timestamp"].astype("float64"), unit="ms", errors="coerce"
            ),
            "duration": [
                span(int(ms)) + (" so far" if outcome == OPEN else "")
                for ms, outcome in zip(shown["duration_ms"], shown["outcome"], strict=True)
            ],
            "why": [
                why(outcome, open_at.get(place), reasons.get(place))
                for outcome, place in zip(shown["outcome"], places, strict=True)
            ],
            "transactional id": shown["producer_id"].map(names),
            "producer id": shown["producer_id"],
            "epoch": shown["producer_epoch"],
            "marker": shown["marker_offset"],
            "partitions": [", ".join(map(str, parts[place])) for place in places],
        }
    )


def why(outcome: str, opened: OpenTransaction | None, reason: str | None) -> str:
    """Explains why a transaction has not committed, as far as the coordinators and the log tell."""
    if outcome == OPEN:
        if opened is None:
            return "no marker within the bounds"
        if opened.hanging:
            return "hanging: no coordinator knows of it"
        if opened.unseen:
            return "not known: coordinators hide it from a client without Describe on its id"
        if opened.two_phase:
            return f"{opened.state}: open for {span(opened.age_ms)}, in a two-phase commit"
        return (
            f"{opened.state}: open for {span(opened.age_ms)} of at most"
            f" {span(opened.timeout_ms or 0)}"
        )
    if outcome == UNEXPLAINED:
        return "no marker, although it lies below the last stable offset"
    if outcome == ABORTED:
        return (
            ABORT_WORDS[reason]
            if reason is not None
            else "not known: the coordinators’ log no longer holds it"
        )
    return ""


def tinted(listed: pd.DataFrame, shown: pd.DataFrame, chosen: tuple[int, int] | None) -> Styler:
    """Tints each row by its outcome; the chosen one stands out."""
    places = list(zip(shown["partition"], shown["first_offset"], strict=True))
    styles = [
        _style(outcome, place == chosen)
        for outcome, place in zip(shown["outcome"], places, strict=True)
    ]

    def tint(all_rows: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame(dict.fromkeys(all_rows.columns, styles), all_rows.index)

    numbers: dict[Any, Any] = dict.fromkeys(
        ["first offset", "last offset", "records", "marker"], "{:,}"
    )
    return listed.style.apply(tint, axis=None).format(numbers, na_rep="–")


def _style(outcome: str, chosen: bool) -> str:
    strength = 0.45 if chosen else 0.16 if outcome in TINT_OF else 0.0
    return (
        f"background-color: rgba({TINTS[TINT_OF.get(outcome, Fate.COMMITTED)]}, {strength})"
        if strength
        else ""
    )

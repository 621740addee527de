"""Selects transactions and builds their table. Pure: frames of `fates.transactions` in, frames
out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from pandas.io.formats.style import Styler

from topicproof.app.shell.url_state import TransactionsState
from topicproof.app.topic.tables import TINTS
from topicproof.app.wording import ABORT_WORDS, HANGING, data_size, outcome_label
from topicproof.backend.characters import visible
from topicproof.validators.coordinator import OpenTransaction
from topicproof.validators.facts.log_facts import ABORTED, OPEN, UNEXPLAINED
from topicproof.validators.finding import Fate
from topicproof.validators.sentences import brief, in_words

PAGE = 100
"""Number of transactions drawn and listed at once."""
LANES_MAX = 24
LANE_CHARACTERS, LABEL_CHARACTERS = 26, 100
PRODUCERS_MAX = 500
TINT_OF: Mapping[str, Fate] = {
    ABORTED: Fate.ABORTED,
    OPEN: Fate.PENDING,
    HANGING: Fate.PENDING,
    UNEXPLAINED: Fate.UNEXPLAINED,
}


def matching(rows: pd.DataFrame, selection: TransactionsState) -> pd.DataFrame:
    """Returns the transactions that match the selection, the latest to begin first."""
    fits = pd.Series(True, rows.index)
    if selection.partition is not None:
        fits &= rows["partition"] == selection.partition
    if selection.producer is not None:
        fits &= rows["producer_id"] == selection.producer
    if selection.outcomes:
        # A hanging one is open as well.
        also = [HANGING] if OPEN in selection.outcomes else []
        fits &= rows["outcome"].isin([*selection.outcomes, *also])
    return rows[fits].sort_values(
        ["first_timestamp", "first_offset", "partition"],
        ascending=[False, False, True],
        kind="stable",
    )


def producer_ids(rows: pd.DataFrame, chosen: int | None) -> list[int]:
    """Returns the producer ids to choose from: those that began a transaction last, and the chosen
    one."""
    latest = rows.sort_values("first_timestamp", ascending=False, kind="stable")[
        "producer_id"
    ].unique()
    return sorted({*latest[:PRODUCERS_MAX].tolist(), *([] if chosen is None else [chosen])})


def timed(rows: pd.DataFrame, now_ms: int) -> pd.DataFrame:
    """Adds `end_ms` (the marker's time, or now without a marker) and `duration_ms`. The duration is
    never below 0: producers may give records any timestamp."""
    end = rows["marker_timestamp"].fillna(now_ms).astype("int64")
    return rows.assign(end_ms=end, duration_ms=(end - rows["first_timestamp"]).clip(lower=0))


def with_hanging(rows: pd.DataFrame, opened: Sequence[OpenTransaction]) -> pd.DataFrame:
    """Marks the transactions that hang, which the log alone cannot tell from open ones."""
    hanging = {
        (transaction.partition, transaction.start_offset)
        for transaction in opened
        if transaction.hanging
    }
    places = zip(rows["partition"], rows["first_offset"], strict=True)
    hangs = pd.Series([place in hanging for place in places], rows.index, dtype=bool)
    return rows.assign(outcome=rows["outcome"].mask(hangs & (rows["outcome"] == OPEN), HANGING))


def whole_outcomes(
    rows: pd.DataFrame, numbers: Mapping[tuple[int, int], int], whole: pd.DataFrame
) -> dict[str, int]:
    """Counts the transactions of these rows by outcome: one on several partitions counts once.
    `numbers` are the rows of `whole` (`over_partitions`), by partition and first offset."""
    if rows.empty:
        return {}
    places = zip(rows["partition"], rows["first_offset"], strict=True)
    of_rows = pd.Series([numbers[place] for place in places], rows.index)
    outcomes = whole["outcome"].loc[of_rows.unique()]
    # The log calls a hanging one open.
    hanging = set(of_rows[rows["outcome"] == HANGING])
    outcomes = outcomes.mask(outcomes.index.isin(hanging) & (outcomes == OPEN), HANGING)
    return {str(outcome): int(count) for outcome, count in outcomes.value_counts().items()}


def by_partition(rows: pd.DataFrame) -> bool:
    """Whether there would be too many lanes for one each: then a lane is a partition."""
    return int(rows["producer_id"].nunique()) > LANES_MAX


def lanes(rows: pd.DataFrame, names: Mapping[int, str]) -> pd.Series[Any]:
    """Names each transaction's lane in the timeline: its transactional id (`names` by producer id),
    or else its producer id; only the partition if there would be too many lanes."""
    if by_partition(rows):
        return "p" + rows["partition"].astype(str)
    # A transactional id may be called like a lane of ours, so ids and producers are kept apart.
    owners = {
        producer: ("id", names[producer]) if producer in names else ("producer", str(producer))
        for producer in map(int, rows["producer_id"])
    }
    labels = owner_labels(sorted(set(owners.values())))
    return rows["producer_id"].map(lambda producer: labels[owners[int(producer)]])


def owner_labels(owners: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Returns a label of bounded length for each owner of a lane, no two of them the same."""
    ids = [name for kind, name in owners if kind == "id"]
    short = {name: short_name(name) for name in ids}
    if len(set(short.values())) < len(ids):
        short = {name: short_name(name, LABEL_CHARACTERS) for name in ids}
    labels: dict[tuple[str, str], str] = {}
    for kind, name in owners:
        text = short[name] if kind == "id" else f"producer {name}"
        label = text = short_name(visible(text), LABEL_CHARACTERS)
        number = 2
        while label in labels.values():
            label = f"{text} ({number})"
            number += 1
        labels[kind, name] = label
    return labels


def short_name(name: str, characters: int = LANE_CHARACTERS) -> str:
    """Returns the end of a long name, where names of one program differ."""
    return name if len(name) <= characters else f"…{name[-characters:]}"


def lane_order(named: pd.Series[Any]) -> list[str]:
    """Returns the lanes by name, no more than fit. Numbers in names count as numbers."""
    return sorted(set(named), key=_natural)[:LANES_MAX]


def _natural(name: str) -> list[tuple[int, int, str]]:
    parts = re.split(r"([0-9]+)", name)
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts]


def whole_ones(
    rows: pd.DataFrame,
    numbers: Mapping[tuple[int, int], int],
    chosen: tuple[int, int] | None,
) -> pd.DataFrame:
    """Returns one row for each transaction, which has one for each of its partitions: the chosen
    one, else the first to begin. `numbers` are those of the transactions, by partition and first
    offset. If partitions saw a transaction end differently, each outcome keeps a row."""
    places = list(zip(rows["partition"], rows["first_offset"], strict=True))
    ordered = rows.assign(
        number=[numbers[place] for place in places],
        other=[place != chosen for place in places],
    ).sort_values(["other", "first_timestamp"], kind="stable")
    first_rows = ordered.drop_duplicates(["number", "outcome"])
    return rows[rows.index.isin(first_rows.index)]


def table(
    rows: pd.DataFrame,
    parts: Mapping[tuple[int, int], tuple[int, ...]],
    names: Mapping[int, str],
    opened: Sequence[OpenTransaction],
    reasons: Mapping[tuple[int, int], str],
) -> pd.DataFrame:
    """Builds one row per transaction and partition. `parts` are all partitions of a transaction,
    and `reasons` why it was aborted, by partition and first offset. `names` are transactional ids
    by producer id."""
    open_at = {
        (transaction.partition, transaction.start_offset): transaction for transaction in opened
    }
    places = list(zip(rows["partition"], rows["first_offset"], strict=True))
    return pd.DataFrame(
        {
            "outcome": rows["outcome"].map(outcome_label),
            "partition": rows["partition"],
            "first offset": rows["first_offset"],
            "last offset": rows["last_offset"],
            "records": rows["records"],
            "size": rows["bytes"].map(data_size),
            "begin (UTC)": pd.to_datetime(rows["first_timestamp"], unit="ms", errors="coerce"),
            "end (UTC)": pd.to_datetime(
                rows["marker_timestamp"].astype("float64"), unit="ms", errors="coerce"
            ),
            "duration": [
                brief(int(ms)) + (" so far" if outcome in (OPEN, HANGING) else "")
                for ms, outcome in zip(rows["duration_ms"], rows["outcome"], strict=True)
            ],
            "why": [
                why(outcome, open_at.get(place), reasons.get(place))
                for outcome, place in zip(rows["outcome"], places, strict=True)
            ],
            "transactional id": rows["producer_id"].map(names),
            "producer id": rows["producer_id"],
            "epoch": rows["producer_epoch"],
            "marker": rows["marker_offset"],
            "partitions": [", ".join(map(str, parts[place])) for place in places],
        }
    )


def why(outcome: str, opened: OpenTransaction | None, reason: str | None) -> str:
    """Explains why a transaction has not committed, as far as the coordinators and the log tell."""
    if outcome in (OPEN, HANGING):
        if opened is None:
            return "no marker within the bounds"
        if opened.hanging:
            return "hanging: no coordinator knows of it"
        if opened.unseen:
            return "not known: coordinators hide it from a client without Describe on its id"
        if opened.two_phase:
            return f"{opened.state}: open for {in_words(opened.age_ms)}, in a two-phase commit"
        return (
            f"{opened.state}: open for {in_words(opened.age_ms)} of at most"
            f" {in_words(opened.timeout_ms or 0)}"
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


def tinted(listed: pd.DataFrame, rows: pd.DataFrame, chosen: tuple[int, int] | None) -> Styler:
    """Tints each row by its outcome; the chosen one stands out."""
    places = list(zip(rows["partition"], rows["first_offset"], strict=True))
    styles = [
        outcome_style(outcome, place == chosen)
        for outcome, place in zip(rows["outcome"], places, strict=True)
    ]

    def tint(all_rows: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame(dict.fromkeys(all_rows.columns, styles), all_rows.index)

    numbers: dict[Any, Any] = dict.fromkeys(
        ["first offset", "last offset", "records", "marker"], "{:,}"
    )
    return listed.style.apply(tint, axis=None).format(numbers, na_rep="–")


def outcome_style(outcome: str, chosen: bool = False) -> str:
    """Returns the style of a row with this outcome."""
    strength = 0.45 if chosen else 0.16 if outcome in TINT_OF else 0.0
    return (
        f"background-color: rgba({TINTS[TINT_OF.get(outcome, Fate.COMMITTED)]}, {strength})"
        if strength
        else ""
    )

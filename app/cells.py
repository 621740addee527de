"""The cells of the matrix as frames for its chart and its table. Pure: results in, frames out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from topicproof.backend.matrix.cells import Result
from topicproof.backend.matrix.promises import PROMISES
from topicproof.backend.matrix.table import TABLE

EXACT, DAMAGED, REFUSED, SURPRISE = "exact", "damaged", "refused", "surprise"
SYMBOLS: Mapping[str, str] = {EXACT: "✓", DAMAGED: "▲", REFUSED: "■", SURPRISE: "‼"}
MEANINGS: Mapping[str, str] = {
    EXACT: "each input committed once",
    DAMAGED: "damaged, as theory expects",
    REFUSED: "the sink refused to continue, as it should; the rest is not processed",
    SURPRISE: "not what theory expects",
}
TITLES: Mapping[str, str] = {trouble.name: trouble.title for trouble in TABLE}


def kind(result: Result) -> str:
    """Classifies a cell for display. Hidden records are no damage: those of aborted
    transactions."""
    if result.surprises:
        return SURPRISE
    if result.expected.startswith(REFUSED):
        return REFUSED
    return DAMAGED if set(result.found) - {"hidden"} else EXACT


def ordered(results: Sequence[Result]) -> list[Result]:
    """Sorts results in the order of the table; drops those that the table no longer contains."""
    rows = {trouble.name: number for number, trouble in enumerate(TABLE)}
    columns = {promise.name: number for number, promise in enumerate(PROMISES)}
    known = [one for one in results if one.fault in rows and one.guarantee in columns]
    return sorted(known, key=lambda one: (rows[one.fault], columns[one.guarantee]))


def guarantees(results: Sequence[Result]) -> list[str]:
    """Returns the guarantees that have results, as columns."""
    present = {one.guarantee for one in results}
    return [promise.name for promise in PROMISES if promise.name in present]


def frame(results: Sequence[Result]) -> pd.DataFrame:
    """Builds the frame for `matrix_figure`."""
    return pd.DataFrame(
        {
            "fault": [one.fault for one in results],
            "guarantee": [one.guarantee for one in results],
            "kind": [kind(one) for one in results],
            "label": [f"{SYMBOLS[kind(one)]} {one.says}" for one in results],
            "hover": [f"{MEANINGS[kind(one)]}; expected: {one.expected}" for one in results],
        }
    )


def table(results: Sequence[Result]) -> pd.DataFrame:
    """Builds the table with all that is known of each cell."""
    return pd.DataFrame(
        {
            "fault": [one.fault for one in results],
            "guarantee": [one.guarantee for one in results],
            "": [f"{SYMBOLS[kind(one)]} {kind(one)}" for one in results],
            "expected": [one.expected for one in results],
            "found": [one.says for one in results],
            "verdict": [one.verdict for one in results],
            "took, s": [one.took_s for one in results],
            "what proves that it fired": [one.fired or "nothing" for one in results],
            "surprises": ["; ".join(one.surprises) for one in results],
            "run": [one.run for one in results],
        }
    )

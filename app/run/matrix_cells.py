"""The cells of the matrix as frames for its chart and its table. Pure: results in, frames out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from topicproof.backend.matrix.cells import Result
from topicproof.backend.matrix.matrix_table import TABLE
from topicproof.backend.matrix.promises import PROMISES

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
    listed = [result for result in results if result.fault in rows and result.guarantee in columns]
    return sorted(listed, key=lambda result: (rows[result.fault], columns[result.guarantee]))


def guarantees(results: Sequence[Result]) -> list[str]:
    """Returns the guarantees that have results, as columns."""
    present = {result.guarantee for result in results}
    return [promise.name for promise in PROMISES if promise.name in present]


def frame(results: Sequence[Result]) -> pd.DataFrame:
    """Builds the frame for `matrix_figure`."""
    return pd.DataFrame(
        {
            "fault": [result.fault for result in results],
            "guarantee": [result.guarantee for result in results],
            "kind": [kind(result) for result in results],
            "label": [f"{SYMBOLS[kind(result)]} {result.says}" for result in results],
            "hover": [
                f"{MEANINGS[kind(result)]}; expected: {result.expected}" for result in results
            ],
        }
    )


def table(results: Sequence[Result]) -> pd.DataFrame:
    """Builds the table with all that is known of each cell."""
    return pd.DataFrame(
        {
            "fault": [result.fault for result in results],
            "guarantee": [result.guarantee for result in results],
            "": [f"{SYMBOLS[kind(result)]} {kind(result)}" for result in results],
            "expected": [result.expected for result in results],
            "found": [result.says for result in results],
            "verdict": [result.verdict for result in results],
            "took, s": [result.took_s for result in results],
            "what proves that it fired": [result.fired or "nothing" for result in results],
            "surprises": ["; ".join(result.surprises) for result in results],
            "run": [result.run for result in results],
        }
    )

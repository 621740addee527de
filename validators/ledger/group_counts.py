"""The figures of a contract about aggregates: how many groups, inputs and outputs there are."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame


@dataclass(frozen=True)
class GroupCounts:
    """The figures of all groups, and the frames behind them."""

    due: int
    """Groups with an input in the judged range."""
    inputs: int
    """Inputs in the judged range that belong to a group."""
    ungrouped: int
    """Inputs in the judged range that belong to none."""
    outputs: int
    """Committed outputs."""
    in_sink: int
    """Groups with a committed output."""
    compared: int
    """Groups with both an input and an output."""
    nameless: int
    """Committed outputs that name no group."""
    faults: int
    """Groups that are not as they must be."""
    groups: DataFrame
    """One row for each group; kept as Parquet."""
    outputs_frame: DataFrame
    """One row for each committed output, as `_outputs` returns it. Lazy."""
    inputs_frame: DataFrame
    """One row for each input, as `_inputs` returns it. Lazy."""

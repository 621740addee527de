"""Spark's plans as text."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame


def explained_plan(frame: DataFrame, mode: str = "simple") -> str:
    """Returns the plan of a frame as `DataFrame.explain` prints it: to standard output, which all
    threads share. Raises PySparkException."""
    connected: Any = frame
    return str(connected._explain_string(mode=mode))

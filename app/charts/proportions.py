"""Cells of the strip in proportion: how much of each cell's height each fate gets."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from topicproof.backend.kafka.log.fates import FATES, Bins
from topicproof.validators.finding import Fate

BOTTOM_UP = (Fate.UNEXPLAINED, Fate.ABORTED, Fate.PENDING, Fate.GONE, Fate.COMMITTED)
"""The fates of a mixed cell, from its lower edge. Markers would be a hairline in every cell, so
they show only in a cell that holds nothing else."""
ALWAYS_SHOWN = BOTTOM_UP[:3]
"""These get a layer even if they are less: among a million committed records, one aborted record
must be visible."""


def layers(bins: Bins, count: int) -> npt.NDArray[np.int8]:
    """Divides each cell into `count` layers, from its upper edge down: an index into `FATES`, -1
    outside the partition. Shape (partitions, count, bins).

    A layer is a coarse unit. What a cell rounds up or down is carried to the next one, so the areas
    of a whole row are in proportion as well.
    """
    order = [FATES.index(fate) for fate in BOTTOM_UP]
    present = bins.counts[:, :, order] > 0
    result = np.repeat(bins.worst[:, None, :], count, axis=1)
    weights = bins.counts[:, :, order].astype(np.float64)
    weights *= count / np.maximum(1, weights.sum(axis=2, keepdims=True))
    always = np.array([fate in ALWAYS_SHOWN for fate in BOTTOM_UP])
    carried = np.zeros((len(bins.partitions), len(order)))
    height = np.arange(count)[::-1]
    for column in np.flatnonzero((present.sum(axis=2) > 1).any(axis=0)):
        mixed = present[:, column].sum(axis=1) > 1
        heights = _heights(present[:, column], weights[:, column] + carried, always, count)
        rest = np.clip(carried + weights[:, column] - heights, -count, count)
        carried = np.where(mixed[:, None] & present[:, column], rest, carried)
        ends = heights.cumsum(axis=1)
        codes = (height[None, :, None] >= ends[:, None, :]).sum(axis=2)
        codes = np.asarray(order, np.int8)[np.minimum(codes, len(order) - 1)]
        result[mixed, :, column] = codes[mixed]
    return result


def _heights(
    present: npt.NDArray[np.bool_],
    exact: npt.NDArray[np.float64],
    always: npt.NDArray[np.bool_],
    count: int,
) -> npt.NDArray[np.int64]:
    """Rounds the exact heights of one cell per row to layers that add up to `count`. All arrays
    have a column per fate, in the order of `BOTTOM_UP`."""
    needed = (present & always).astype(np.int64)
    heights = np.zeros(present.shape, np.int64)
    left = np.full(len(present), count)
    for at in range(present.shape[1]):
        later = needed[:, at + 1 :].sum(axis=1)
        last = ~present[:, at + 1 :].any(axis=1)
        # A fate that must show does not push out the others that are there.
        room = left - np.maximum(later, ~last)
        rounded = np.clip(np.rint(exact[:, at]).astype(np.int64), needed[:, at], room)
        heights[:, at] = np.where(present[:, at], np.where(last, left, rounded), 0)
        left -= heights[:, at]
    return heights

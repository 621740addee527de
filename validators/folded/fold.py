"""The readings of a pair of topics, each folded in one pass into bitmaps of 64 offsets.

A folded reading holds no keys and no values. Captures, evidence and the fast path use it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, functions as F

from topicproof.validators.finding import Bounds
from topicproof.validators.folded.offset_runs import (
    Spans,
    Words,
    folded_at_once,
    folded_pieces,
    words_of,
)
from topicproof.validators.folded.regular_log import RegularLog
from topicproof.validators.offsets import WORD
from topicproof.validators.readings import FEW_OFFSETS_MAX, in_parallel

PIECES_MAX = 32_000_000
"""So many pieces are proved in this process. They take some 5 GB. Beyond that Spark counts record
by record, and nothing grows here."""


class Folded(NamedTuple):
    """The folded readings."""

    seen: Words
    """What read_committed saw of the sink."""
    pieces: pa.Table
    """What read_uncommitted saw of the sink, as `PIECES`."""
    inputs: Words


def fold(
    committed: DataFrame,
    uncommitted: DataFrame,
    source: DataFrame,
    log: RegularLog,
    content: Column,
    offsets: int,
) -> Folded:
    """Folds the readings, reading each once. `content` is a hash of a record's content; `offsets`
    is the number of offsets, source and sink together."""
    if offsets <= FEW_OFFSETS_MAX:
        return Folded(*folded_at_once(committed, uncommitted, source, content, spans_of(log)))
    committed_words, pieces, inputs = in_parallel(
        lambda: words_of(committed, content, offsets),
        lambda: folded_pieces(uncommitted, content, offsets, spans_of(log)),
        lambda: words_of(source, F.lit(0).cast("long"), offsets),
    )
    return Folded(committed_words, pieces, inputs)


def estimated_pieces(sink: Bounds, log: RegularLog) -> int:
    """Estimates how many pieces the records of a large sink are folded into, at most.

    Keys spread neighbouring inputs over all partitions. So the 64 records of a word stem from as
    many words of the source as the sink has partitions, and one more at a border. Each transaction
    begins another piece.
    """
    share = min(1.0, (len(sink.partitions) + 1) / WORD)
    return min(sink.offsets, int(sink.offsets * share) + len(log.transactions))


def spans_of(log: RegularLog) -> Spans:
    spans = {}
    for partition in np.unique(log.partition).tolist():
        rows = slice(*np.searchsorted(log.partition, [partition, partition + 1]).tolist())
        spans[partition] = log.base[rows], log.transaction[rows]
    return spans

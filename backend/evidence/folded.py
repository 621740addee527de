"""Folded readings as evidence files: sets of offsets, and the transaction of each piece.

They hold no key, no value and no hash of either: contents are compared before storage.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from topicproof.backend.errors import PackedLineage
from topicproof.backend.evidence.read_limits import read_table
from topicproof.validators.folded.fold import Folded
from topicproof.validators.folded.offset_runs import PIECES, WORDS, Words, as_words

SEEN, PIECES_SEEN, INPUTS = (
    "sink-read_committed-words.parquet",
    "sink-read_uncommitted-pieces.parquet",
    "source-read_committed-words.parquet",
)
CONTENT = "content"
PACKED = "packed"
"""A column of earlier versions, filled if the lineage was packed."""


def keep_folded(folded: Folded, evidence: Path) -> None:
    """Write the files. Raises OSError."""
    tables = {SEEN: _table(folded.seen), PIECES_SEEN: folded.pieces, INPUTS: _table(folded.inputs)}
    for name, table in tables.items():
        pq.write_table(table.drop_columns(CONTENT), evidence / name)


def read_folded(evidence: Path) -> Folded:
    """Read the files. Raises OSError, and ValueError or KeyError for files of another kind;
    PackedLineage."""
    in_words, in_pieces = {*WORDS.names} - {CONTENT}, {*PIECES.names, PACKED} - {CONTENT}
    columns = {SEEN: in_words, PIECES_SEEN: in_pieces, INPUTS: in_words}
    words, pieces, inputs = (read_table(evidence / name, columns[name]) for name in columns)
    if PACKED in pieces.column_names and pieces[PACKED].null_count < pieces.num_rows:
        raise PackedLineage(evidence)
    return Folded(
        as_words(_with_content(words, WORDS)),
        _with_content(pieces, PIECES),
        as_words(_with_content(inputs, WORDS)),
    )


def _table(words: Words) -> pa.Table:
    return pa.table(dict(zip(WORDS.names, words, strict=True)), WORDS)


def _with_content(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Add equal contents: they were compared before."""
    return (
        table.append_column(CONTENT, pa.array(np.zeros(table.num_rows, np.int64)))
        .select(schema.names)
        .cast(schema)
    )

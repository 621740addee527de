"""Offsets of a topic that an earlier scan lacks."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from topicproof.backend.kafka.log.batches import SCHEMA
from topicproof.validators.finding import Bounds


def missing_spans(
    bounds: Bounds, since: pa.Table | None
) -> tuple[pa.Table, dict[int, list[tuple[int, int]]]]:
    """Return the rows of `since` that are still valid within the bounds, and per partition the
    spans [first, end) to read."""
    existing = since if since is not None else SCHEMA.empty_table()
    valid = []
    spans: dict[int, list[tuple[int, int]]] = {}
    for p in bounds.partitions:
        rows = existing.filter(pc.equal(existing["partition"], p.partition))
        reached = pc.max(rows["last_offset"]).as_py() if rows.num_rows else None
        if reached is None or reached >= p.hw:
            # Beyond the high watermark: the topic was recreated, or the bounds differ.
            missing = [(p.start, p.hw)]
        else:
            inside = rows.filter(pc.greater_equal(rows["base_offset"], p.start))
            valid.append(inside)
            # A known batch that crosses the new log start is read again and cut.
            whole_from = pc.min(inside["base_offset"]).as_py() if inside.num_rows else reached + 1
            missing = [(p.start, whole_from), (max(reached + 1, p.start), p.hw)]
        missing = [span for span in missing if span[0] < span[1]]
        if missing:
            spans[p.partition] = missing
    return pa.concat_tables(valid) if valid else SCHEMA.empty_table(), spans

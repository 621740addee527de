"""Who wrote committed records without an input: the pipeline itself, or somebody else."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, functions as F

from topicproof.validators.facts.log_facts import COMMITTED
from topicproof.validators.facts.raw_log import RawLog
from topicproof.validators.facts.writers import with_writers
from topicproof.validators.finding import EXAMPLES_MAX, Fate
from topicproof.validators.incidents.holes import holes_among, places_text
from topicproof.validators.incidents.incident import Incident, log_of_producers
from topicproof.validators.incidents.records import drop_step, ranges_of
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.ledger.rows import Place
from topicproof.validators.sentences import lowered

WRITERS_MAX = 50
"""Records of more producers than this tell no story."""


def incident_of_strangers(ledger: Ledger, strangers: DataFrame) -> Incident | None:
    """Tells whose records without an input are. `strangers`: the rows of evidence, of which nothing
    else explains one. None if nothing tells."""
    log = ledger.accounts.raw_log
    if log is None or ledger.counts.of_namesake:
        return None
    rows = with_writers(strangers.select("partition", "offset"), log)
    producers = rows.groupBy("writer_number").count().limit(WRITERS_MAX + 1).collect()
    counts = {row["writer_number"]: row["count"] for row in producers}
    is_named = all(number is not None and number >= 0 for number in counts)
    if not counts or not is_named or len(counts) > WRITERS_MAX:
        return None
    expected = [_written(ledger, log, number) - count for number, count in counts.items()]
    holes = _holes_behind_outputs(ledger, strangers, sum(counts.values()))
    return incident_of(
        sinks=" and ".join(ledger.sink_bounds.topics),
        producers=sorted(counts),
        are_of_pipeline=all(count > 0 for count in expected),
        are_of_others=all(count <= 0 for count in expected),
        holes=holes,
        drop=drop_step(ledger.sink_bounds, "these records", ranges_of(strangers)),
    )


def incident_of(
    *,
    sinks: str,
    producers: Sequence[int],
    are_of_pipeline: bool,
    are_of_others: bool,
    holes: list[str],
    drop: str,
) -> Incident | None:
    """Tells the story of the records of some producer ids. `holes`: the places of the source
    without an input that the pipeline had reached when it wrote them; empty unless each has one.
    `drop`: what consumers must do."""
    is_one = len(producers) == 1
    whose = "Their producer" if is_one else "Each of their producers"
    if are_of_others:
        none = "Their producer wrote no" if is_one else "None of their producers wrote an"
        return Incident(
            f"{none} expected output of this log.",
            f"Look in {log_of_producers(producers)}; `kafka-acls.sh --list` names who may write to"
            f" {sinks}. If that is the pipeline itself, it also reads another source, and a"
            " contract can name several. If it is another application that may write here, its"
            " records are right: give it a topic of its own, so that both can be judged. Only if"
            f" nobody may have written them, {lowered(drop)}",
        )
    if not are_of_pipeline:
        return None
    story = f"{whose} also wrote expected outputs, so they are the pipeline's own."
    if not holes:
        return Incident(
            story,
            f"Look in {log_of_producers(producers)}, and in its code, for what else it writes, such"
            f" as two outputs of one input, or outputs of another source. {drop}",
        )
    place = "an offset" if len(holes) == 1 else "offsets"
    story += (
        f" They lie where the pipeline had reached {place} without an input, such as a transaction"
        f" marker: {', '.join(holes)}."
    )
    return Incident(
        story,
        f"Look in {log_of_producers(producers)}, and in its code, for empty messages that it"
        " forwards: probably its client hands it the markers of the source's transactions, and it"
        f" must skip them. {drop}",
    )


def _written(ledger: Ledger, log: RawLog, producer_id: int) -> int:
    """Returns how many committed records in the bounds the batches of a producer have."""
    batches = log.facts.batches
    written = batches[batches["control"].isna() & (batches["producer_id"] == producer_id)]
    written = written[~written["transactional"] | (written["outcome"] == COMMITTED)]
    count = 0
    for bounds in ledger.sink_bounds.partitions:
        inside = written[written["partition"] == bounds.partition]
        inside = inside[(inside["base_offset"] >= bounds.start)]
        inside = inside[inside["last_offset"] < bounds.lso]
        count += int(inside["count"].sum())
    return count


def _holes_behind_outputs(ledger: Ledger, strangers: DataFrame, count: int) -> list[str]:
    """Returns, for each record, the place behind the input whose output lies before it, if none of
    these holds an input; else nothing."""
    if count > EXAMPLES_MAX:
        return []
    records = strangers.select("partition", F.col("offset").alias("place"))
    outputs = ledger.in_sink.where(
        (F.col("fate") == Fate.COMMITTED.value) & (F.col("place") == Place.INPUT.value)
    ).select("partition", "offset", "source_partition", "source_offset")
    # There are few records, so the outputs need not be shuffled.
    before = outputs.join(F.broadcast(records), "partition").where(F.col("offset") < F.col("place"))
    last = before.groupBy("partition", "place").agg(
        F.max(F.struct("offset", "source_partition", "source_offset")).alias("last")
    )
    rows = last.select("last.source_partition", "last.source_offset").collect()
    places = {(row["source_partition"], row["source_offset"] + 1) for row in rows}
    holes = holes_among(ledger, places)
    is_each = len(rows) == count and len(holes) == len(places)
    return places_text(ledger, holes) if is_each else []

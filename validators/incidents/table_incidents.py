"""What happened to the rows of a table. No log tells who wrote them."""

from __future__ import annotations

from pyspark.sql import DataFrame, functions as F

from topicproof.validators.columns import COLUMNS_SHOWN, differing
from topicproof.validators.incidents.incident import Incident
from topicproof.validators.kinds import duplicate, gap, phantom, wrong_value
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.sentences import counted

NEXT_STEPS = {
    duplicate.NAME: (
        "Let the database refuse a second row: a unique index on what identifies an input, and"
        " INSERT ... ON CONFLICT. Or write the offsets of the inputs in the transaction of their"
        " rows, and continue from those after a crash."
    ),
    gap.NAME: (
        "Read the application's log at these inputs, then process them alone again. If the pipeline"
        " may not have reached them yet, name its consumer group under `group:` in the contract:"
        " what lies beyond the group's offset is not due."
    ),
    phantom.NAME: (
        "Find out who else writes to the table. If the pipeline reads other topics too, a contract"
        " can name several. If rows are older than what the source still holds, check a view of the"
        " newer ones."
    ),
}


def incident_of_table(kind: str, ledger: Ledger, rows: DataFrame) -> Incident | None:
    """Tells of a kind of finding in a table; None if there is nothing to say. `rows`: its evidence
    that nothing explains."""
    if kind == wrong_value.NAME:
        return _incident_of_columns(ledger, rows)
    return Incident("", NEXT_STEPS[kind]) if kind in NEXT_STEPS else None


def _incident_of_columns(ledger: Ledger, rows: DataFrame) -> Incident | None:
    """Tells how many rows differ in each column, the worst one first."""
    table, values = ledger.question.agreed.table, ledger.values
    if table is None or values is None:
        return None
    pairs = rows.select("partition", "offset", "source_partition", "source_offset")
    pairs = pairs.join(values.records, ["partition", "offset"])
    pairs = pairs.join(values.wanted, ["source_partition", "source_offset"])
    names = F.transform(differing("wanted", "value", table), lambda each: each.getField("name"))
    columns = pairs.select(F.explode(names).alias("name")).groupBy("name")
    worst = columns.agg(F.count("*").alias("rows")).orderBy(F.desc("rows"), "name")
    counts = worst.limit(COLUMNS_SHOWN + 1).collect()
    clauses = [f"{row['name']} in {counted(row['rows'], 'row')}" for row in counts]
    more = ["others in fewer"] if len(clauses) > COLUMNS_SHOWN else []
    story = f"By column: {', '.join([*clauses[:COLUMNS_SHOWN], *more])}."
    return Incident(story, wrong_value.TRAITS.next_step)

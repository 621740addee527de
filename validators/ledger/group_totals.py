"""Groups of inputs, what each must come to, and the outputs that say what it came to.

Spark joins one row for each group of the source with one for each group of the sink. Neither side's
groups are ever collected.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window, functions as F

from topicproof.validators.aggregate import (
    AggregateTerms,
    actual_text,
    aggregate,
    is_equal,
    is_inexact,
    is_unreadable,
    number,
)
from topicproof.validators.circumstances import Circumstances
from topicproof.validators.decoded import undecoded
from topicproof.validators.expectation import (
    MOVEMENT,
    NO_NUMBER,
    PENDING,
    SEVERAL_SINKS,
    SEVERAL_SOURCES,
)
from topicproof.validators.expected import NUMBERED, record
from topicproof.validators.finding import Bounds
from topicproof.validators.ledger.counts import GroupCounts
from topicproof.validators.ledger.ledger import LedgerInput
from topicproof.validators.lineage.identity import Match
from topicproof.validators.offsets import between
from topicproof.validators.readings import keep

SINK_REMOVED, SOURCE_REMOVED, UNDECODABLE = "sink_removed", "source_removed", "undecodable"
"""Kinds that explain rows here; their modules look at a ledger."""
FOLDER = "groups"
"""In the ledger's folder, while it is judged: the groups with their numbers, which are payloads."""
MISSING, REMOVED, STRANGE, WRONG = "missing", "removed", "strange", "wrong"
"""What is wrong with a group, as `fault`: no output; a last output without a value; an output
without an input; another aggregate."""
NO_PREFIX, BACK = "no_prefix", "back"
"""What is wrong with an output, as `fault`: no first inputs of its group give it; it is older than
an output before it."""


def count_groups(ledger_input: LedgerInput, terms: AggregateTerms) -> GroupCounts:
    """Aggregates the inputs of each group, and joins them with its outputs."""
    inputs, outputs = _inputs(ledger_input, terms), _outputs(ledger_input, terms)
    sources, sinks = _of_source(inputs, terms), _of_sink(outputs, terms)
    groups = sources.join(sinks, "group", "full_outer")
    has_input, has_output = F.col("inputs").isNotNull(), F.col("outputs").isNotNull()
    is_due, is_removed = F.coalesce(F.col("due") > 0, F.lit(False)), F.col("is_removed")
    equal = F.lit(True)
    for at, _ in enumerate(terms.values):
        equal &= is_equal(F.col(f"expected_{at}"), F.col(f"actual_{at}"), terms)
    fault = (
        F.when(~has_input & (~is_removed | is_spread()), STRANGE)
        .when(~has_output & is_due, MISSING)
        .when(has_input & is_removed & is_due, REMOVED)
        .when(has_input & ~is_removed & (~equal | is_unclear()), WRONG)
    )
    groups = groups.withColumn("fault", fault)
    if ledger_input.range_read != ledger_input.question.source:
        groups = _without_late(groups, inputs, terms)
    groups = groups.withColumn("cause", _cause(ledger_input, terms))
    groups = keep(groups, f"{ledger_input.evidence}/{FOLDER}", ledger_input.offsets)
    figures = groups.agg(
        F.count_if(is_due).alias("due"),
        F.coalesce(F.sum("due"), F.lit(0)).alias("inputs"),
        F.coalesce(F.sum("outputs"), F.lit(0)).alias("outputs"),
        F.count("outputs").alias("in_sink"),
        F.count_if(has_input & has_output).alias("compared"),
        F.count("fault").alias("faults"),
    ).collect()[0]
    ungrouped = inputs.where(F.col("group").isNull() & F.col("is_due")).count()
    nameless = outputs.where(names_no_group()).count()
    return GroupCounts(
        due=figures["due"],
        inputs=figures["inputs"],
        ungrouped=ungrouped,
        outputs=figures["outputs"] + nameless,
        in_sink=figures["in_sink"],
        compared=figures["compared"],
        nameless=nameless,
        faults=figures["faults"],
        groups=groups,
        outputs_frame=outputs,
        inputs_frame=inputs,
    )


def _inputs(ledger_input: LedgerInput, terms: AggregateTerms) -> DataFrame:
    """Returns one row for each committed input, also of those that are not due: group,
    source_partition, source_offset, is_due, and for each value its text."""
    judged = ledger_input.question.source
    rows = record(ledger_input.records.inputs, judged)
    texts = (
        (F.lit(None) if value.of is None else F.expr(value.of)).cast("string").alias(f"text_{at}")
        for at, value in enumerate(terms.values)
    )
    rows = rows.select(
        F.expr(terms.group_by).cast("string").cast("binary").alias("group"),
        F.col(NUMBERED).alias("source_partition"),
        F.col("offset").alias("source_offset"),
        *texts,
    )
    is_due = between("source_partition", "source_offset", judged, "lso")
    return rows.withColumn("is_due", is_due)


def _outputs(ledger_input: LedgerInput, terms: AggregateTerms) -> DataFrame:
    """Returns one row for each committed record of the sink: group, partition, offset, is_removed
    (it has no value), reason (why it cannot be decoded), and for each value its text."""
    readings, has_fields = ledger_input.records, bool(ledger_input.question.agreed.sink_fields)
    rows = readings.committed
    if has_fields:
        # Only this reading is decoded.
        places = readings.committed.select("partition", "offset")
        rows = readings.uncommitted.join(places, ["partition", "offset"], "left_semi")
    return rows.select(
        Match(sink=terms.key).of_sink().alias("group"),
        "partition",
        "offset",
        F.col("value").isNull().alias("is_removed"),
        (undecoded() if has_fields else F.lit(None).cast("string")).alias("reason"),
        *(actual_text(value, terms).alias(f"actual_{at}") for at, value in enumerate(terms.values)),
    )


def _of_source(inputs: DataFrame, terms: AggregateTerms) -> DataFrame:
    """Aggregates each group over all inputs that were read."""
    values = list(enumerate(terms.values))
    expected = (
        aggregate(value, F.col(f"text_{at}"), terms).alias(f"expected_{at}") for at, value in values
    )
    # A sum beyond all digits is null, although its inputs are numbers.
    unreadable = F.lit(0).cast("long")
    for at, value in values:
        text = F.col(f"text_{at}")
        unreadable = unreadable + F.count_if(is_unreadable(value, text, terms))
        if value.of is not None:
            total, numbers = aggregate(value, text, terms), F.count(number(text, terms))
            unreadable = unreadable + F.when(total.isNull(), numbers).otherwise(F.lit(0))
    place = F.struct("source_partition", "source_offset")
    return (
        inputs.where(F.col("group").isNotNull())
        .groupBy("group")
        .agg(
            F.count("*").alias("inputs"),
            F.count_if("is_due").alias("due"),
            F.min(place).alias("first"),
            F.max(place).alias("last"),
            unreadable.alias("unreadable"),
            *expected,
        )
    )


def _of_sink(outputs: DataFrame, terms: AggregateTerms) -> DataFrame:
    """Returns the last output of each group, by partition and offset, and how many there are."""
    columns = ["partition", "offset", "is_removed", "reason"]
    columns += [f"actual_{at}" for at, _ in enumerate(terms.values)]
    last = (
        outputs.where(F.col("group").isNotNull())
        .groupBy("group")
        .agg(
            F.count("*").alias("outputs"),
            F.min("partition").alias("first_partition"),
            F.max(F.struct(*columns)).alias("output"),
        )
    )
    named = (F.col(f"output.{name}").alias(name) for name in columns)
    inexact = F.lit(False)
    for at, _ in enumerate(terms.values):
        inexact |= is_inexact(F.col(f"output.actual_{at}"), terms)
    return last.select("group", "outputs", "first_partition", *named, inexact.alias("is_inexact"))


def _without_late(groups: DataFrame, inputs: DataFrame, terms: AggregateTerms) -> DataFrame:
    """Clears the fault of groups whose output is right for some of the inputs that are not due, and
    for all that are. Several source partitions give no order, so such a group keeps it."""
    is_late = (F.col("fault") == WRONG) & (F.col("due") < F.col("inputs"))
    is_late &= ~is_unclear() & ~is_mixed(terms)
    late = groups.where(is_late)
    columns = ["group", "due", *(f"actual_{at}" for at, _ in enumerate(terms.values))]
    rows = prefixes(inputs, terms).join(late.select(*columns), "group")
    rows = rows.where((F.col("number") >= F.col("due")) & _is_prefix(terms))
    right = rows.select("group").distinct().withColumn("is_prefix", F.lit(True))
    groups = groups.join(right, "group", "left")
    is_right = is_late & F.col("is_prefix").isNotNull()
    return groups.withColumn("fault", F.when(~is_right, F.col("fault"))).drop("is_prefix")


def _is_prefix(terms: AggregateTerms) -> Column:
    equal = F.lit(True)
    for at, _ in enumerate(terms.values):
        equal &= is_equal(F.col(f"prefix_{at}"), F.col(f"actual_{at}"), terms)
    return equal


def prefixes(inputs: DataFrame, terms: AggregateTerms) -> DataFrame:
    """Returns the aggregates over the first inputs of each group, one row for each input: group,
    number (how many), and prefix_0, prefix_1, ..."""
    until = Window.partitionBy("group").orderBy("source_partition", "source_offset")
    until = until.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    rows = inputs.where(F.col("group").isNotNull())
    totals = {
        f"prefix_{at}": aggregate(value, F.col(f"text_{at}"), terms, until)
        for at, value in enumerate(terms.values)
    }
    rows = rows.withColumns({"number": F.row_number().over(until), **totals})
    return rows.select("group", "number", *totals)


def names_no_group() -> Column:
    """Whether an output says something of no group. Without group and value it says nothing: where
    the group stands in the value, each record without a value has neither."""
    return F.col("group").isNull() & ~F.col("is_removed")


def is_unclear() -> Column:
    """Whether nothing can be compared: an input or the output holds a number that no decimal holds,
    or no output is the last one."""
    unreadable = F.coalesce(F.col("unreadable") > 0, F.lit(False))
    return unreadable | F.coalesce(F.col("is_inexact"), F.lit(False)) | is_spread()


def is_spread() -> Column:
    """Whether a group has outputs in several partitions of the sink."""
    return F.coalesce(F.col("first_partition") < F.col("partition"), F.lit(False))


def is_mixed(terms: AggregateTerms) -> Column:
    """Whether the aggregate of some inputs of a group depends on an order that Kafka does not
    keep."""
    several = F.col("first.source_partition") < F.col("last.source_partition")
    return F.coalesce(several & F.lit(terms.needs_order), F.lit(False))


def _cause(ledger_input: LedgerInput, terms: AggregateTerms) -> Column:
    """Returns why nothing is certain of a group."""
    is_wrong = F.col("fault") == WRONG
    is_missing = F.col("fault").isin(MISSING, REMOVED)
    is_gone = is_missing | ((F.col("fault") == STRANGE) & F.col("is_removed"))
    is_late = is_wrong & (F.col("due") < F.col("inputs"))
    return (
        F.when(F.lit(bool(ledger_input.circumstances.source_removed)), SOURCE_REMOVED)
        .when(F.lit(has_undecoded(ledger_input)) | F.col("reason").isNotNull(), UNDECODABLE)
        .when(F.lit(is_pending(ledger_input)), PENDING)
        .when(is_wrong & ((F.col("unreadable") > 0) | F.col("is_inexact")), NO_NUMBER)
        .when((is_wrong | is_gone) & is_spread(), SEVERAL_SINKS)
        .when(is_missing & F.lit(has_lost_outputs(ledger_input)), SINK_REMOVED)
        .when(is_late & is_mixed(terms), SEVERAL_SOURCES)
        .when((is_missing | is_wrong) & F.lit(is_moving(ledger_input.circumstances)), MOVEMENT)
    )


def updates(counts: GroupCounts, terms: AggregateTerms) -> DataFrame:
    """Returns the committed outputs that no first inputs of their group give, or that are older
    than an output before them: group, partition, offset, reason, fault, most (of how many first
    inputs it may be), before (of how many an earlier output is), the texts of its values, and
    group_fault (what is wrong with the group, of whose outputs last_offset is the last).

    Several prefixes may have one aggregate, as a sum of which an input is 0. An output then stands
    for any of them, and only one that must be older than another is reported.
    """
    by = ["group", *(f"prefix_{at}" for at, _ in enumerate(terms.values))]
    steps = (
        prefixes(counts.inputs_frame, terms)
        .groupBy(*by)
        .agg(F.min("number").alias("least"), F.max("number").alias("most"))
        .withColumnRenamed("group", "of")
    )
    judged = counts.groups.where(~is_spread() & ~is_mixed(terms) & F.col("inputs").isNotNull())
    of_groups = judged.select(
        "group",
        "unreadable",
        F.col("fault").alias("group_fault"),
        F.col("offset").alias("last_offset"),
    )
    rows = counts.outputs_frame.join(of_groups, "group")
    same = F.col("group") == F.col("of")
    for at, value in enumerate(terms.values):
        prefix, text = F.col(f"prefix_{at}"), F.col(f"actual_{at}")
        # Equal numbers can be looked up; those within a tolerance are compared one by one.
        is_looked_up = not terms.tolerance or value.is_count
        if is_looked_up:
            same &= prefix.eqNullSafe(number(text, terms))
            same &= text.isNull() == prefix.isNull()
        else:
            same &= is_equal(prefix, text, terms)
    rows = rows.join(steps, same & ~F.col("is_removed"), "left")
    # Without a value, an output is of no input.
    least = F.when(F.col("is_removed"), F.lit(0)).otherwise(F.col("least"))
    most = F.when(F.col("is_removed"), F.lit(0)).otherwise(F.col("most"))
    rows = rows.withColumns({"least": least, "most": most})
    before = Window.partitionBy("group").orderBy("offset")
    before = before.rowsBetween(Window.unboundedPreceding, -1)
    rows = rows.withColumn("before", F.max("least").over(before))
    fault = F.when(F.col("most").isNull(), NO_PREFIX).when(F.col("most") < F.col("before"), BACK)
    return rows.withColumn("fault", fault).where(F.col("fault").isNotNull())


def has_undecoded(ledger_input: LedgerInput) -> bool:
    """Whether an input cannot be decoded, so that any group may have it."""
    if not ledger_input.question.agreed.source_fields:
        return False
    lost = ledger_input.records.inputs.where(undecoded().isNotNull())
    return bool(lost.select("offset").limit(1).collect())


def has_lost_outputs(ledger_input: LedgerInput) -> bool:
    """Whether retention has removed outputs. Compaction leaves the last one of each key."""
    return any(removed.below for removed in ledger_input.circumstances.sink_removed.values())


def is_pending(ledger_input: LedgerInput) -> bool:
    """Whether an open transaction may still change either side."""
    source, circumstances = ledger_input.question.source, ledger_input.circumstances
    return has_pending_inputs(source, circumstances) or any(
        partition.lso < partition.hw for partition in ledger_input.sink_bounds.partitions
    )


def has_pending_inputs(source: Bounds, circumstances: Circumstances) -> bool:
    stable = circumstances.source_lso
    return any(p.hw > stable.get(p.partition, p.hw) for p in source.partitions)


def is_moving(circumstances: Circumstances) -> bool:
    """Whether nothing tells what was due of topics that grow."""
    return circumstances.moving and not circumstances.due_told

"""Scenarios: topics, and stages between them. To add one, add a definition to SCENARIOS.

A stage is one streaming query with its own consumer group, transactional ids and checkpoint. A
scenario's topics follow from its stages. A source is only read, a sink is only written, and a topic
that is both lies between two stages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from confluent_kafka import Message
from pyspark.sql import Column, DataFrame, functions as F

from topicproof.backend.contracts.expressions import DECIMAL_TEXT, spark_sql
from topicproof.backend.errors import UsageError
from topicproof.backend.history.run_state import DEAD_LETTERS, StageVerdict
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.runs import totals, windows
from topicproof.backend.runs.download_limits import Limits
from topicproof.backend.sink.options import FORMAT
from topicproof.backend.sink.stateful import STATEFUL_FORMAT
from topicproof.backend.sink.table import DATABASE_FORMAT
from topicproof.validators.expected import Expect
from topicproof.validators.finding import Order

BIGINT_ROOT = 3_037_000_499
"""The largest number whose square is a bigint."""


@dataclass(frozen=True)
class Work:
    """Input of a stage besides its rows."""

    key: str | None = None
    """The plan's Spark SQL for the sink record's key, in the scenario yours. None: the source
    record's."""
    value: str | None = None
    """The same for its value."""
    deduplicate_s: int | None = None
    """Seconds of deduplication in the scenario totals. None: payments are not deduplicated."""
    limits: Limits = field(default_factory=Limits)
    """Limits of downloads in the scenario files."""
    topics: Mapping[str, str] = field(default_factory=dict)
    """Kafka's names of the scenario's topics, by their names in the scenario."""
    served: str = ""
    """URL of the demo files that the run serves, ending in a slash."""


@dataclass(frozen=True)
class Stage:
    """One streaming query: from sources through an expression into sinks."""

    name: str
    """Part of its group's name and of its transactional ids."""
    sources: tuple[str, ...]
    sinks: tuple[str, ...]
    """The first one takes all outputs without a topic name."""
    transform: Callable[[DataFrame, Work], DataFrame]
    """Turns rows of Spark's Kafka source into rows for the sink: one per input, as described in
    backend/sink/exactly_once.py."""
    expect: Expect = Expect.ONE_TO_ONE
    count: str | Callable[[DataFrame, Work], DataFrame | None] | None = None
    """Required outputs per input, for the judge (validators/expected.py). Either Spark SQL over the
    record, or a function from a reading of the sources to a frame of partition, offset and count.
    None from the function: one output each."""
    headers: bool = False
    """Whether its rows include the records' headers: null for a record without any."""
    format: str = FORMAT
    """Spark's name of the sink format."""

    @property
    def stateful(self) -> bool:
        """Whether it shuffles and keeps state in its checkpoint. Then batches do the fencing."""
        return self.format == STATEFUL_FORMAT

    @property
    def table(self) -> bool:
        """Whether its sink is a database table."""
        return self.format == DATABASE_FORMAT

    @property
    def order(self) -> Order:
        return Order.PER_KEY if self.stateful else Order.PER_SOURCE_PARTITION


@dataclass(frozen=True)
class Scenario:
    """A run's input, and the processing of each record."""

    name: str
    title: str
    """One line of description for the pages."""
    stages: tuple[Stage, ...]
    """In data-flow order."""
    value: Callable[[int, Work], bytes] | None = lambda number, _work: str(number).encode()
    """The value of record N that a run fills into each source, with N as text for its key. None:
    nothing is filled."""
    key: Callable[[int], bytes] | None = None
    """The key of record N, if it is not N. Then `number` is needed."""
    number: Callable[[Message], bytes | None] = lambda message: message.key()
    """Returns the N of a filled record, as text."""

    expect: Expect = Expect.ONE_TO_ONE
    count: str | None = None
    """Required outputs in the last sink per input of the first source, as in a stage. At most one
    of several stages may multiply records."""
    values: Callable[[Cluster, Mapping[str, str]], Mapping[str, StageVerdict]] | None = None
    """Compares the sinks' values with the sources', given Kafka's topic names by their names in the
    scenario. Returns `verdict` and `why` by sink. A wrong value breaks the run's verdict. None:
    values are not checked."""
    serves: bool = False
    """Whether the filled values are URLs of files that the run serves meanwhile."""
    expressions: bool = False
    """Whether the plan defines the processing of a record."""
    keyed: bool = False
    """Whether each filled record has a unique key, and its only output keeps that key."""

    @property
    def is_simple(self) -> bool:
        """Whether it has a single stage, which treats each record on its own and writes topics."""
        return [stage.format for stage in self.stages] == [FORMAT]

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(
            dict.fromkeys(
                topic for stage in self.stages for topic in (*stage.sources, *stage.sinks)
            )
        )

    @property
    def sources(self) -> tuple[str, ...]:
        written = {topic for stage in self.stages for topic in stage.sinks}
        return tuple(topic for topic in self.topics if topic not in written)

    @property
    def sinks(self) -> tuple[str, ...]:
        read = {topic for stage in self.stages for topic in stage.sources}
        return tuple(topic for topic in self.topics if topic not in read)

    @property
    def tables(self) -> tuple[str, ...]:
        """The sinks that are tables instead of topics."""
        return tuple(sink for stage in self.stages if stage.table for sink in stage.sinks)


def outputs(*structs: Column) -> Column:
    """Make an `outputs` column of structs from `output`."""
    return F.array(*structs).alias("outputs")


def output(key: Column, value: Column) -> Column:
    """Make one output; key and value are strings or bytes."""
    return F.struct(key.cast("binary").alias("key"), value.cast("binary").alias("value"))


def single(key: Column, value: Column) -> tuple[Column, Column]:
    """Return the output columns for exactly one output per input, which cost less than a list of
    one. Strings or bytes."""
    return key.cast("binary").alias("key"), value.cast("binary").alias("value")


def place() -> tuple[str, str, str]:
    """Return the columns that identify a row's input."""
    return "topic", "partition", "offset"


def _squared(rows: DataFrame, _work: Work) -> DataFrame:
    text = F.col("value").cast("string")
    # Java computes 10^600000000 for a text such as 1e-600000000, so only short exponents get there.
    short = F.regexp_extract(text, DECIMAL_TEXT, 0)
    number, wide = text.try_cast("bigint"), short.cast("decimal(19,0)")
    # decimal: the square of a 19-digit number fits, while bigint would overflow. Used only there,
    # because it is much slower.
    square = F.when(number.between(-BIGINT_ROOT, BIGINT_ROOT), (number * number).cast("string"))
    return rows.select(
        *place(), *single(F.col("key"), square.otherwise((wide * wide).cast("string")))
    )


SQUARES = Scenario(
    name="squares",
    title="Square every number: one output per input, ordered within a partition",
    stages=(Stage("square", sources=("numbers",), sinks=("squares",), transform=_squared),),
    keyed=True,
)


TABLE = Scenario(
    name="table",
    title="Square every number into a database table, together with the source offset",
    stages=(
        Stage(
            "square",
            sources=("numbers",),
            sinks=("squares",),
            transform=_squared,
            format=DATABASE_FORMAT,
        ),
    ),
)


def as_text(rows: DataFrame) -> DataFrame:
    """Cast key and value to text, byte for byte, for a plan's expressions."""
    return rows.withColumns({name: F.col(name).cast("string") for name in ("key", "value")})


def _evaluated(rows: DataFrame, work: Work) -> DataFrame:
    # Imported late: most plans have no expression.
    from topicproof.backend.contracts.expressions import spark_sql

    # Cast to text first: a number has no bytes of its own.
    key_and_value = (
        F.expr(spark_sql(text)).cast("string")
        for text in (work.key or "key", work.value or "value")
    )
    return as_text(rows).select(*place(), *single(*key_and_value))


def _downloaded(rows: DataFrame, work: Work) -> DataFrame:
    # Imported late: httpx is slow to import, and most runs download nothing.
    from topicproof.backend.runs.files import with_payments

    return with_payments(rows, work.limits, work.topics[f"{TRANSACTIONS}{DEAD_LETTERS}"])


def _counted_again(reading: DataFrame, work: Work) -> DataFrame:
    """Count the outputs by a second download and another parser."""
    from topicproof.backend.runs.files_again import counts

    inputs = reading.select("partition", "offset", "value").collect()
    output_counts = counts(work.limits, [row["value"] for row in inputs])
    counted = [
        (row["partition"], row["offset"], count)
        for row, count in zip(inputs, output_counts, strict=True)
    ]
    return reading.sparkSession.createDataFrame(counted, "partition int, offset long, count long")


def _url(number: int, work: Work) -> bytes:
    from topicproof.backend.runs.file_server import name

    return f"{work.served}{name(number)}".encode()


TRANSACTIONS = "transactions"

FILES = Scenario(
    name="files",
    title="Download the file behind every URL: one output per payment in it, or one dead letter",
    stages=(
        Stage(
            "download",
            sources=("files-with-transactions",),
            sinks=(TRANSACTIONS, f"{TRANSACTIONS}{DEAD_LETTERS}"),
            transform=_downloaded,
            expect=Expect.ONE_TO_MANY,
            count=_counted_again,
        ),
    ),
    value=_url,
    serves=True,
)


def _totalled(rows: DataFrame, work: Work) -> DataFrame:
    return totals.totals(rows, work.deduplicate_s)


TOTALS = Scenario(
    name="totals",
    title="Add up a running total per account: a stateful stage, whose state is its checkpoint",
    stages=(
        Stage(
            "total",
            sources=("payments",),
            sinks=("totals",),
            transform=_totalled,
            expect=Expect.ZERO_OR_ONE,
            count=lambda reading, work: totals.counts(reading, work.deduplicate_s),
            format=STATEFUL_FORMAT,
        ),
    ),
    value=lambda number, _work: totals.payment(number),
    key=totals.account,
    number=lambda message: totals.number(message.value()),
)


def _counted_up(rows: DataFrame, work: Work) -> DataFrame:
    structs = (
        output(F.col("account"), F.col(value)).withField("topic", F.lit(work.topics[topic]))
        for value, topic in (("event", windows.BY_EVENT_TIME), ("clock", windows.BY_CLOCK))
    )
    return windows.counts(rows).select(*place(), outputs(*structs))


WINDOWS = Scenario(
    name="windows",
    title="Count the payments of each account per minute: by event time, and by processing time",
    stages=(
        Stage(
            "count",
            sources=("payments",),
            sinks=(windows.BY_EVENT_TIME, windows.BY_CLOCK),
            transform=_counted_up,
            expect=Expect.ONE_TO_MANY,
            count="2",
            format=STATEFUL_FORMAT,
        ),
    ),
    value=TOTALS.value,
    key=TOTALS.key,
    number=TOTALS.number,
    values=windows.check_values,
)

_EVEN = spark_sql("cast(value as decimal(19,0)) % 2 = 0")


def _kept(rows: DataFrame, _work: Work) -> DataFrame:
    text_rows = as_text(rows)
    output_struct = output(F.col("key"), F.col("value"))
    # Rows are not filtered: an input without outputs is still an input, and its offset must be
    # committed.
    return text_rows.select(
        *place(), F.filter(F.array(output_struct), lambda _: F.expr(_EVEN)).alias("outputs")
    )


def _labelled(rows: DataFrame, _work: Work) -> DataFrame:
    label = F.to_json(
        F.struct(
            F.col("key").cast("string").alias("number"),
            F.col("value").cast("string").alias("square"),
        )
    )
    return rows.select(*place(), outputs(output(F.col("key"), label)))


CHAIN = Scenario(
    name="chain",
    title=(
        "Keep the even numbers, square them, label the squares: three stages through topics between"
    ),
    stages=(
        Stage(
            "keep",
            sources=("numbers",),
            sinks=("kept",),
            transform=_kept,
            expect=Expect.ZERO_OR_ONE,
            count=f"if({_EVEN}, 1, 0)",
        ),
        Stage("square", sources=("kept",), sinks=("squares",), transform=_squared),
        Stage("label", sources=("squares",), sinks=("labels",), transform=_labelled),
    ),
    expect=Expect.ZERO_OR_ONE,
    count=f"if({_EVEN}, 1, 0)",
)


def _booked(rows: DataFrame, work: Work) -> DataFrame:
    entry = F.concat_ws(" ", F.regexp_extract("topic", "[a-z]+$", 0), F.col("value").cast("string"))
    structs = (
        (output(F.col("key"), F.col("value"))).withField("topic", F.lit(work.topics["bookings"])),
        (output(F.col("key"), entry)).withField("topic", F.lit(work.topics["audit"])),
    )
    return rows.select(*place(), outputs(*structs))


MERGE = Scenario(
    name="merge",
    title="Book what two topics hold: one output to each of two sinks, in one transaction",
    stages=(
        Stage(
            "book",
            sources=("invoices", "payments"),
            sinks=("bookings", "audit"),
            transform=_booked,
            expect=Expect.ONE_TO_MANY,
            count="2",
        ),
    ),
)

YOURS = Scenario(
    name="yours",
    title="Your own topics, with Spark SQL expressions from a plan file",
    stages=(
        Stage("yours", sources=("source",), sinks=("sink",), transform=_evaluated, headers=True),
    ),
    value=None,
    expressions=True,
)

SCENARIOS = {
    scenario.name: scenario
    for scenario in (SQUARES, FILES, TOTALS, WINDOWS, CHAIN, MERGE, TABLE, YOURS)
}


def scenario(name: str) -> Scenario:
    """Return a scenario. Raises UsageError naming the known ones."""
    chosen = SCENARIOS.get(name)
    if chosen is None:
        raise UsageError(f"Unknown scenario {name!r}. Known: {', '.join(SCENARIOS)}.")
    return chosen

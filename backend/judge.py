"""From two topics to a report: bounds once, the readings, the raw log, the ledger, the verdict, the evidence.

Each stage is computed once and handed on; nothing after the readings asks Kafka again. Without payloads
in the evidence, readings are folded as they come and never kept, as long as nothing is odd.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import TypeAdapter
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from backend.errors import ClusterError, EvidenceError, SparkError
from backend.evidence.folded import keep_folded, read_folded
from backend.evidence.folder import REPORT as REPORT
from backend.evidence.folder import complete
from backend.evidence.manifest import Payloads
from backend.kafka import fates, rawlog
from backend.kafka.coordinator import ask_open_transactions
from backend.kafka.unstable import ask_unstable_offsets
from backend.pipeline.journal import Entry, TaskStarted, TransactionEnded, decode, encode
from backend.settings import READ_COMMITTED, spark_source_options
from backend.spark import first_line
from validators.agreed import Agreed
from validators.balance import BATCH_COLUMNS, TRANSACTION_COLUMNS, RawLog
from validators.coordinator import Coordinator
from validators.expected import Expect, Expected
from validators.finding import Bounds, Guarantee, Order, Witness
from validators.identity import Identity
from validators.joined import join, split
from validators.ledger import (
    DECLARED_COLUMNS,
    NOTHING_MORE,
    Declared,
    Ledger,
    ReadingsNeeded,
    SourceLog,
    build_ledger,
    content,
    proved_ledger,
)
from validators.packed import keep_packs, packs_in, unpacked
from validators.pieces import folded_pieces, words_of
from validators.polled import POLLED_COLUMNS, Polled
from validators.readings import COLUMNS, FEW_OFFSETS_MAX, frame_of, gathered, keep, read
from validators.report import Report, judge
from validators.sound import Folded, outcomes_of, spans_of
from validators.sound_log import sound_log

SETTLE_S = 3.0
SETTLE_STEP_S = 0.05
BYTES_AT_ONCE = 32 * 1024 * 1024
ROWS_AT_ONCE = 4_096
"""Spark's own default."""
ARROW_ROWS, ROWS_FOLDED_AT_ONCE = "spark.sql.execution.arrow.maxRecordsPerBatch", 60_000
"""Of what is folded, a record has neither key nor value: so many take some megabytes."""
EVIDENCE = "evidence"
COMMITTED, UNCOMMITTED, INPUTS = "sink-read_committed", "sink-read_uncommitted", "source-read_committed"
BATCHES, JOURNAL, COUNTS, TAKEN = "sink-raw_log.parquet", "journal.jsonl", "expected-counts", "taken.json"
PACKS, SOURCE_PACKS = "sink-packs", "source-packs"
SOURCE_BATCHES, ABORTED, POLLED = "source-raw_log.parquet", "source-aborted", "sink-polled.parquet"
VERSIONS = ("topicproof", "pyspark", "confluent-kafka", "kafka-python")


@dataclass(frozen=True)
class Question:
    """What is to be judged."""

    source: Bounds
    """The judged range of the source: an input counts from `start` to below `lso`."""
    sink: str
    also: tuple[str, ...] = ()
    """Further topics that the same outputs went to: judged as one with the sink (validators/joined.py)."""
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    identity: Identity = Identity.LINEAGE
    expected: Expected = field(default_factory=Expected)
    """How many outputs each input must have."""
    order: Order = Order.PER_SOURCE_PARTITION
    agreed: Agreed = NOTHING_MORE
    """What a contract says beyond these."""
    journal: Sequence[Entry] | None = None
    """What the run declared; None: there is no such witness."""
    polled: pa.Table | None = None
    """What a concurrent reader received, with `POLLED_COLUMNS`; None: there is no such witness."""
    sink_from: Mapping[int, int] = field(default_factory=dict)
    """Offsets of the sink before which nothing is judged, by partition."""
    run: str | None = None
    not_processed: int = 0
    """Inputs beyond the judged range."""


_HINTS = get_type_hints(Question)


class Readings(NamedTuple):
    """Kept ones."""

    committed: DataFrame
    uncommitted: DataFrame
    inputs: DataFrame


@dataclass(frozen=True)
class Taken:
    """All that a verdict rests on, taken from Kafka once."""

    question: Question
    sink: Bounds
    readings: Readings | Folded
    """Folded ones where nothing is odd and no payloads are kept."""
    batches: pa.Table | None
    """The sink's raw log; None: it has none, being no topic."""
    coordinator: Coordinator | None
    source_batches: pa.Table | None = None
    """The source's raw log; None: it was not read."""
    aborted: DataFrame | None = None
    """The aborted records of the source; None where its raw log shows none."""
    doubts: tuple[str, ...] = ()
    """Why the readings are not to be trusted, in clauses."""
    packs: Path | None = None
    """Where the sink's lineage is packed, the folder that says where (validators/packed.py)."""
    source_packs: Path | None = None
    """The same of the source's, where its records are outputs themselves."""

    @property
    def offsets(self) -> int:
        """Of source and sink together."""
        return self.sink.offsets + self.question.source.offsets

    @property
    def kept(self) -> Readings:
        """Raises EvidenceError where there are no records to look at."""
        if isinstance(self.readings, Folded):
            raise EvidenceError(
                f"The evidence on {self.question.sink} was kept without payloads, as sets of offsets only, and this "
                "needs the records. Judge the topics again with --payloads all."
            )
        return self.readings

    @property
    def committed(self) -> DataFrame:
        return self.kept.committed

    @property
    def uncommitted(self) -> DataFrame:
        return self.kept.uncommitted

    @property
    def inputs(self) -> DataFrame:
        return self.kept.inputs


def judge_topics(
    spark: SparkSession,
    bootstrap: str,
    client: Mapping[str, str],
    question: Question,
    folder: Path,
    papers: Mapping[str, Any] | None = None,
    payloads: Payloads = Payloads.ALL,
) -> Report:
    """Judge a sink topic against its source, and write `report.json` and the evidence into `folder`.

    `papers` go into the evidence as well, by file name: the plan, the contract. With `payloads` none the readings are
    not kept as long as nothing is odd, which takes less than half the time; else the evidence has them whole, and
    backend/evidence/copy.py takes out of it what is not wanted.
    Raises ClusterError, TopicError, SparkError, EvidenceError.
    """
    evidence = folder / EVIDENCE
    empty(evidence)
    if payloads is Payloads.NONE and _provable(question):
        try:
            return conclude(spark, take_folded(spark, bootstrap, client, question), folder, papers, payloads)
        except ReadingsNeeded:
            empty(evidence)
    return conclude(spark, take(spark, bootstrap, client, question, evidence), folder, papers)


def conclude(
    spark: SparkSession,
    taken: Taken,
    folder: Path,
    papers: Mapping[str, Any] | None = None,
    payloads: Payloads = Payloads.ALL,
) -> Report:
    """The report on what was taken, in `folder`; the readings are kept in its evidence already, if at all. `payloads`:
    what these have. Raises ReadingsNeeded where folded ones do not tell enough."""
    evidence = folder / EVIDENCE
    keep_taken(taken, evidence)
    report = judge_taken(spark, taken, evidence)
    complete(evidence, report, papers or {}, payloads)
    _write(folder / REPORT, report.to_json())
    return report


def _provable(question: Question) -> bool:
    """Whether what is asked can be proved from folded readings (validators/sound.py)."""
    simple = question.identity is Identity.LINEAGE and question.expected.count is None
    return simple and question.order is Order.PER_SOURCE_PARTITION and question.agreed.value is None


def take_folded(spark: SparkSession, bootstrap: str, client: Mapping[str, str], question: Question) -> Taken:
    """As `take`, but nothing is kept: Spark folds the records as they come. Raises ReadingsNeeded where that will not
    do, and as `take`."""
    sink = _sink_bounds(bootstrap, client, question)
    options = spark_source_options(bootstrap, client, READ_COMMITTED)
    offsets = sink.offsets + question.source.offsets
    source = read(spark, options, question.source, Witness.READ_COMMITTED)
    committed, uncommitted = (
        read(spark, options, sink, level) for level in (Witness.READ_COMMITTED, Witness.READ_UNCOMMITTED)
    )
    try:
        _suit(spark, offsets, folding=True)
        with ThreadPoolExecutor(3) as pool:
            batches = pool.submit(_scan, bootstrap, client, sink)
            source_batches = pool.submit(_scan, bootstrap, client, question.source)
            coordinator = pool.submit(_ask_coordinator, bootstrap, client, sink, question.source)
            # One job after the other: each has a task for every partition, and side by side they only contend.
            inputs = words_of(source, F.lit(0).cast("long"), offsets)
            log = sound_log(batches.result(), _transactions(batches.result(), sink), sink)
            if log is None or _has_aborted(source_batches.result(), question.source):
                raise ReadingsNeeded
            pieces = folded_pieces(uncommitted, content(), offsets, spans_of(log))
            seen = words_of(committed, content(), offsets)
    except PySparkException as error:
        raise SparkError(f"Spark could not read {question.sink}: {first_line(error)}") from error
    folded = Folded(seen, pieces, inputs)
    return Taken(question, sink, folded, batches.result(), coordinator.result(), source_batches.result())


def _sink_bounds(bootstrap: str, client: Mapping[str, str], question: Question) -> Bounds:
    topics = (question.sink, *question.also)
    return _from(join([settled_bounds(bootstrap, client, topic) for topic in topics]), question.sink_from)


def take(spark: SparkSession, bootstrap: str, client: Mapping[str, str], question: Question, evidence: Path) -> Taken:
    """Bounds first, then everything within them. The readings are kept in the folder `evidence`."""
    sink = _sink_bounds(bootstrap, client, question)
    options = spark_source_options(bootstrap, client, READ_COMMITTED)
    offsets = sink.offsets + question.source.offsets

    def reading(bounds: Bounds, level: Witness, name: str) -> DataFrame:
        return keep(read(spark, options, bounds, level), (evidence / name).as_uri(), offsets, COLUMNS)

    try:
        _suit(spark, offsets)
        with ThreadPoolExecutor(6) as pool:
            # All six at once: each waits for Kafka more than it computes.
            committed = pool.submit(reading, sink, Witness.READ_COMMITTED, COMMITTED)
            uncommitted = pool.submit(reading, sink, Witness.READ_UNCOMMITTED, UNCOMMITTED)
            inputs = pool.submit(reading, question.source, Witness.READ_COMMITTED, INPUTS)
            batches = pool.submit(_scan, bootstrap, client, sink)
            source_batches = pool.submit(_scan, bootstrap, client, question.source)
            coordinator = pool.submit(_ask_coordinator, bootstrap, client, sink, question.source)
        taken = Taken(
            *(question, sink, Readings(committed.result(), uncommitted.result(), inputs.result())),
            *(batches.result(), coordinator.result(), source_batches.result()),
            _aborted(spark, options, question.source, source_batches.result(), inputs.result(), evidence, offsets),
        )
        try:
            return _with_packs(taken, evidence)
        except OSError as error:
            raise EvidenceError(f"The evidence in {evidence} cannot be written: {error.strerror}.") from error
    except PySparkException as error:
        raise SparkError(f"Spark could not read {question.sink}: {first_line(error)}") from error


def judge_taken(spark: SparkSession, taken: Taken, evidence: Path) -> Report:
    """The verdict on what was taken, whether a moment ago or, from the evidence, long ago. Asks nobody but Spark; what
    is computed on the way is kept in the folder `evidence`. Raises SparkError; ReadingsNeeded as `conclude`."""
    question = taken.question
    try:
        return judge(
            ledger_of(spark, taken, evidence),
            question.guarantee,
            require=question.agreed.require,
            not_processed=question.not_processed,
            run=question.run,
            versions={name: version(name) for name in VERSIONS},
        )
    except PySparkException as error:
        raise SparkError(f"Spark could not judge {question.sink}: {first_line(error)}") from error


def ledger_of(spark: SparkSession, taken: Taken, evidence: Path) -> Ledger:
    """Everything that is judged of what was taken. Raises PySparkException; ReadingsNeeded as `conclude`."""
    question = taken.question
    if isinstance(taken.readings, Folded):
        return _proved(spark, taken, taken.readings, evidence)
    _suit(spark, taken.offsets)
    _narrow(spark, (taken.committed, taken.uncommitted, taken.inputs))
    inputs = taken.inputs
    if taken.source_packs is not None:
        # What wrote the inputs is asked of each of them.
        inputs = keep(unpacked(inputs, taken.source_packs), (evidence / "ledger" / "inputs").as_uri(), taken.offsets)
    return build_ledger(
        taken.committed,
        taken.uncommitted,
        inputs,
        taken.sink,
        question.source,
        (evidence / "ledger").as_uri(),
        raw_log=None if taken.batches is None else _raw_log(spark, taken.batches, taken.sink, taken.offsets),
        declared=None if question.journal is None else _declared(spark, question.journal),
        identity=question.identity,
        expected=question.expected,
        order=question.order,
        agreed=question.agreed,
        coordinator=taken.coordinator,
        source_log=None if taken.source_batches is None else SourceLog(taken.aborted),
        polled=None if question.polled is None else _polled(spark, question.polled),
        doubts=taken.doubts,
        packs=taken.packs,
    )


def _proved(spark: SparkSession, taken: Taken, folded: Folded, evidence: Path) -> Ledger:
    question = taken.question
    # No record is looked at any more, only batches and transactions.
    _suit(spark, 0)
    raw_log = None if taken.batches is None else _raw_log(spark, taken.batches, taken.sink, 0)
    log = None if raw_log is None else sound_log(*raw_log.tables, taken.sink)
    if raw_log is None or log is None:
        raise ReadingsNeeded
    return proved_ledger(
        *(spark, folded, log, raw_log, taken.sink, question.source, (evidence / "ledger").as_uri()),
        declared=None if question.journal is None else _declared(spark, question.journal),
        coordinator=taken.coordinator,
        expected=question.expected,
        agreed=question.agreed,
        source_log=None if taken.source_batches is None else SourceLog(taken.aborted),
        polled=None if question.polled is None else _polled(spark, question.polled),
        doubts=taken.doubts,
    )


def read_taken(spark: SparkSession, evidence: Path) -> Taken:
    """What `judge_topics` kept in the folder `evidence`. Raises EvidenceError when it cannot be read."""

    def reading(name: str) -> DataFrame:
        return _kept(spark, evidence / name, offsets)

    try:
        said = json.loads((evidence / TAKEN).read_bytes())
        asked = {name: TypeAdapter(_HINTS[name]).validate_python(value) for name, value in said["question"].items()}
        journal = evidence / JOURNAL
        if journal.exists():
            asked["journal"] = [decode(line) for line in journal.read_bytes().splitlines()]
        if (evidence / POLLED).exists():
            asked["polled"] = pq.read_table(evidence / POLLED)
        count = said["count"]
        if (evidence / COUNTS).exists():
            count = spark.read.parquet((evidence / COUNTS).as_uri())
        question = Question(**asked, expected=Expected(Expect(said["expect"]), count))
        sink = TypeAdapter(Bounds).validate_python(said["sink"])
        offsets = sink.offsets + question.source.offsets
        return Taken(
            question,
            sink,
            read_folded(evidence)
            if said.get("folded")
            else Readings(reading(COMMITTED), reading(UNCOMMITTED), reading(INPUTS)),
            pq.read_table(evidence / BATCHES) if said.get("raw_log", True) else None,
            TypeAdapter(Coordinator | None).validate_python(said["coordinator"]),
            pq.read_table(evidence / SOURCE_BATCHES) if (evidence / SOURCE_BATCHES).exists() else None,
            reading(ABORTED) if (evidence / ABORTED).exists() else None,
            tuple(said.get("doubts", ())),
            *((evidence / name if (evidence / name).exists() else None) for name in (PACKS, SOURCE_PACKS)),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EvidenceError(f"The evidence in {evidence} cannot be read: {first_line(error)}") from error


def keep_taken(taken: Taken, evidence: Path) -> None:
    """What is not a reading: the question, the bounds, the raw log, the coordinators' answers, the journal."""
    question, expected = taken.question, taken.question.expected
    said = {
        "question": {
            one.name: TypeAdapter(_HINTS[one.name]).dump_python(getattr(question, one.name), mode="json")
            for one in fields(Question)
            if one.name not in ("journal", "polled", "expected")
        },
        "expect": expected.kind,
        "count": expected.count if isinstance(expected.count, str) else None,
        "sink": asdict(taken.sink),
        "coordinator": asdict(taken.coordinator) if taken.coordinator else None,
        "raw_log": taken.batches is not None,
        "doubts": taken.doubts,
        "folded": isinstance(taken.readings, Folded),
    }
    _write(evidence / TAKEN, json.dumps(said, indent=2, ensure_ascii=False))
    if isinstance(expected.count, DataFrame):
        keep(expected.count, (evidence / COUNTS).as_uri(), taken.offsets)
    try:
        if isinstance(taken.readings, Folded):
            keep_folded(taken.readings, evidence)
        if taken.batches is not None:
            pq.write_table(taken.batches, evidence / BATCHES)
        if taken.source_batches is not None:
            pq.write_table(taken.source_batches, evidence / SOURCE_BATCHES)
        if question.polled is not None:
            pq.write_table(question.polled, evidence / POLLED)
        if question.journal is not None:
            (evidence / JOURNAL).write_bytes(b"".join(encode(entry) + b"\n" for entry in question.journal))
    except OSError as error:
        raise EvidenceError(f"The evidence in {evidence} cannot be written: {error.strerror}.") from error


def settled_bounds(bootstrap: str, client: Mapping[str, str], topic: str) -> Bounds:
    """The topic's bounds, taken anew for a moment as long as something is pending.

    A commit is answered before its markers are in the partitions, so bounds taken right after it may show offsets above
    the LSO that are about to settle. What is still open after `SETTLE_S` is an open transaction, and judged as such.
    """
    deadline = time.monotonic() + SETTLE_S
    while True:
        bounds = rawlog.fetch_bounds(bootstrap, client, topic)
        if all(p.lso == p.hw for p in bounds.partitions) or time.monotonic() > deadline:
            return bounds
        time.sleep(SETTLE_STEP_S)


def _suit(spark: SparkSession, offsets: int, folding: bool = False) -> None:
    """Let Spark interpret its expressions where compiling them would take longer than all the records do, and hand over
    more rows at once where these are folded."""
    if folding:
        spark.conf.set(ARROW_ROWS, ROWS_FOLDED_AT_ONCE)
    else:
        spark.conf.unset(ARROW_ROWS)
    small = offsets <= FEW_OFFSETS_MAX
    spark.conf.set("spark.sql.codegen.wholeStage", str(not small).lower())
    spark.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN" if small else "FALLBACK")
    if small:
        spark.conf.set("spark.sql.shuffle.partitions", "2")
    else:
        spark.conf.unset("spark.sql.shuffle.partitions")


def _narrow(spark: SparkSession, readings: Sequence[DataFrame]) -> None:
    """Let Spark take fewer rows into memory at once where they are large: 4,096 of 10 MB each end the server.

    How large says the footer of each file; one that is not on this machine is left to Spark's own measure."""
    places = {urlsplit(name) for reading in readings for name in reading.inputFiles()}
    files = [Path(unquote(place.path)) for place in places if place.scheme == "file"]
    largest = max(map(_row_bytes, files), default=0)
    rows = int(min(ROWS_AT_ONCE, max(1, BYTES_AT_ONCE // max(1, largest))))
    spark.conf.set("spark.sql.parquet.columnarReaderBatchSize", str(rows))


def _row_bytes(file: Path) -> int:
    """Of the group of rows with the largest ones, how large one is."""
    footer = pq.read_metadata(file)
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    return max((one.total_byte_size // one.num_rows for one in groups if one.num_rows), default=0)


def _ask_coordinator(bootstrap: str, client: Mapping[str, str], sink: Bounds, source: Bounds) -> Coordinator | None:
    """None where it is not heard: a client may read topics without the right to describe transactions and groups."""
    try:
        with rawlog.connect(bootstrap, client) as kafka:
            opened = tuple(
                replace(one, partition=first + one.partition)
                for own, first in split(sink)
                for one in ask_open_transactions(kafka, own.topic, own)
            )
            asked = [
                ask_unstable_offsets(kafka, own.topic, [p.partition for p in own.partitions])
                for own, _ in split(source)
            ]
    except ClusterError:
        return None
    unstable = tuple(one for _, found in asked for one in found)
    return Coordinator(len(sink.partitions), opened, sum(offsets for offsets, _ in asked), unstable)


def _scan(bootstrap: str, client: Mapping[str, str], sink: Bounds) -> pa.Table:
    """The raw log within the bounds."""
    found = []
    for own, first in split(sink):
        table = rawlog.scan(bootstrap, client, own.topic, own)
        place = table.schema.get_field_index("partition")
        numbered = pc.add(table.column("partition"), first).cast(table.schema.field(place).type)
        found.append(table.set_column(place, table.schema.field(place), numbered) if first else table)
    return pa.concat_tables(found)


def _aborted(
    spark: SparkSession,
    options: Mapping[str, str],
    source: Bounds,
    batches: pa.Table,
    inputs: DataFrame,
    evidence: Path,
    offsets: int,
) -> DataFrame | None:
    """The aborted records of the judged range, kept; None where the raw log shows no aborted transaction."""
    if not _has_aborted(batches, source):
        return None
    judged = replace(source, partitions=tuple(replace(p, hw=p.lso) for p in source.partitions))
    every = read(spark, options, judged, Witness.READ_UNCOMMITTED)
    lost = every.join(inputs.select("partition", "offset"), ["partition", "offset"], "left_anti")
    return keep(lost.select(*inputs.columns), (evidence / ABORTED).as_uri(), offsets)


def _has_aborted(batches: pa.Table, bounds: Bounds) -> bool:
    return bool((fates.transactions(batches, bounds)["outcome"] == "ABORTED").any())


def _with_packs(taken: Taken, evidence: Path) -> Taken:
    """The same, with where the packs lie, kept, where lineage is packed."""
    assert taken.batches is not None and taken.source_batches is not None
    with ThreadPoolExecutor(2) as pool:
        sink = pool.submit(_keep_packs, taken.uncommitted, evidence / UNCOMMITTED, taken.batches, evidence / PACKS)
        folder = evidence / SOURCE_PACKS
        source = pool.submit(_keep_packs, taken.inputs, evidence / INPUTS, taken.source_batches, folder)
    return replace(taken, packs=sink.result(), source_packs=source.result())


def with_headers(taken: Taken, folder: Path) -> Taken:
    """The same, with headers of its own for each record, kept in the folder; unchanged where no lineage is packed."""
    readings = {COMMITTED: taken.committed, UNCOMMITTED: taken.uncommitted, INPUTS: taken.inputs}
    _narrow(taken.inputs.sparkSession, list(readings.values()))
    for name, packs in ((COMMITTED, taken.packs), (UNCOMMITTED, taken.packs), (INPUTS, taken.source_packs)):
        if packs is not None:
            whole = unpacked(readings[name], packs)
            readings[name] = keep(whole, (folder / f"{name}-unpacked").as_uri(), taken.offsets, COLUMNS)
    return replace(taken, readings=Readings(*readings.values()), packs=None, source_packs=None)


def _keep_packs(reading: DataFrame, kept: Path, batches: pa.Table, folder: Path) -> Path | None:
    """Where it is said where the packs lie; None where there are none. They lie in transactions, so that other topics
    need not be looked at."""
    if not pc.any(batches["transactional"]).as_py() or not packs_in(kept):
        return None
    return folder if keep_packs(reading, batches, folder) else None


def _kept(spark: SparkSession, reading: Path, offsets: int) -> DataFrame:
    return gathered(spark.read.schema(COLUMNS).parquet(reading.as_uri()), offsets)


def _transactions(batches: pa.Table, bounds: Bounds) -> pa.Table:
    names = [column.split()[0] for column in TRANSACTION_COLUMNS.split(", ")]
    return pa.Table.from_pandas(fates.transactions(batches, bounds)[names], preserve_index=False)


def _raw_log(spark: SparkSession, batches: pa.Table, bounds: Bounds, offsets: int) -> RawLog:
    transactions = _transactions(batches, bounds)
    both = frame_of(spark, batches, BATCH_COLUMNS), frame_of(spark, transactions, TRANSACTION_COLUMNS)
    frames = [gathered(one, offsets) for one in both]
    return RawLog(frames[0], frames[1], (batches, transactions))


def _declared(spark: SparkSession, journal: Sequence[Entry]) -> Declared:
    ended = [entry for entry in journal if isinstance(entry, TransactionEnded)]
    columns = ("transactional_id", "sequence", "attempt", "task", "outcome", "reason")
    rows = [tuple(getattr(entry, name) for name in columns) for entry in ended]
    started = [entry for entry in journal if isinstance(entry, TaskStarted)]
    rows += [(entry.transactional_id, entry.sequence, 0, entry.task, "STARTED", "") for entry in started]
    table = pa.table(dict(zip(columns, zip(*rows, strict=True), strict=True))) if rows else None
    ids = frozenset(row[0] for row in rows)
    return Declared(frame_of(spark, table, DECLARED_COLUMNS), len(rows), ids, outcomes_of(rows))


def _polled(spark: SparkSession, table: pa.Table) -> Polled:
    widths = pc.subtract(table["last_offset"], table["first_offset"])
    records = (pc.sum(widths).as_py() or 0) + table.num_rows
    return Polled(frame_of(spark, table, POLLED_COLUMNS), records)


def _from(bounds: Bounds, first: Mapping[int, int]) -> Bounds:
    return replace(
        bounds,
        partitions=tuple(replace(p, start=max(p.start, first.get(p.partition, p.start))) for p in bounds.partitions),
    )


def empty(folder: Path) -> None:
    try:
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
    except OSError as error:
        raise EvidenceError(f"The evidence folder {folder} cannot be written: {error.strerror}.") from error


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise EvidenceError(f"{path} cannot be written: {error.strerror}.") from error

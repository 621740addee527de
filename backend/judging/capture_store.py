"""The capture that answers a question about two topics. The evidence folder keeps both, so the
capture can be judged again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import NamedTuple, get_type_hints

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import TypeAdapter
from pyspark.sql import DataFrame, SparkSession

from topicproof.backend.characters import visible
from topicproof.backend.contracts.expression_fields import is_of_fields
from topicproof.backend.contracts.expression_tree import parse
from topicproof.backend.contracts.expressions import require_little_of_stored, stored_sql
from topicproof.backend.contracts.plan_lock import plan_fault, planned_frame
from topicproof.backend.errors import EvidenceError, PackedLineage
from topicproof.backend.evidence.folded import keep_folded, read_folded
from topicproof.backend.evidence.read_limits import (
    OFFSETS_MAX,
    TEXT_BYTES_MAX,
    read_json,
    read_json_text,
    read_lines,
    read_table,
    require_inside,
    require_length,
    require_rows,
)
from topicproof.backend.formats.fields import KnownSchemas
from topicproof.backend.sink.entries import Entry, decode, encode
from topicproof.backend.storage import forget, keep_in, sent
from topicproof.backend.yaml_fields import is_topic_name
from topicproof.validators.circumstances import NO_CIRCUMSTANCES, Circumstances
from topicproof.validators.columns import COLUMN, COLUMNS_MAX, is_type
from topicproof.validators.coordinator import NO_ATTRIBUTION, Attribution, Coordinator
from topicproof.validators.decoded import KEY_FIELD, VALUE_FIELD, parse_field, path_of
from topicproof.validators.expected import Expect, Expected
from topicproof.validators.facts.log_facts import BATCH_COLUMNS
from topicproof.validators.finding import Bounds, Origin
from topicproof.validators.folded.fold import Folded
from topicproof.validators.json_path import parse_path
from topicproof.validators.lineage.headers import INT_MAX, LONG_MAX
from topicproof.validators.offsets import PARTITIONS_FREE, require_dense
from topicproof.validators.polled import POLLED_COLUMNS
from topicproof.validators.question import Question
from topicproof.validators.readings import COLUMNS, Readings, gathered
from topicproof.validators.spark_errors import first_line

COMMITTED, UNCOMMITTED, INPUTS = (
    "sink-read_committed",
    "sink-read_uncommitted",
    "source-read_committed",
)
BATCHES, JOURNAL, COUNTS, TAKEN = (
    "sink-raw_log.parquet",
    "journal.jsonl",
    "expected-counts",
    "taken.json",
)
PACKS = "sink-packs", "source-packs"
"""Folders of earlier versions, written if the lineage was packed."""
SOURCE_BATCHES, ABORTED, POLLED = "source-raw_log.parquet", "source-aborted", "sink-polled.parquet"
PENDING = "source-pending"
POLLED_NAMES, BATCH_NAMES = (
    frozenset(column.split()[0] for column in columns.split(", "))
    for columns in (POLLED_COLUMNS, BATCH_COLUMNS)
)
BATCH_OFFSETS_MAX = 20_000_000
"""A record takes 7 bytes at least, and a batch at most 48 MiB (backend/kafka/log/batches.py)."""
COUNT_COLUMNS = "partition int, offset long, count long"
SCHEMAS = "schemas.json"
TABLE_NAME_MAX = 249
"""Characters of a table's name: as many as Kafka gives a topic."""


_HINTS = get_type_hints(Question)
UNWRITTEN = ("expected", "origins")
"""Parts of a question that the evidence has elsewhere."""


class RunAccounts(NamedTuple):
    """What a run recorded of itself; None for a witness that it did not have."""

    journal: Sequence[Entry] | None = None
    """The declarations of its workers."""
    polled: pa.Table | None = None
    """Records received by a concurrent reader, as `POLLED_COLUMNS`."""


NOTHING_RECORDED = RunAccounts()


@dataclass(frozen=True)
class Capture:
    """Everything a verdict rests on, read from Kafka once."""

    question: Question
    sink: Bounds
    readings: Readings | Folded
    """Folded if nothing is irregular and no payloads are kept."""
    batches: pa.Table | None
    """The sink's raw log; None if the sink is not a topic."""
    coordinator: Coordinator | None
    source_batches: pa.Table | None = None
    """The source's raw log; None if it was not read."""
    aborted: DataFrame | None = None
    """The aborted records of the source; None if its raw log shows none."""
    doubts: tuple[str, ...] = ()
    """Reasons not to trust the readings, as clauses."""
    circumstances: Circumstances = NO_CIRCUMSTANCES
    pending: DataFrame | None = None
    """The pending records of the source, if records are matched by key; None without any."""
    origin: Origin | None = None
    """Kafka's ids of the cluster and the topics."""
    notes: tuple[str, ...] = ()
    """Sentences for readers of the report."""
    schemas: KnownSchemas | None = None
    """The schemas of the records, if the question names fields of them."""
    source_origin: Origin | None = None
    """The ids of the source's cluster, if it is another one; `origin` is then the sink's."""
    run_accounts: RunAccounts = NOTHING_RECORDED
    attribution: Attribution = NO_ATTRIBUTION
    """Who wrote the sink's transactions; empty for our own runs, whose records name them."""

    @property
    def offsets(self) -> int:
        """Number of offsets in source and sink together."""
        return self.sink.offsets + self.question.source.offsets

    @property
    def kept(self) -> Readings:
        """The readings with their records. Raises EvidenceError if they are folded."""
        if isinstance(self.readings, Folded):
            raise EvidenceError(
                f"The evidence on {self.question.sink} was kept without payloads, as sets of"
                " offsets only, and this needs the records. Judge the topics again with --payloads"
                " all."
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


def keep_capture(capture: Capture, evidence: Path) -> None:
    """Keep everything but the readings: question, bounds, raw logs, coordinators' answers,
    journal."""
    question, expected = capture.question, capture.question.expected
    journal, polled = capture.run_accounts
    document = {
        "question": {
            question_field.name: (
                TypeAdapter(_HINTS[question_field.name]).dump_python(
                    getattr(question, question_field.name), mode="json"
                )
            )
            for question_field in fields(Question)
            if question_field.name not in UNWRITTEN
        },
        "expect": expected.kind,
        "count": expected.count if isinstance(expected.count, str) else None,
        "sink": asdict(capture.sink),
        "circumstances": TypeAdapter(Circumstances).dump_python(capture.circumstances, mode="json"),
        "coordinator": asdict(capture.coordinator) if capture.coordinator else None,
        "attribution": TypeAdapter(Attribution).dump_python(capture.attribution, mode="json"),
        "raw_log": capture.batches is not None,
        "doubts": capture.doubts,
        "folded": isinstance(capture.readings, Folded),
        "origin": asdict(capture.origin) if capture.origin else None,
        "source_origin": asdict(capture.source_origin) if capture.source_origin else None,
        "notes": capture.notes,
    }
    write_text(evidence / TAKEN, json.dumps(document, indent=2, ensure_ascii=False))
    if capture.schemas is not None:
        write_text(evidence / SCHEMAS, capture.schemas.to_json())
    if isinstance(expected.count, DataFrame):
        keep_in(expected.count, evidence / COUNTS, capture.offsets)
    try:
        if isinstance(capture.readings, Folded):
            keep_folded(capture.readings, evidence)
        if capture.batches is not None:
            pq.write_table(capture.batches, evidence / BATCHES)
        if capture.source_batches is not None:
            pq.write_table(capture.source_batches, evidence / SOURCE_BATCHES)
        if polled is not None:
            pq.write_table(polled, evidence / POLLED)
        if journal is not None:
            (evidence / JOURNAL).write_bytes(b"".join(encode(entry) + b"\n" for entry in journal))
    except OSError as error:
        raise EvidenceError(
            f"The evidence in {evidence} cannot be written: {error.strerror}."
        ) from error


def read_capture(spark: SparkSession, evidence: Path) -> Capture:
    """Read the capture in a folder of evidence, which may be hostile
    (backend/evidence/read_limits.py). Raises EvidenceError if it cannot be read or is refused;
    PackedLineage."""

    def reading(name: str, bounds: Bounds) -> DataFrame:
        require_rows(evidence / name, bounds.offsets)
        return _kept(spark, evidence / name, offsets)

    if any((evidence / folder).exists() for folder in PACKS):
        raise PackedLineage(evidence)
    try:
        require_inside(evidence)
        document = read_json(evidence / TAKEN)
        question_fields = {
            name: TypeAdapter(_HINTS[name]).validate_python(value)
            for name, value in document["question"].items()
        }
        journal, polled = evidence / JOURNAL, evidence / POLLED
        run_accounts = RunAccounts(
            journal=[decode(line) for line in read_lines(journal)] if journal.exists() else None,
            polled=read_table(polled, POLLED_NAMES) if polled.exists() else None,
        )
        count = document["count"]
        if (evidence / COUNTS).exists():
            count = spark.read.schema(COUNT_COLUMNS).parquet(sent(spark, evidence / COUNTS))
        question = Question(**question_fields, expected=Expected(Expect(document["expect"]), count))
        sink = TypeAdapter(Bounds).validate_python(document["sink"])
        schemas = (
            KnownSchemas.from_json(read_json_text(evidence / SCHEMAS))
            if (evidence / SCHEMAS).exists()
            else None
        )
        question = _judgeable(spark, evidence, question, sink)
        origins = [
            TypeAdapter(Origin | None).validate_python(document.get(name))
            for name in ("origin", "source_origin")
        ]
        _require_names(evidence, question, sink, origins, is_topic=document.get("raw_log", True))
        circumstances = TypeAdapter(Circumstances).validate_python(
            document.get("circumstances", {})
        )
        coordinator = TypeAdapter(Coordinator | None).validate_python(document["coordinator"])
        attribution = TypeAdapter(Attribution).validate_python(document.get("attribution", {}))
        _require_partitions(question, sink, circumstances, coordinator, attribution)
        offsets = sink.offsets + question.source.offsets
        return Capture(
            question,
            sink,
            (
                read_folded(evidence)
                if document.get("folded")
                else Readings(
                    reading(COMMITTED, sink),
                    reading(UNCOMMITTED, sink),
                    reading(INPUTS, question.source),
                )
            ),
            _batches(evidence / BATCHES) if document.get("raw_log", True) else None,
            coordinator,
            _batches(evidence / SOURCE_BATCHES) if (evidence / SOURCE_BATCHES).exists() else None,
            reading(ABORTED, question.source) if (evidence / ABORTED).exists() else None,
            tuple(document.get("doubts", ())),
            circumstances,
            reading(PENDING, question.source) if (evidence / PENDING).exists() else None,
            # Evidence of earlier versions has none of these.
            origin=origins[0],
            notes=tuple(document.get("notes", ())),
            schemas=schemas,
            source_origin=origins[1],
            run_accounts=run_accounts,
            attribution=attribution,
        )
    except (
        *(OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError),
        *(ArithmeticError, pa.ArrowException),
    ) as error:
        raise EvidenceError(
            f"The evidence in {evidence} cannot be read: {first_line(error)}"
        ) from error


def _judgeable(spark: SparkSession, evidence: Path, question: Question, sink: Bounds) -> Question:
    """Check a question from elsewhere as a contract is checked, and return it with its expressions
    written again. Spark runs what an expression names, so one that no contract may hold is never
    handed to it. Raises EvidenceError."""

    def rewritten(name: str, text: str) -> str:
        try:
            return stored_sql(text)
        except ValueError as error:
            raise EvidenceError(f"{evidence / TAKEN}: {name} is not evaluated: {error}.") from error

    value, count = question.agreed.value, question.expected.count
    if value is not None:
        value = rewritten("value", value)
    if isinstance(count, str):
        count = rewritten("count", count)
    aggregate = question.agreed.aggregate
    if aggregate is not None:
        aggregate = aggregate.rewritten(rewritten)
        try:
            require_little_of_stored(aggregate.expressions)
        except ValueError as error:
            raise EvidenceError(f"{evidence / TAKEN}: it is not evaluated: {error}.") from error
    if question.agreed.compared and value is not None and not is_of_fields(value):
        raise EvidenceError(
            f"{evidence / TAKEN}: value is not evaluated: it gives no text for each field."
        )
    question = replace(
        question,
        agreed=replace(question.agreed, value=value, aggregate=aggregate),
        expected=replace(question.expected, count=count),
    )
    letters = question.agreed.letters
    if letters is not None and not (
        question.also[-1:] == (letters.topic,) == tuple(part.topic for part in sink.parts[-1:])
    ):
        raise EvidenceError(f"{evidence / TAKEN}: the dead letters are no topic of the sink's.")
    of_letters = () if letters is None or letters.headers is not None else (letters.origin,)
    of_groups = () if aggregate is None else (aggregate.key, *aggregate.fields)
    match = question.agreed.match
    for side in (match.source, match.sink, *of_letters, *of_groups):
        how, _, name_or_path = side.partition(":")
        if how == "json":
            parse_path(name_or_path)
        elif how in (VALUE_FIELD, KEY_FIELD):
            parse_field(name_or_path)
        elif how not in ("header", COLUMN) and side not in ("key", "value"):
            raise EvidenceError(f"{evidence / TAKEN}: {side[:80]!r} names no identity.")
    table = question.agreed.table
    types = {} if table is None else table.types
    if len(types) > COLUMNS_MAX or not all(map(is_type, types.values())):
        raise EvidenceError(f"{evidence / TAKEN}: a column has a type that no table has.")
    if table is not None and not set(types) >= set(map(path_of, question.agreed.compared)):
        raise EvidenceError(f"{evidence / TAKEN}: a compared column has no type.")
    for bounds in (question.source, sink):
        for partition_bounds in bounds.partitions:
            offsets = (partition_bounds.start, partition_bounds.lso, partition_bounds.hw)
            if not 0 <= partition_bounds.partition <= INT_MAX or not all(
                0 <= at <= LONG_MAX for at in offsets
            ):
                raise EvidenceError(
                    f"{evidence / TAKEN}: {bounds.topic} has a partition or an offset that Kafka"
                    " does not have."
                )
        if bounds.offsets > OFFSETS_MAX:
            raise EvidenceError(
                f"{evidence / TAKEN}: the range of {bounds.topic} has {bounds.offsets:,} offsets;"
                f" {OFFSETS_MAX:,} are allowed."
            )
    texts: dict[str, str | None] = {"value": value}
    texts["count"] = count if isinstance(count, str) else None
    of_aggregate = () if aggregate is None else aggregate.expressions
    texts |= {f"aggregate {number}": part for number, part in enumerate(of_aggregate)}
    for name, text in texts.items():
        if text is None:
            continue
        frame = planned_frame(spark, question.agreed.source_fields)
        if (fault := plan_fault(frame, parse(text))) is not None:
            raise EvidenceError(
                f"{evidence / TAKEN}: {name} is not evaluated: Spark's plan of it has {fault}."
            )
    return question


def _require_partitions(
    question: Question,
    sink: Bounds,
    circumstances: Circumstances,
    coordinator: Coordinator | None,
    attribution: Attribution,
) -> None:
    """Refuse partitions that are not those of the bounds, and numbers that no whole topic has: one
    number decides how much memory a column of partitions takes. Raises ValueError with what is
    wrong, as a clause."""
    of_source, of_sink = ({p.partition for p in b.partitions} for b in (question.source, sink))
    # A group has offsets of partitions that were added after the bounds were taken, and the whole
    # of several stages has the terms of its last one.
    terms = (question.sink_from, question.due, question.agreed.offsets, circumstances.offsets_after)
    for partitions in (of_source, of_sink, *terms):
        require_dense(partitions or ())
    incarnations = circumstances.incarnations
    # Each of them is a column of its own.
    places = sum(max(incarnation.ends, default=0) + 1 for incarnation in incarnations)
    if places > 2 * sum(len(incarnation.ends) for incarnation in incarnations) + PARTITIONS_FREE:
        raise ValueError(f"it has {len(incarnations):,} earlier topics, each of many partitions")
    opened = coordinator.open if coordinator else ()
    partitions_by_name: dict[str, tuple[Iterable[int], set[int]]] = {
        "the source's removed records": (circumstances.source_removed, of_source),
        "the source's last stable offsets": (circumstances.source_lso, of_source),
        "the sink's removed records": (circumstances.sink_removed, of_sink),
        "earlier topics": ([p for each in incarnations for p in each.ends], of_sink),
        "open transactions": ([each.partition for each in opened], of_sink),
        "aborted transactions": ([each.partition for each in attribution.reasons], of_sink),
    }
    for name, (numbers, of_topic) in partitions_by_name.items():
        if strange := set(numbers) - of_topic:
            raise ValueError(f"{name} are of partition {min(strange)}, which has no bounds")


def _batches(path: Path) -> pa.Table:
    """Read a raw log. Raises as `read_table`, and ValueError for a batch that no broker takes:
    Spark makes an array of its offsets."""
    table = read_table(path, BATCH_NAMES)
    if {"base_offset", "last_offset"} <= set(table.column_names):
        spans = pc.subtract_checked(table["last_offset"], table["base_offset"])
        least, most = pc.min_max(spans).as_py().values()
        if least is not None and not -1 <= least <= most < BATCH_OFFSETS_MAX:
            raise ValueError(f"a batch of {path.name} has more offsets than a broker takes")
    return table


def _require_names(
    evidence: Path,
    question: Question,
    sink: Bounds,
    origins: Sequence[Origin | None],
    *,
    is_topic: bool,
) -> None:
    """Refuse names that Kafka gives no topic: people read them beside a verdict. `is_topic`: the
    sink is no table, whose name may be any text that can be seen. Raises EvidenceError."""
    sources, sinks = _names(question.source), {*_names(sink), question.sink, *question.also}
    topics = sources | {name for origin in origins if origin is not None for name in origin.topics}
    for name in sorted(topics | sinks):
        allowed = (name in sinks and name not in topics and not is_topic) and (
            0 < len(name) <= TABLE_NAME_MAX and visible(name) == name
        )
        if not allowed and not is_topic_name(name):
            raise EvidenceError(
                f"{evidence / TAKEN}: '{visible(name[:TABLE_NAME_MAX])}' is no name of a topic."
            )


def _names(bounds: Bounds) -> set[str]:
    """Return the topics of bounds. Several have their names in one."""
    names = [part.topic for part in bounds.parts]
    return {*names} if names and bounds.topic == " + ".join(names) else {bounds.topic, *names}


def _kept(spark: SparkSession, reading: Path, offsets: int) -> DataFrame:
    return gathered(spark.read.schema(COLUMNS).parquet(sent(spark, reading)), offsets)


def empty(spark: SparkSession, folder: Path) -> None:
    """Make an empty folder, here and where Spark writes it. Raises EvidenceError."""
    forget(spark, folder)
    try:
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
    except OSError as error:
        raise EvidenceError(
            f"The evidence folder {folder} cannot be written: {error.strerror}."
        ) from error


def write_text(path: Path, text: str) -> None:
    """Write a text of evidence. Raises EvidenceError, also for one that nobody could read again."""
    data = f"{text}\n".encode()
    require_length(path, len(data), TEXT_BYTES_MAX)
    try:
        path.write_bytes(data)
    except OSError as error:
        raise EvidenceError(f"{path} cannot be written: {error.strerror}.") from error

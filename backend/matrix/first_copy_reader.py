"""A finished run's sink, for a reader that keeps only the first record of every lineage.

Lineage is the header that our sink writes (validators/lineage/headers.py). Records without it are
kept. The same validators judge what the reader keeps, as exactly-once. They do not use the raw log,
which also counts dropped records.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, Window, functions as F

from topicproof.backend.evidence.folder import EVIDENCE
from topicproof.backend.judging.capture_store import read_capture
from topicproof.backend.judging.table_check import REQUIRED
from topicproof.backend.services.spark_session import spark_session
from topicproof.validators.finding import Guarantee
from topicproof.validators.judge import judge
from topicproof.validators.ledger.build import build_ledger
from topicproof.validators.ledger.ledger import LedgerInput
from topicproof.validators.lineage.header_columns import LINEAGE_TEXT, with_lineage_text
from topicproof.validators.question import Question
from topicproof.validators.readings import Readings, keep
from topicproof.validators.report import Report


def judge_deduplicated(spark_remote: str, folder: Path) -> Report:
    """Judge a run from the evidence in its folder. Raises EvidenceError, SparkError."""
    with spark_session(spark_remote) as spark:
        capture = read_capture(spark, folder / EVIDENCE)
        deduplicated = keep(
            first_of_each(capture.committed),
            (folder / "deduplicated" / "sink").as_uri(),
            capture.offsets,
        )
        question = capture.question
        ledger = build_ledger(
            LedgerInput(
                spark,
                Question(
                    question.source, question.sink, expected=question.expected, order=question.order
                ),
                sink_bounds=capture.sink,
                readings=Readings(deduplicated, deduplicated, capture.inputs),
                evidence=(folder / "deduplicated" / "ledger").as_uri(),
            )
        )
        return judge(ledger, Guarantee.EXACTLY_ONCE, require=REQUIRED)


def first_of_each(reading: DataFrame) -> DataFrame:
    """Return the first record of every lineage in each partition, by offset."""
    line = F.coalesce(LINEAGE_TEXT, F.col("offset").cast("string"))
    turn = F.row_number().over(Window.partitionBy("partition", line).orderBy("offset"))
    numbered = with_lineage_text(reading).withColumn("copy", turn)
    return numbered.where("copy = 1").select(*reading.columns)

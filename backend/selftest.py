"""The chain tests itself on a verdict's own evidence: what is injected into copies of the readings must be caught."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from backend.errors import SelfTestError, SparkError
from backend.judge import EVIDENCE, REPORT, judge_taken, read_taken
from backend.spark import first_line
from validators.readings import keep
from validators.report import Report
from validators.selftest import Caught, choose, compare, inject

SCRATCH = "self-test"


def self_test(spark: SparkSession, folder: Path) -> tuple[Caught, ...]:
    """What was caught of each injection, for the report and the evidence in `folder`; which stay as they are.

    Raises SelfTestError when there is nothing to inject into, or when an injection is not found exactly once;
    EvidenceError, SparkError.
    """
    evidence, scratch = folder / EVIDENCE, folder / SCRATCH
    taken = read_taken(spark, evidence)
    before = Report.from_json((folder / REPORT).read_text(encoding="utf-8"))
    try:
        injection = choose(spark.read.parquet((evidence / "ledger" / "sink").as_uri()))
        if injection is None:
            raise SelfTestError(
                f"Nothing to inject into: no transaction of {taken.question.sink} holds four committed outputs."
            )
        copies = replace(
            taken,
            committed=keep(inject(taken.committed, injection), (scratch / "committed").as_uri()),
            uncommitted=keep(inject(taken.uncommitted, injection), (scratch / "uncommitted").as_uri()),
        )
        caught = compare(before, judge_taken(spark, copies, scratch), injection)
    except PySparkException as error:
        raise SparkError(f"The self-test failed: {first_line(error)}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    missed = [one for one in caught if one.found != 1]
    if missed:
        said = ", ".join(f"{one.kind} {one.found} times" for one in missed)
        raise SelfTestError(f"The self-test failed: one of each was injected, and found was {said}. Trust no verdict.")
    return caught

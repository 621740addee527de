"""The second lock: what Spark's analyser has made of an expression is looked at before it runs.

The first lock (expressions.py) decides by our own tree. If the two disagree on what a text means,
this one notices: a query, another source than the record, a time of the moment, or a random value
shows in Spark's plan.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession, functions as F

from topicproof.backend.contracts.expression_functions import LITERALS, PATTERNS
from topicproof.backend.contracts.expression_tree import Call, Node, Operation, Text, to_sql
from topicproof.validators.decoded import DECODED, decoded_type
from topicproof.validators.expected import record
from topicproof.validators.finding import Bounds
from topicproof.validators.readings import COLUMNS
from topicproof.validators.spark_plans import explained_plan

_OPERATORS = frozenset({"Project", "LocalRelation", "SubqueryAlias"})
"""Nodes of the plan of an expression over an empty frame."""
_REFUSED = re.compile(
    r"(scalar-subquery#|exists#|list#|outer\(|_metadata|current_\w+|localtimestamp|now\(|rand\w*\("
    r"|uuid\(|shuffle\(|reflect\(|java_method\(|input_file_\w+|monotonically_increasing_id"
    r"|spark_partition_id|session_\w+|UDF:|\w+UDF\()",
    re.IGNORECASE,
)
_NEUTRAL = Text("1")
PLAN_CHARACTERS_MAX = 1_000_000
"""Maximum characters of an analysed plan, which has the expression twice: as it is, and as the name
of the result. The check allows 200,000 of the expression."""
_FIELDS_SHOWN = "spark.sql.debug.maxToStringFields"
"""Spark writes no more arguments of a call into a plan."""


def planned_frame(spark: SparkSession, fields: Sequence[str]) -> DataFrame:
    """Return an empty frame of records with these decoded fields."""
    empty = spark.createDataFrame([], COLUMNS)
    decoded = F.lit(None).cast(decoded_type(fields))
    return record(empty.withColumn(DECODED, decoded), Bounds("source", ()))


def plan_fault(frame: DataFrame, tree: Node) -> str | None:
    """Return what Spark's plan of a checked expression holds and no expression may; None if there
    is nothing. Raises PySparkException if Spark refuses the expression."""
    frame.sparkSession.conf.set(_FIELDS_SHOWN, str(PLAN_CHARACTERS_MAX))
    text = explained_plan(frame.select(F.expr(to_sql(_neutral(tree)))), "extended")
    analysed = text.partition("== Analyzed Logical Plan ==")[2].partition("\n==")[0]
    if len(analysed) > PLAN_CHARACTERS_MAX:
        return f"{len(analysed):,} characters, and {PLAN_CHARACTERS_MAX:,} are allowed"
    # The first line is the type of the result.
    lines = [line.lstrip(" :+-") for line in analysed.strip().splitlines()[1:]]
    operators = {re.split(r"\W", line, maxsplit=1)[0] for line in lines}
    if not operators or operators - _OPERATORS:
        return ", ".join(sorted(operators - _OPERATORS)) or "no plan"
    fault = _REFUSED.search("\n".join(lines))
    return None if fault is None else fault[0].rstrip("#(")


def _neutral(node: Node) -> Node:
    """Return the tree with other texts, so that no text of the user stands in the plan. Those that
    Spark looks at while it analyses, such as formats, stay."""
    unchanged: set[int] = set()
    if isinstance(node, Call):
        unchanged = {at for at, _ in LITERALS.get(node.function, ())}
        if node.function in PATTERNS:
            unchanged = {1}
        elif node.function in ("named_struct", "map"):
            unchanged = set(range(len(node.arguments)))
    if isinstance(node, Operation) and ("like" in node.symbol):
        unchanged = set(range(1, len(node.operands)))

    def changed(part: Any, at: int) -> Any:
        if isinstance(part, Text):
            return part if at in unchanged or part.value[:1].isdigit() else _NEUTRAL
        if isinstance(part, Node):
            return _neutral(part)
        if isinstance(part, tuple):
            return tuple(changed(element, number) for number, element in enumerate(part))
        return part

    return replace(node, **{name: changed(part, -1) for name, part in vars(node).items()})

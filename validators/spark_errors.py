"""What Spark says of an error, without the values of records.

Many of Spark's errors quote the value that an expression cannot take. Their text would end in the
report, the history and the terminal, past every mask. The value is part of that text, so nothing
behind the text's beginning can be believed. A clause has the error's name, and Spark's sentence
only where Spark has analysed a query and read no record.
"""

from __future__ import annotations

import re
from pathlib import Path
from traceback import extract_tb

from pyspark.errors import AnalysisException, PySparkException

CHARACTERS_MAX = 300
_NAME = r"[A-Z][A-Z0-9_]{1,99}(?:\.[A-Z][A-Z0-9_]{1,99})?"
_STREAM = (
    r"\[STREAM_FAILED\] Query (?:[\w.-]+ )?\[id = [0-9a-f-]+, runId = [0-9a-f-]+\]"
    r" terminated with exception: "
)
_FIRST = re.compile(rf"\s*(?:{_STREAM})?\[(?P<name>{_NAME})\]")
"""The name at the very beginning of Spark's text; of a streaming query, the one of its cause."""
_NEXT = re.compile(rf"\[(?P<name>{_NAME})\]")
_WRAPPERS = frozenset({"STREAM_FAILED", "SPARK_JOB_CANCELLED", "TASK_WRITE_FAILED"})
"""Errors that hand on another one, and quote no record themselves."""
_OF_PYTHON = ("PYTHON_", "STREAMING_PYTHON_", "FOREACH_", "TRANSFORM_WITH_STATE_")
_ANALYSIS = ("0A", "42")
"""Classes of SQLSTATE that an analysis has. Some errors of tasks have them too."""
_NOT_CONVERTED = "42846"
"""A value that cannot be converted."""
OF_VALUES = ("22", "23")
"""Classes of SQLSTATE of errors that quote a value."""
_RAISED = re.compile(
    r"Traceback \(most recent call last\):\n(?:[ \t]+.*\n)*(?P<type>[\w.]+)(?:: (?P<text>.+))?"
)


OUT_OF_MEMORY = "java.lang.OutOfMemoryError"
_EXHAUSTED = (
    (
        "java.lang.StackOverflowError",
        "an expression recurses too deeply on a record's value, such as a regular expression with"
        " an alternative in a repeated group. Only this question failed; Spark goes on",
    ),
    (
        OUT_OF_MEMORY,
        "a task needed more memory than Spark has, for a record or for the result of an expression."
        " Only this question failed; Spark goes on",
    ),
)
"""What a task met that Java cannot give it, and what that means."""


GONE = (
    "StatusCode.UNAVAILABLE",
    "RETRIES_EXCEEDED",
    "stopped SparkContext",
    "SparkContext was shut down",
    "SparkContext has been shutdown",
)
"""What Spark's text has when the server has ended, or is ending."""
ENDED = (
    "The Spark server has ended or can no longer be reached. The next command starts the embedded"
    " one again; start any other yourself. Then resume the run or repeat the command."
)


def server_ended(text: str) -> bool:
    """Returns whether Spark's text means that the server itself is gone."""
    return any(mark in text for mark in GONE)


def exhausted(text: str) -> str | None:
    """Returns the clause for a task that ran out of stack or memory, according to Spark's text;
    None if it is another error."""
    return next((clause for name, clause in _EXHAUSTED if name in text), None)


def condition(error: BaseException) -> str | None:
    """Returns the name of Spark's error, such as CAST_INVALID_INPUT; None if it has none. No
    record chooses it: it is Spark's own field, or the beginning of the text."""
    first = _FIRST.match(str(error))
    if first is not None:
        return first["name"]
    name = error.getCondition() if isinstance(error, PySparkException) else None
    return name if name is not None and re.fullmatch(_NAME, name) else None


def quotes_no_record(error: BaseException) -> bool:
    """Returns whether Spark's text is of the analysis of a query, before a record was read."""
    if not isinstance(error, AnalysisException) or _FIRST.match(str(error)) is None:
        return False
    state = error.getSqlState() or ""
    return state.startswith(_ANALYSIS) and state != _NOT_CONVERTED


def raised_by_workers(text: str) -> list[tuple[str, str]]:
    """Returns type and first line of what Python workers raised, according to Spark's text. Empty
    if the error is Spark's own, whose text may quote a value that reads like Python's."""
    names = (match for match in _NEXT.finditer(text) if match["name"] not in _WRAPPERS)
    cause = next(names, None)
    if cause is None or not cause["name"].startswith(_OF_PYTHON):
        return []
    if re.search("[\"']", text[: cause.start()]):
        return []
    return [(match["type"], match["text"] or "") for match in _RAISED.finditer(text, cause.end())]


def spark_clause(error: BaseException) -> str:
    """Returns Spark's sentence if it is of an analysis; else the error's name alone."""
    if quotes_no_record(error):
        return str(error).strip().splitlines()[0][:CHARACTERS_MAX]
    name = condition(error) or "Spark's error has no name"
    return f"{name} (Spark's message is left out, because it may quote a record's value)"


def first_line(error: BaseException) -> str:
    """Returns the type of an error and its first line; of Spark's errors, `spark_clause`."""
    if not isinstance(error, PySparkException):
        return setup_line(error)
    text = str(error)
    state = error.getSqlState() or ""
    if not state.startswith(OF_VALUES):
        if server_ended(text):
            return ENDED
        if (clause := exhausted(text)) is not None:
            return f"{type(error).__name__}: {clause}"
    return f"{type(error).__name__}: {spark_clause(error)}"


def setup_line(error: BaseException) -> str:
    """Returns the type and the first line of an error. Only for questions that read no record: what
    the server is, and what its workers can do."""
    text = str(error).strip()
    if not text:
        return type(error).__name__
    if server_ended(text):
        return ENDED
    clause = exhausted(text) or text.splitlines()[0][:CHARACTERS_MAX]
    return f"{type(error).__name__}: {clause}"


def where_raised(error: BaseException) -> str:
    """Returns a clause for an error in reading a ledger: `first_line` for Spark's, else the type
    and the line of the program. The text of a Python error may quote a value."""
    if isinstance(error, PySparkException):
        return first_line(error)
    frames = extract_tb(error.__traceback__)
    place = f" in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{place}"

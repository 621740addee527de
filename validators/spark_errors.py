"""What Spark says of an error, without the values of records.

Spark's data errors (SQLSTATE 22...) quote the value that an expression cannot take. Their text
would end in the report, the history and the terminal, past every mask.
"""

from __future__ import annotations

import re

CHARACTERS_MAX = 300
_OF_DATA = re.compile(r"\[([A-Z][A-Z0-9_.]+)\](?:(?!\[[A-Z]).)*?SQLSTATE: 22\w{3}", re.DOTALL)


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


def data_error(text: str) -> str | None:
    """Returns the name of the data error in Spark's text, as a clause; None if it is another
    error."""
    match = _OF_DATA.search(text)
    if match is None:
        return None
    return f"{match[1]} (Spark's message is left out, because it quotes a record's value)"


def first_line(error: BaseException) -> str:
    """Returns the type and the first line of an error; of a data error, its name instead."""
    text = str(error).strip()
    if not text:
        return type(error).__name__
    if server_ended(text):
        return ENDED
    clause = exhausted(text) or data_error(text) or text.splitlines()[0][:CHARACTERS_MAX]
    return f"{type(error).__name__}: {clause}"

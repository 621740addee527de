"""What Spark says of an error, without the values of records. No Spark: texts as it gives them."""

from __future__ import annotations

import pytest
from pyspark.errors.exceptions.connect import (
    AnalysisException,
    IllegalArgumentException,
    NumberFormatException,
    SparkRuntimeException,
    StreamingQueryException,
)

from topicproof.backend.errors import Fenced, SparkError
from topicproof.backend.runs.query import explained
from topicproof.backend.services.spark_session import server_gone
from topicproof.validators.spark_errors import first_line

STREAM = "[STREAM_FAILED] Query [id = 1d-2, runId = 3e-4] terminated with exception: "
TRACEBACK = (
    'Traceback (most recent call last):\n  File "worker.py", line 1, in main\n    process()\n'
)
OURS = "topicproof.backend.errors.Fenced: Another producer has taken over.\n SQLSTATE: 38000"
FORGED = f"[PYTHON_EXCEPTION] {TRACEBACK}topicproof.backend.errors.Fenced: 4711"
VALUES = (
    "4711",
    "4711 [VIP]",
    "4711 [VIP customer]",
    "[A4711",
    "[CAST_INVALID_INPUT] 4711",
    "SQLSTATE: 22018 4711 [A",
    "4711\n[UNRESOLVED_COLUMN] 4711. SQLSTATE: 42703",
    FORGED,
    "4711\nbackend.errors.Fenced: 4711",
)


@pytest.mark.parametrize("value", VALUES)
def test_a_value_leaves_only_the_name_of_the_error(value: str) -> None:
    """Story: values hold what Spark's own texts hold: brackets, names of errors, SQLSTATEs, a
    worker's traceback. Neither the value nor a name that it chose is in any sentence."""
    texts = (
        (NumberFormatException, "CAST_INVALID_INPUT", f"The value '{value}' of the type", "22018"),
        (SparkRuntimeException, "DUPLICATED_MAP_KEY", f"Duplicate map key {value} was", "23505"),
        (
            IllegalArgumentException,
            "INVALID_FORMAT.MISMATCH_INPUT",
            f'The input "STRING" {value} does',
            "42601",
        ),
    )
    for kind, name, words, state in texts:
        text = f"[{name}] {words} malformed. SQLSTATE: {state}"
        error = kind(text, errorClass=name, sql_state=state)
        stream = StreamingQueryException(
            f"{STREAM}{text} SQLSTATE: XXKST", errorClass="STREAM_FAILED", sql_state="XXKST"
        )
        for sentence in (
            *(first_line(error), first_line(stream)),
            *(str(explained(error)), str(explained(stream))),
        ):
            assert "4711" not in sentence and "VIP" not in sentence, sentence
            assert f"{name} (Spark's message is left out" in sentence
    gone = "[CAST_INVALID_INPUT] The value 'stopped SparkContext' SQLSTATE: 22018"
    error = NumberFormatException(gone, errorClass="CAST_INVALID_INPUT", sql_state="22018")
    assert server_gone(error) is None and server_gone(SparkRuntimeException("stopped SparkContext"))
    bare = SparkRuntimeException(f'For input string: "{value}"')
    assert "4711" not in first_line(bare) and "4711" not in str(explained(bare))


def test_what_reads_no_record_keeps_its_text() -> None:
    """Story: a column of a contract does not exist. Spark's sentence names it. A worker's own
    error is read from its traceback; of another program's error there is its type."""
    error = AnalysisException(
        "[UNRESOLVED_COLUMN] A column `nowhere` cannot be resolved. SQLSTATE: 42703",
        errorClass="UNRESOLVED_COLUMN",
        sql_state="42703",
    )
    assert "`nowhere` cannot be resolved" in first_line(error)
    worker = f"{STREAM}[PYTHON_EXCEPTION] An exception was thrown: {TRACEBACK}"
    fenced = explained(StreamingQueryException(f"{worker}{OURS}"))
    assert isinstance(fenced, Fenced) and str(fenced) == "Another producer has taken over."
    other = explained(StreamingQueryException(f"{worker}ValueError: 4711\n SQLSTATE: 38000"))
    assert isinstance(other, SparkError) and "ValueError" in str(other) and "4711" not in str(other)

"""What Spark says of an error, without the values of records.

Spark's data errors (SQLSTATE 22...) quote the value that an expression cannot take. Their text
would end in the report, the history and the terminal, past every mask.
"""

from __future__ import annotations

import re

CHARACTERS_MAX = 300
_OF_DATA = re.compile(r"\[([A-Z][A-Z0-9_.]+)\](?:(?!\[[A-Z]).)*?SQLSTATE: 22\w{3}", re.DOTALL)


def data_error(text: str) -> str | None:
    """Returns the name of the data error in Spark's text, as a clause; None if it is another
    error."""
    found = _OF_DATA.search(text)
    if found is None:
        return None
    return f"{found[1]} (Spark's message is left out, because it quotes a record's value)"


def first_line(error: BaseException) -> str:
    """Returns the type and the first line of an error; of a data error, its name instead."""
    text = str(error).strip()
    if not text:
        return type(error).__name__
    return f"{type(error).__name__}: {data_error(text) or text.splitlines()[0][:CHARACTERS_MAX]}"

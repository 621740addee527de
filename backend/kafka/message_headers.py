"""The headers of a message, whatever bytes their names are."""

from __future__ import annotations

from operator import methodcaller
from typing import Any

from confluent_kafka import Message

# Not `message.headers()`: for a name that is not UTF-8, the client returns half of a list and an
# error at once, which Python notices only in calls that are not optimised. Reading the list would
# crash the process.
_ASK = methodcaller("headers")


class NotText(ValueError):
    """The name of a header is not UTF-8."""


def headers_in(message: Message) -> list[tuple[str, Any]]:
    """Return the headers of a message in order; names may repeat. Raises NotText."""
    try:
        headers = _ASK(message) or []
    except SystemError as error:
        if not isinstance(error.__cause__, UnicodeDecodeError):
            raise
        # The client keeps the half list, and would hand it out the next time.
        message.set_headers([])
        raise NotText("the name of a header is not UTF-8") from error
    return list(headers.items() if isinstance(headers, dict) else headers)

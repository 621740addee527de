"""Texts from elsewhere that may hold half of a surrogate pair, which no file and no client can
write.

Python makes one of an escape such as `\\ud800` in YAML and in properties, and of each byte that is
not UTF-8 in an argument or an environment variable. librdkafka's Python client crashes the process
when such a text names a setting, a group or a topic to subscribe to.
"""

from __future__ import annotations

from collections.abc import Iterable

from topicproof.backend.errors import UsageError


def joined(text: str) -> str:
    """Return the text with its surrogate pairs joined, as two escapes spell a character beyond
    U+FFFF. Raises ValueError for half a pair."""
    try:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError as error:
        raise ValueError("half of a surrogate pair is no character") from error


def require_text(places: Iterable[tuple[str, str]]) -> None:
    """Refuse texts that are not UTF-8; each comes with its place in words. Raises UsageError."""
    for place, text in places:
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise UsageError(f"{place} is not valid UTF-8.") from error

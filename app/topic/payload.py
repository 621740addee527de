"""A record's key or value for display: as text if it is text, otherwise hexadecimal, and never as
markup."""

from __future__ import annotations

import html
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import streamlit as st

from topicproof.app import wording
from topicproof.backend.characters import visible, visible_lines
from topicproof.backend.formats.decoded import DecodedValue, Format
from topicproof.backend.formats.formats import Decoder, Part
from topicproof.backend.formats.frames import schema_header
from topicproof.backend.formats.limits import VALUE_BYTES_MAX
from topicproof.backend.kafka.browse.records import Record, as_text, is_printable
from topicproof.backend.kafka.browse.search import Row

DETAIL_CHARACTERS = 4_000
TREE_CHARACTERS = 200_000
"""Longer decoded values are shown as text, cut."""
TREE_LEVELS = 3
"""Levels of a decoded value that are open."""
INTEGER_MAX = 2**53
"""Larger integers are not exact in a browser."""
_BOX = (
    "margin:0;padding:0.6rem 0.8rem;border-radius:0.5rem;background:rgba(128,128,128,0.12);"
    "font-size:0.875rem;font-family:'Source Code Pro',monospace;white-space:pre-wrap;"
    "overflow-wrap:anywhere;user-select:all;max-height:24rem;overflow-y:auto"
)


def payload(name: str, value: bytes | None, cut: bool = False) -> None:
    """Shows the content, up to a length that a browser renders at once. `cut`: there is more than
    `value`."""
    st.caption(f"{name}: {'the first ' if cut else ''}{wording.size(value)}")
    if value is not None:
        verbatim(as_text(value, DETAIL_CHARACTERS))


@dataclass(frozen=True)
class DecodingLimits:
    """What the rows of one table or one file may take to decode."""

    bytes_max: int
    """Of a key or value as it is in the log."""
    memory_max: int
    """Bytes of memory that one decoded key or value takes."""
    seconds: float
    """CPU time for all rows, with what is done with them between."""
    characters: int = 0
    """Of the texts of all decoded values. A table needs none: it shows the beginning of each."""


CELLS = DecodingLimits(20_000, memory_max=4_000_000, seconds=2.0)
"""A page shows hundreds of rows, to anybody, and draws them again at every look."""
EXPORT = DecodingLimits(sys.maxsize, VALUE_BYTES_MAX, seconds=20.0, characters=50_000_000)


class RowDecoder:
    """Decodes keys and values of a topic's rows within one budget for all of them. For one drawing
    of a table or one file, in one thread.

    Decoded values take up to thousands of times their bytes, so they are never held together:
    reduce each to what is shown of it before the next one is decoded.
    """

    def __init__(
        self,
        formats: Decoder,
        topic: str,
        limits: DecodingLimits = CELLS,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        """`clock`: the seconds that count."""
        self.topic = topic
        self._formats = formats
        self._limits = limits
        self._clock = clock
        self._deadline = clock() + limits.seconds
        self._characters = limits.characters

    def decode(self, row: Record | Row, part: Part = "value") -> DecodedValue | None:
        """Returns the decoded key or value, or which limit left it out; None if the record has
        none."""
        data: bytes | None = getattr(row, part)
        if data is None:
            return None
        if len(data) > self._limits.bytes_max:
            return _left_out(f"It has more than {self._limits.bytes_max:,} bytes.")
        if self._clock() > self._deadline:
            return _left_out(f"The rows before it took {self._limits.seconds:g} s, the limit.")
        return decoded_part(row, self.topic, self._formats, part, self._limits.memory_max)

    def text(self, row: Record | Row) -> tuple[str | None, str | None]:
        """Returns the value as JSON text, and its format and schema or why there is no text."""
        content = self.decode(row)
        if content is None:
            return None, None
        text = content.text
        if text is not None and len(text) > self._characters:
            limit = self._limits.characters
            content = _left_out(f"All texts would have more than {limit:,} characters.")
            text = None
        self._characters -= len(text or "")
        return text, not_decoded(content) if content.is_limited else content.account


def not_decoded(content: DecodedValue) -> str:
    """Returns what a cell shows for a value that is not decoded for a reason."""
    return f"not decoded: {content.account}"


def _left_out(reason: str) -> DecodedValue:
    return DecodedValue(reason=reason, is_limited=True)


def decoded_part(
    row: Record | Row,
    topic: str,
    formats: Decoder,
    part: Part = "value",
    limit: int = VALUE_BYTES_MAX,
) -> DecodedValue | None:
    """Returns the decoded key or value of a record; None if the record has none. `limit`: bytes of
    memory that it may take."""
    data: bytes | None = getattr(row, part)
    if data is None:
        return None
    if isinstance(row, Row) and part in row.cut:
        return DecodedValue(reason=f"Only its first {wording.size(data)} were read.")
    return formats.decode(data, topic, part, limit, schema_header(row.headers, part))


def decoded(row: Record | Row, topic: str, formats: Decoder, part: Part) -> None:
    """Shows a decoded key or value as a tree, with its schema, or why it is not decoded."""
    content, name = decoded_part(row, topic, formats, part), part.capitalize()
    if content is None:
        return
    if content.known:
        st.caption(f"{name}, decoded: {wording.plain(content.origin)}")
        text = content.text or ""
        if len(text) > TREE_CHARACTERS:
            verbatim(text[:DETAIL_CHARACTERS] + "…")
        else:
            st.json(_exact(content.value), expanded=TREE_LEVELS)
    if content.reason is not None:
        note = content.reason if content.known else f"{name} is not decoded. {content.reason}"
        st.caption(f":material/info: {wording.plain(note)}")


def cell_text(
    row: Record | Row, decoder: RowDecoder, characters: int, part: Part = "value"
) -> str | None:
    """Returns a key or value as a table shows it: decoded if that is known, otherwise as text.
    Where a limit left it out and it is not text itself, the cell says so."""
    data: bytes | None = getattr(row, part)
    content = decoder.decode(row, part)
    if data is None or content is None:
        return None
    if content.format is not Format.JSON and (text := content.text) is not None:
        # Characters that no font shows are spelled.
        text = text if is_printable(text) else json.dumps(content.value)
        return as_text(text.encode(), characters)
    raw = as_text(data, characters)
    return not_decoded(content) if content.is_limited and raw.startswith("0x") else raw


def _exact(value: Any) -> Any:
    """Returns integers that a browser would round as text, and spells what reorders or hides
    text."""
    match value:
        case dict():
            items: dict[str, Any] = {}
            alike: Counter[str] = Counter()
            for key, item in value.items():
                name = spelled = visible(str(key))
                while name in items:
                    # Another name that is spelled alike. Counted, because thousands may be.
                    alike[spelled] += 1
                    number = alike[spelled]
                    name = f"{spelled}′{number if number > 1 else ''}"
                items[name] = _exact(item)
            return items
        case str():
            return visible_lines(value)
        case list():
            return [_exact(item) for item in value]
        case int() if abs(value) > INTEGER_MAX:
            return str(value)
    return value


def verbatim(text: str) -> None:
    """Shows a text in a box; one click selects all of it. What would reorder or hide text is
    spelled out, so nobody reads another one than there is. Streamlit's own code box loads a
    highlighter, which takes a browser a quarter of a second."""
    st.html(f'<pre tabindex="0" style="{_BOX}">{html.escape(visible_lines(text))}</pre>')


def exports_allowed() -> bool:
    """Whether anything may be downloaded: see shell/downloads.py."""
    return not st.get_option("client.disableDataExport")


def download(
    name: str,
    file_name: str,
    content: str | bytes | Callable[[], bytes],
    mime: str = "application/octet-stream",
    icon: str = ":material/download:",
) -> None:
    """Offers a file as a download, unless downloads are switched off. A function makes its content
    on request. Every download of a page is offered here."""
    if exports_allowed():
        st.download_button(
            name,
            content,
            file_name=file_name,
            mime=mime,
            key=f"download {file_name}",
            icon=icon,
            on_click="ignore",
        )

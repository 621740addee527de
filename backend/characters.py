"""Texts from elsewhere: characters that nobody sees, halves of surrogate pairs, and formulas.

A terminal obeys control characters, and a browser reorders text at others. So whatever people read
shows them spelled out, `\\x1b` for an escape: `visible` for a name or one line, `visible_lines` for
a text of several lines. A replacement character would hide which one it was.

No file and no client can write half of a surrogate pair. Python makes one of an escape such as
`\\ud800` in YAML and in properties, and of each byte that is not UTF-8 in an argument or an
environment variable. librdkafka's Python client crashes the process when such a text names a
setting, a group or a topic to subscribe to.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterable

from topicproof.backend.errors import UsageError
from topicproof.validators.characters import UNSEEN, spelled, visible as visible

# GitHub's runner strips every blank of Unicode before it looks for `::` (ActionCommand.cs).
_COMMAND = re.compile(r"^([^\S\n]*)::", re.MULTILINE)
_OLDER_COMMAND = re.compile(r"#(?=#\w*\[)")
_IN_LINES = re.compile(f"(?![\n\t])[{UNSEEN}]")
_IN_JSON = re.compile(f"(?!\n)[{UNSEEN}]")
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f]")
_NO_LAYOUT = re.compile("(?!\t|\n|\r\n)[\x00-\x1f\x7f-\x9f]")


def visible_lines(text: str) -> str:
    """Spell out the same characters but line breaks and tabs: for a text of several lines."""
    return _IN_LINES.sub(spelled, text)


def visible_json(text: str) -> str:
    """Escape the same characters in a JSON document, and what a runner of CI takes for a command.
    It says the same to whoever parses it."""
    return _OLDER_COMMAND.sub(r"\\u0023", _IN_JSON.sub(_escaped, text))


def label(text: object) -> str:
    """Return a text from elsewhere as a label, a title or a hover text of a chart.

    It is shown letter by letter, and what has no shape is spelled. Plotly reads tags, entities,
    `%{...}` and formulas between dollars.
    """
    # Plotly knows no &quot;, and a quote is markup in a tag alone.
    return (
        html.escape(visible(str(text)), quote=False).replace("$", "&#36;").replace("%{", "&#37;{")
    )


def without_commands(text: str) -> str:
    """Spell out what a runner of CI takes for a command: `##[error]`, `##vso[...]` and the like
    anywhere in a line, and `::` at its beginning, behind blanks of any kind."""
    return _COMMAND.sub(r"\g<1>\\x3a:", _OLDER_COMMAND.sub(r"\\x23", text))


def _escaped(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass")
    pairs = (units[at : at + 2] for at in range(0, len(units), 2))
    return "".join(f"\\u{pair.hex()}" for pair in pairs)


def joined(text: str) -> str:
    """Return the text with its surrogate pairs joined, as two escapes spell a character beyond
    U+FFFF. Raises ValueError for half a pair."""
    try:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError as error:
        raise ValueError("half of a surrogate pair is no character") from error


def has_control(text: str, *, layout: bool = False) -> bool:
    """Return whether a control character is in the text: C libraries end a text at a NUL, so it is
    another one for them than for us. With `layout`, tabs and line breaks are allowed."""
    return (_NO_LAYOUT if layout else _CONTROLS).search(text) is not None


def require_text(places: Iterable[tuple[str, str]]) -> None:
    """Refuse texts that are not UTF-8; each comes with its place in words. Raises UsageError."""
    for place, text in places:
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise UsageError(f"{place} is not valid UTF-8.") from error


# A spreadsheet runs a cell that begins with `=`, `+`, `-` or `@`, and trims what it does not show
# before that. An apostrophe in front makes such a cell a text (OWASP, "CSV Injection").
BEGINS = frozenset("=+-@\u2212")
"""First characters of a formula. U+2212 is a minus sign, which LibreOffice accepts."""
_QUOTES = frozenset("'\"`\u00b4\u2032\u2033\u201a\u201e")
_COMMON_BLANKS = " \t\r\n\u00a0'\"`"
BLANKS_MAX = 1_000
"""Characters in front of a cell that are looked at one by one, behind the common ones."""
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")


def defused(text: str) -> str:
    """Return a cell that no spreadsheet runs. A number stays as it is."""
    return f"'{text}" if is_formula(text) else text


def is_formula(text: str) -> bool:
    """Whether a spreadsheet may run the cell. Spaces, quotes and characters without a shape in
    front do not count, and a wide or small form of a character counts as the character."""
    if text[:1] in ("\t", "\r", "\n"):
        return True
    begin = text.lstrip(_COMMON_BLANKS)
    for character in begin[:BLANKS_MAX]:
        plain = unicodedata.normalize("NFKC", character)
        if plain[:1] in BEGINS:
            return _NUMBER.fullmatch(text) is None
        category = unicodedata.category(character)
        quotes = plain in _QUOTES or character in _QUOTES or category in ("Pi", "Pf")
        if not quotes and category[0] not in "ZC" and not plain.isspace():
            return False
    # Nobody reads such a cell, and an apostrophe harms no text.
    return len(begin) > BLANKS_MAX

"""Cells of CSV files that a spreadsheet would run as formulas.

A spreadsheet runs a cell that begins with `=`, `+`, `-` or `@`, and trims what it does not show
before that. An apostrophe in front makes such a cell a text (OWASP, "CSV Injection").
"""

from __future__ import annotations

import re
import unicodedata

BEGINS = frozenset("=+-@\u2212")
"""First characters of a formula. U+2212 is a minus sign, which LibreOffice accepts."""
_QUOTES = frozenset("'\"`\u00b4\u2032\u2033\u201a\u201e")
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")


def defused(text: str) -> str:
    """Return a cell that no spreadsheet runs. A number stays as it is."""
    return f"'{text}" if is_formula(text) else text


def is_formula(text: str) -> bool:
    """Whether a spreadsheet may run the cell. Spaces, quotes and characters without a shape in
    front do not count, and a wide or small form of a character counts as the character."""
    if text[:1] in ("\t", "\r", "\n"):
        return True
    for character in text:
        plain = unicodedata.normalize("NFKC", character)
        if plain[:1] in BEGINS:
            return _NUMBER.fullmatch(text) is None
        category = unicodedata.category(character)
        quotes = plain in _QUOTES or character in _QUOTES or category in ("Pi", "Pf")
        if not quotes and category[0] not in "ZC" and not plain.isspace():
            return False
    return False

"""Characters that nobody sees, spelled out.

A terminal obeys control characters, and a browser reorders text at others. So whatever people read
shows them spelled out, `\\x1b` for an escape.
"""

from __future__ import annotations

import re

UNSEEN = (
    # C0, DEL and C1: a terminal obeys them.
    "\x00-\x1f\x7f-\x9f"
    # Unicode's category Cf: they reorder text, join or split words, or tag it, and have no width.
    "\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\ufeff\ufff0-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    # Letters and marks without a shape (Unicode: Default_Ignorable_Code_Point).
    "\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0"
    # Fillers that fonts draw as nothing: of Braille, of music, of the Khitan script.
    "\u2800\U0001d159\U00016fe4"
    # Line and paragraph separators, and halves of surrogate pairs.
    "\u2028\u2029\ud800-\udfff"
)
"""For a class of a regular expression."""
_IN_A_LINE = re.compile(f"[{UNSEEN}]")


def visible(text: str) -> str:
    """Spell out every character that has no shape or that moves others: for a name or one line.
    Line breaks and tabs too, so no name makes a line of its own."""
    return _IN_A_LINE.sub(spelled, text)


def spelled(match: re.Match[str]) -> str:
    """Spell out what a pattern has matched."""
    return match[0].encode("unicode_escape").decode()

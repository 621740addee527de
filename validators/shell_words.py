"""Commands that people copy from a page or a terminal into their shell."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from topicproof.validators.characters import visible


def shell_word(text: str) -> str:
    """Quote one word for bash or zsh. Characters that nobody sees, or that reorder a line, are
    escapes in it (`$'a\\x1b'`): what is pasted is what was read. So is a backtick, which would end
    the code that the command is shown as."""
    if visible(text) == text and "`" not in text:
        # zsh takes `=ls` for the path of ls.
        return f"'{text}'" if text.startswith("=") and "'" not in text else shlex.quote(text)
    return f"$'{''.join(map(_escape, text))}'"


def command_line(command: str, *operands: str, options: str = "") -> str:
    """Return a command with its operands, none of which is taken for an option. `options` are
    quoted, and begin with a space."""
    words = shell_words(operands)
    if any(operand.startswith("-") for operand in operands):
        return f"{command}{options} -- {words}"
    return f"{command} {words}{options}"


def shell_words(words: Iterable[str]) -> str:
    """Quote words for a shell."""
    return " ".join(map(shell_word, words))


def _escape(character: str) -> str:
    code = ord(character)
    if character in "\\'":
        return f"\\{character}"
    if visible(character) == character and character != "`":
        return character
    if 0xDC80 <= code <= 0xDCFF:  # A byte that is not UTF-8, as Python keeps it.
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"

"""Regular expressions of contracts, in Java's syntax: refused if malformed, or if some text makes
Java slow or ends it.

Java matches by trying. A repeated group with a choice in it takes a step of Java's stack for each
repetition, so `(\\w|-)+` ends Spark on a text of 20,000 characters. Repetitions that can share
characters are tried in all combinations: `.*a.*b` takes quadratic time, `(a+)+` exponential. So a
pattern is parsed here, and `Cost` bounds its steps from above. Repetitions of one character, and
possessive ones of groups (`(...)*+`), run in a loop without stack.

Where this parser and Java's read a pattern differently, something is hidden from the bound. So
escapes, groups and flags are a short list, and everything else is refused. `\\Q` is not on it:
Java looks for it before it parses anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from topicproof.backend.contracts.expression_limits import STEPS_MAX

LENGTH_MAX = 1_000
REPEATS_MAX = 500
"""Maximum repetitions of a group that is not possessive: each takes some of Java's stack."""
UNROLLED_MAX = 10_000
"""Maximum repetitions within repetitions, multiplied."""
LOOKBEHIND_MAX = 100
"""Maximum characters that a lookbehind takes. Java tries each length up to it."""
CLASS_PARTS_MAX = 10
"""Ranges, escapes and characters beyond ASCII of a class: Java asks for one after the other."""
BOUNDARY_FACTOR = 16
"""Steps per character that `\\b` looks back over: Java asks for its Unicode category."""
PROPERTY_QUESTIONS = 4
r"""Questions that a property such as `\p{Lu}` costs: Java looks up a character's Unicode category.
Scripts and blocks are not on the list: Java searches for each character in a table of them."""
_PROPERTIES = (
    *("L", "Lu", "Ll", "Lt", "M", "N", "Nd", "P", "S", "Sc", "Z", "Alpha", "Digit", "Alnum"),
    *("Punct", "Upper", "Lower", "Space", "ASCII", "Blank", "Cntrl", "Graph", "Print", "XDigit"),
)
_PROPERTY = rf"[pP](?:[LMNPSZ]|\{{(?:{'|'.join(_PROPERTIES)})\}})"
_IN_CLASS = r"[ !-/:-@\[-`{-~]|[dDwWsShHvVtnrfae]|" + _PROPERTY
_CODE = r"x[0-9a-fA-F]{2}|x\{[0-9a-fA-F]{1,6}\}|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}"
_ESCAPE_IN_CLASS = re.compile(rf"\\(?:{_IN_CLASS}|{_CODE})")
_ESCAPE = re.compile(rf"\\(?:{_IN_CLASS}|{_CODE}|b(?!\{{)|[BAZzR])")
"""The escapes that this parser and Java are sure to read alike."""
_IS_PROPERTY = re.compile(r"\\[pP]")
_QUANTIFIER = re.compile(
    r"(?:[*+?]|\{(?P<least>[0-9]+)(?P<comma>,(?P<most>[0-9]+)?)?\})(?P<kind>[?+]?)"
)
_FLAGS_WITHIN = re.compile(r"\(\?[a-zA-Z-]+[:)]")
_GROUP = re.compile(r"\(\?(?:[:=!>]|<[=!]|<[A-Za-z][A-Za-z0-9]*>)")
_FLAGS = re.compile(r"\(\?(?P<flags>[ims]+)\)")
"""At the very beginning of a pattern alone."""
_OTHER = 128
"""Stands for all characters beyond ASCII in a set."""
_ALL = frozenset(range(_OTHER + 1))
_WORD = frozenset(map(ord, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"))
_CLASSES = {
    "d": frozenset(range(48, 58)),
    "w": _WORD,
    "s": frozenset(map(ord, " \t\n\x0b\f\r")),
    "h": frozenset({9, 32, _OTHER}),
    "v": frozenset({10, 11, 12, 13, _OTHER}),
}
_SIGNS = {"t": 9, "n": 10, "r": 13, "f": 12, "a": 7, "e": 27}
_ANCHORS = "AZz"


@dataclass(frozen=True)
class Cost:
    """An upper bound of the steps on a text of n characters: `factor` * n ** `degree`."""

    degree: int
    factor: int

    def steps(self, characters: float) -> float:
        """Return the steps on a text of so many characters."""
        return float(self.factor * characters**self.degree)

    def longest(self) -> int:
        """Return the length of text that may be matched within `STEPS_MAX`."""
        if not self.degree:
            return STEPS_MAX
        return int((STEPS_MAX / self.factor) ** (1 / self.degree))


@dataclass(frozen=True)
class _PatternPart:
    """A piece of a pattern. Its choices are what Java may come back to."""

    choices: Cost = Cost(0, 1)
    work: Cost = Cost(0, 1)
    """Of one attempt, without coming back to what precedes."""
    first: frozenset[int] = _ALL
    """The characters with which it can begin; all, if it can be empty."""
    is_empty: bool = False
    """Whether it can match nothing."""
    loop: frozenset[int] | None = None
    """The characters of a repetition without end that may give some back; None for others."""
    is_end: bool = False
    """`$`, or another end of the text."""
    is_start: bool = False
    is_single: bool = False
    """Whether it is one character."""
    is_straight: bool = False
    """Whether a match consumes each character that Java has looked at."""
    has_capture: bool = False
    unrolled: int = 1
    minimum: int = 0
    maximum: int | None = 0
    """Most characters of a match; None if there is no end."""


@dataclass
class _Group:
    """An open group."""

    opening: str = ""
    branches: list[list[_PatternPart]] = field(default_factory=lambda: [[]])


def pattern_cost(pattern: str) -> Cost:
    """Return the cost of searching a text for a pattern. Raises ValueError with the reason as a
    clause."""
    if len(pattern) > LENGTH_MAX:
        raise ValueError(
            f"a regular expression has {len(pattern):,} characters; {LENGTH_MAX:,} are allowed"
        )
    return _PatternParser(pattern).cost()


def like_cost(pattern: str, escape: str = "\\") -> Cost:
    """Return the cost of LIKE, which Spark translates to a regular expression. Raises ValueError
    with the reason as a clause."""
    if len(pattern) > LENGTH_MAX:
        raise ValueError(
            f"a pattern of LIKE has {len(pattern):,} characters; {LENGTH_MAX:,} are allowed"
        )
    signs = re.sub(f"{re.escape(escape)}(.)", "x", pattern, flags=re.DOTALL)
    # Spark writes .* for each, also for several beside each other. The last ones take the rest.
    degree = signs.rstrip("%").count("%")
    return Cost(max(degree, 1), len(signs) + 1)


class _PatternParser:
    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.groups = [_Group()]
        flags = _FLAGS.match(pattern)
        self.start = 0 if flags is None else flags.end()
        self.has_lines = flags is not None and "m" in flags["flags"]
        """Whether ^ and $ match at each line."""
        self.ignores_case = flags is not None and "i" in flags["flags"]

    def cost(self) -> Cost:
        pattern, at = self.pattern, self.start
        while at < len(pattern):
            sign = pattern[at]
            if sign == "(":
                at = self._open(at)
            elif sign == ")":
                if len(self.groups) == 1:
                    raise self._invalid("a ) has no (")
                part = self._closed(self.groups.pop())
                at = self._quantified(at + 1, part)
            elif sign == "|":
                self.groups[-1].branches.append([])
                at += 1
            elif sign in "*+?{":
                following = _QUANTIFIER.match(pattern, at)
                if sign == "{" and following is None:
                    raise self._invalid("a { is not followed by a number")
                raise self._invalid(f"nothing precedes {sign}")
            else:
                part, at = self._atom(at)
                at = self._quantified(at, part)
        if len(self.groups) > 1:
            raise self._invalid("a ( has no )")
        branches = [_sequence(parts, is_last=True) for parts in self.groups[0].branches]
        degree = max(part.work.degree for part in branches)
        factor = sum(part.work.factor for part in branches)
        if self.has_lines or not all(
            parts and parts[0].is_start for parts in self.groups[0].branches
        ):
            # Java searches from every character. A last repetition cannot fail, so the search goes
            # on after it.
            before = (
                _sequence(parts[:-1] if parts and parts[-1].loop is not None else parts, True)
                for parts in self.groups[0].branches
            )
            degree = max(degree, *(1 + part.work.degree for part in before), 1)
        return Cost(max(degree, 1), factor)

    def _add(self, part: _PatternPart) -> None:
        self.groups[-1].branches[-1].append(part)

    def _open(self, at: int) -> int:
        pattern = self.pattern
        opening = _GROUP.match(pattern, at)
        if opening is None and _FLAGS_WITHIN.match(pattern, at):
            raise ValueError(
                f"the regular expression {pattern!r} changes flags, which is not allowed. Write"
                " (?i), (?m) or (?s), or several as in (?is), at its very beginning alone"
            )
        if opening is None and pattern[at + 1 : at + 2] == "?":
            raise self._invalid("a group begins with (? and an unknown character")
        self.groups.append(_Group("(" if opening is None else opening[0]))
        return at + 1 if opening is None else opening.end()

    def _closed(self, group: _Group) -> _PatternPart:
        opening = group.opening
        is_capture = opening == "(" or (opening[:3] == "(?<" and opening[3:4] not in "=!")
        is_around = opening in ("(?=", "(?!", "(?<=", "(?<!")
        branches = [
            _sequence(parts, is_last=opening == "(?>" or is_around) for parts in group.branches
        ]
        has_capture = is_capture or any(part.has_capture for part in branches)
        work = Cost(
            max(part.work.degree for part in branches),
            sum(part.work.factor for part in branches),
        )
        if is_around:
            if has_capture:
                raise ValueError(
                    f"the regular expression {self.pattern!r} captures a group beside the match"
                    " (in a lookahead or lookbehind); write (?:...) there"
                )
            if opening.startswith("(?<"):
                work = self._behind(branches, work)
            return _PatternPart(work=work, is_empty=True)
        first = frozenset().union(*(part.first for part in branches))
        is_empty = any(part.is_empty for part in branches)
        choices = Cost(0, 1)
        if opening != "(?>":
            firsts = [part.first for part in branches]
            is_apart = sum(map(len, firsts)) == len(frozenset().union(*firsts)) and not is_empty
            factors = [part.choices.factor for part in branches]
            degree = max(part.choices.degree for part in branches)
            choices = Cost(degree, max(factors) if is_apart else sum(factors))
        return _PatternPart(
            choices=choices,
            work=work,
            first=_ALL if is_empty else first,
            is_empty=is_empty,
            loop=(branches[0].loop if opening != "(?>" and len(branches) == 1 else None),
            is_start=all(parts and parts[0].is_start for parts in group.branches),
            has_capture=has_capture,
            is_straight=opening != "(?>" and len(branches) == 1 and branches[0].is_straight,
            unrolled=max(part.unrolled for part in branches),
            minimum=min(part.minimum for part in branches),
            maximum=_most(part.maximum for part in branches),
        )

    def _behind(self, branches: list[_PatternPart], work: Cost) -> Cost:
        """Return the cost of a lookbehind: Java tries it from each place where it may begin.
        Raises ValueError if that may be far back."""
        longest = _most(part.maximum for part in branches)
        if work.degree or longest is None:
            raise ValueError(f"the regular expression {self.pattern!r} looks behind without an end")
        if longest > LOOKBEHIND_MAX:
            raise ValueError(
                f"the regular expression {self.pattern!r} looks behind {longest:,} characters;"
                f" {LOOKBEHIND_MAX} are allowed"
            )
        return Cost(0, work.factor * (longest - min(part.minimum for part in branches) + 1))

    def _quantified(self, at: int, part: _PatternPart) -> int:
        """Add the part with the quantifier that follows it. Return the position after both."""
        quantifier = _QUANTIFIER.match(self.pattern, at)
        if quantifier is None:
            if self.pattern[at : at + 1] == "{":
                raise self._invalid("a { is not followed by a number")
            self._add(part)
            return at
        sign = quantifier[0][0]
        digits = quantifier["least"], quantifier["most"]
        if any(len(text or "") > 6 for text in digits):
            raise self._invalid(f"{quantifier[0]} is more than Java counts")
        least = int(digits[0] or 0) if sign == "{" else int(sign == "+")
        most: int | None = None
        if sign == "?":
            most = 1
        elif sign == "{" and (quantifier["comma"] is None or digits[1] is not None):
            most = int(digits[1] or least)
        if most is not None and most < least:
            raise self._invalid(f"{quantifier[0]} ends before it begins")
        is_possessive = quantifier["kind"] == "+"
        repeat = self._single if part.is_single else self._repeated
        self._add(repeat(part, least, most, is_possessive))
        return quantifier.end()

    def _single(
        self, part: _PatternPart, least: int, most: int | None, is_possessive: bool
    ) -> _PatternPart:
        """Repeat one character: Java does it in a loop."""
        spread = 1 if most is None else most - least + 1
        is_open = most is None and not is_possessive
        return _PatternPart(
            choices=Cost(0, 1) if is_possessive else Cost(int(most is None), spread),
            work=Cost(
                int(most is None), part.work.factor * max(least if most is None else most, 1)
            ),
            first=_ALL if least == 0 else part.first,
            is_empty=least == 0,
            loop=part.first if is_open or (not is_possessive and most != least) else None,
            is_straight=True,
            minimum=least,
            maximum=most,
        )

    def _repeated(
        self, part: _PatternPart, least: int, most: int | None, is_possessive: bool
    ) -> _PatternPart:
        """Repeat a group. Raises ValueError if the repetitions can be combined, or need stack."""
        has_choice = part.choices != Cost(0, 1)
        unrolled = part.unrolled * (most or max(least, 1))
        if unrolled > UNROLLED_MAX:
            raise ValueError(
                f"the regular expression {self.pattern!r} repeats repetitions more than"
                f" {UNROLLED_MAX:,} times"
            )
        if not is_possessive and most != 1:
            if most is None or most > REPEATS_MAX:
                phrase = "repeats a repetition" if part.work.degree else "repeats a group"
                raise ValueError(
                    f"the regular expression {self.pattern!r} {phrase} without an end, which can"
                    " take exponential time, or all of Java's stack on a long text. Make it"
                    " possessive, so that it gives nothing back: (...)*+ for (...)*. Or use a"
                    r" class: [\w-]+ for (\w|-)+"
                )
            if has_choice:
                raise ValueError(
                    f"the regular expression {self.pattern!r} repeats a choice, which can take"
                    " exponential time. Make the repetition possessive: (...){3}+ for (...){3}"
                )
        spread = 1 if most is None else most - least + 1
        if is_possessive:
            choices = Cost(0, 1)
        else:
            choices = Cost(part.choices.degree, part.choices.factor * spread)
        degree = part.work.degree
        if most is None:
            # All but the last attempt consume what they look at, or else each may look at all.
            is_linear = part.is_straight and not has_choice
            degree = max(degree, 1) if is_linear else degree + 1
        return _PatternPart(
            choices=choices,
            work=Cost(degree, part.work.factor * (most or max(least, 1))),
            first=_ALL if least == 0 else part.first,
            is_empty=part.is_empty or least == 0,
            has_capture=part.has_capture,
            unrolled=unrolled,
            minimum=part.minimum * least,
            maximum=_repeated_most(part.maximum, most),
        )

    def _character(self, sign: str) -> _PatternPart:
        return self._of({min(ord(sign), _OTHER)})

    def _of(self, signs: set[int] | frozenset[int], questions: int = 1) -> _PatternPart:
        """Return one of some characters. `questions`: how many Java asks of each."""
        if self.ignores_case:
            both = {ord(x) for s in signs if s < _OTHER for x in chr(s).swapcase()}
            signs = frozenset(signs) | both | {_OTHER}
        return _PatternPart(
            work=Cost(0, questions),
            first=frozenset(min(s, _OTHER) for s in signs),
            is_single=True,
            is_straight=True,
            minimum=1,
            maximum=1,
        )

    def _atom(self, at: int) -> tuple[_PatternPart, int]:
        sign = self.pattern[at]
        if sign == "\\":
            return self._escape(at)
        if sign == "[":
            end = self._class_end(at)
            questions = self._class_parts(self.pattern[at:end])
            return self._of(self._class_signs(at, end), questions), end
        if sign == ".":
            return self._of(_ALL), at + 1
        if sign == "^":
            return _PatternPart(is_empty=True, is_start=True), at + 1
        if sign == "$":
            return _PatternPart(is_empty=True, is_end=not self.has_lines), at + 1
        return self._character(sign), at + 1

    def _escape(self, at: int) -> tuple[_PatternPart, int]:
        sign = self.pattern[at + 1 : at + 2]
        if sign == "X" or self.pattern.startswith(r"\b{", at):
            raise ValueError(
                f"the regular expression {self.pattern!r} looks for characters of several parts"
                r" (\X or \b{g}), which can take quadratic time. Name the characters in a class"
            )
        if (sign.isdigit() and sign != "0") or sign == "k":
            raise ValueError(
                f"the regular expression {self.pattern!r} refers back to a group, which can take"
                " exponential time. Compare the groups with regexp_extract instead"
            )
        end = self._escape_end(at, _ESCAPE)
        if sign in ("b", "B"):
            # Java looks back over combining marks, to the start of the text if all are.
            return _PatternPart(work=Cost(1, BOUNDARY_FACTOR), is_empty=True), end
        if sign in _ANCHORS:
            return _PatternPart(is_empty=True, is_start=sign == "A", is_end=sign in "Zz"), end
        if sign == "R":
            return _PatternPart(choices=Cost(0, 2), is_empty=False, minimum=1, maximum=2), end
        signs = self._escape_signs(at)
        return self._of(signs, PROPERTY_QUESTIONS if sign in "pP" else 1), end

    def _escape_signs(self, at: int) -> frozenset[int]:
        sign = self.pattern[at + 1]
        if sign.lower() in _CLASSES:
            signs = _CLASSES[sign.lower()]
            return signs if sign.islower() else (_ALL - signs) | {_OTHER}
        if sign in "pPxu":
            return _ALL
        return frozenset({_SIGNS.get(sign, min(ord(sign), _OTHER))})

    def _escape_end(self, at: int, allowed: re.Pattern[str] = _ESCAPE_IN_CLASS) -> int:
        """Return the position after an escape. Raises ValueError if it is not on the list."""
        escape = allowed.match(self.pattern, at)
        if escape is not None:
            return escape.end()
        if at + 1 == len(self.pattern):
            raise self._invalid("it ends with a backslash")
        sign = self.pattern[at + 1 : at + 2]
        if sign in ("p", "P"):
            raise ValueError(
                f"the regular expression {self.pattern!r} has a property that Java is slow at or"
                f" does not know. These may stand in \\{sign}{{...}}: {', '.join(_PROPERTIES)}"
            )
        inside = " in a class" if allowed is _ESCAPE_IN_CLASS else ""
        raise ValueError(
            f"the regular expression {self.pattern!r} has the escape \\{sign}, which is not"
            f" allowed{inside}. Write the character itself, with a"
            r" backslash before a sign such as . or [, or its code as in \x41 or \x{1F600}"
        )

    def _class_signs(self, at: int, end: int) -> frozenset[int]:
        """Return at least the characters of a class. Intersections and classes within are taken as
        all characters."""
        inner = self.pattern[at + 1 : end - 1]
        is_negated = inner.startswith("^")
        start = at + 1 + is_negated
        if "[" in inner or "&&" in inner:
            return _ALL
        signs: set[int] = set()
        is_exact = True
        while start < end - 1:
            sign = self.pattern[start]
            if sign == "\\":
                after = self._escape_end(start)
                part = self._escape_signs(start)
                is_exact &= self.pattern[start + 1] not in "pPxu"
            else:
                part, after = frozenset({min(ord(sign), _OTHER)}), start + 1
            if self.pattern[after] == "-" and after + 1 < end - 1 and len(part) == 1:
                last = self.pattern[after + 1]
                if last == "\\":
                    return _ALL
                low, high = min(part), min(ord(last), _OTHER)
                if ord(last) < low:
                    raise self._invalid(f"{sign}-{last} ends before it begins")
                part, after = frozenset(range(low, high + 1)), after + 2
            signs |= part
            start = after
        if is_negated:
            return ((_ALL - signs) | {_OTHER}) if is_exact else _ALL
        return frozenset(signs)

    def _class_parts(self, text: str) -> int:
        """Return how many things Java asks of each character for a class. Raises ValueError if they
        are many."""
        parts = sum(not sign.isascii() or sign in "-\\[&" for sign in text[1:])
        if parts > CLASS_PARTS_MAX:
            raise ValueError(
                f"the regular expression {self.pattern!r} has a class of {parts} ranges, escapes or"
                f" characters beyond ASCII; {CLASS_PARTS_MAX} are allowed"
            )
        properties = len(_IS_PROPERTY.findall(text))
        return max(parts - text.count("&") + properties * (PROPERTY_QUESTIONS - 1), 1)

    def _class_end(self, at: int) -> int:
        """Return the position after a class such as `[^a-z&&[^b]]`."""
        depth = 0
        while at < len(self.pattern):
            if self.pattern[at] == "[":
                depth += 1
                at += 2 if self.pattern[at + 1 : at + 2] == "^" else 1
                at += self.pattern[at : at + 1] == "]"
            elif self.pattern[at] == "\\":
                at = self._escape_end(at)
            else:
                depth -= self.pattern[at] == "]"
                at += 1
            if depth == 0:
                return at
        raise self._invalid("a [ has no ]")

    def _invalid(self, why: str) -> ValueError:
        return ValueError(f"{self.pattern!r} is not a valid regular expression: {why}")


def _sequence(parts: list[_PatternPart], is_last: bool) -> _PatternPart:
    """Put parts in a row. `is_last`: nothing follows that could make Java come back."""
    choices, work, first, is_empty = Cost(0, 1), Cost(0, 1), frozenset[int](), True
    loop: frozenset[int] | None = None
    for at, part in enumerate(parts):
        if is_empty:
            first |= part.first if not part.is_empty or part.loop is None else part.loop
        is_empty &= part.is_empty
        loop = part.loop
        work = Cost(
            max(work.degree, choices.degree + part.work.degree),
            max(work.factor, choices.factor * part.work.factor),
        )
        part_choices = part.choices
        if part.loop is not None and (
            _gives_nothing_back(part.loop, parts[at + 1 :]) or (is_last and at == len(parts) - 1)
        ):
            part_choices = Cost(0, 1)
        elif is_last and at == len(parts) - 1:
            part_choices = Cost(0, part_choices.factor)
        # Characters and anchors have one way to match.
        choices = Cost(choices.degree + part_choices.degree, choices.factor * part_choices.factor)
    return _PatternPart(
        choices=choices,
        work=Cost(
            max(work.degree, choices.degree), max(work.factor, choices.factor) * max(len(parts), 1)
        ),
        first=_ALL if is_empty else first,
        is_empty=is_empty,
        loop=loop if len(parts) == 1 else None,
        has_capture=any(part.has_capture for part in parts),
        is_straight=all(part.is_straight for part in parts),
        unrolled=max((part.unrolled for part in parts), default=1),
        minimum=sum(part.minimum for part in parts),
        maximum=_sum(part.maximum for part in parts),
    )


def _most(lengths: Iterable[int | None]) -> int | None:
    """Return the greatest length; None if one has no end."""
    bounds = list(lengths)
    return None if None in bounds else max(length or 0 for length in bounds)


def _sum(lengths: Iterable[int | None]) -> int | None:
    """Return the lengths together; None if one has no end."""
    bounds = list(lengths)
    return None if None in bounds else sum(length or 0 for length in bounds)


def _repeated_most(length: int | None, times: int | None) -> int | None:
    """Return the length of so many repetitions; None if there is no end."""
    if length == 0:
        return 0
    return None if length is None or times is None else length * times


def _gives_nothing_back(loop: frozenset[int], following: list[_PatternPart]) -> bool:
    """Whether what follows a repetition cannot begin with a character of it. Then a shorter
    repetition fails at once."""
    for part in following:
        if part.is_end:
            return True
        if not part.is_empty:
            return not loop & part.first
        if part.loop is None or loop & part.loop:
            return False
    return False

"""Limits on the cost of an expression per record: how large its result, and all on the way to it,
can be, how long Spark computes it, and how many steps Java takes to match patterns.

A size is a sum: so many times the record, so many times an element of an array, and a constant.
Repeats multiply it by a constant. A product of two sizes that both grow with the record is
refused, because a record of 1 MB would make 1 TB of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

SIZE_MAX = 10_000
"""Maximum of a literal size, such as that of `repeat`."""
GROWTH_MAX = 100
"""Maximum size of a result, in sizes of its record."""
CONSTANT_MAX = 1_000_000
"""Maximum bytes of a result beside what comes from the record."""
WORK_MAX = 2_000
"""Maximum nanoseconds of a core for each byte of the record: a minute for 32 MB, the largest that
is read. Spark cannot stop a task within a record."""
WORK_CONSTANT_MAX = 100_000_000
"""Maximum nanoseconds beside, for a record of any size: a tenth of a second."""
STEPS_MAX = 4_000_000_000
"""Maximum steps of all patterns together, on the longest texts that they may be given: some seconds
of a core."""
STEP_WORK = 2
"""Nanoseconds of a step of a pattern, at most."""
FIELDS_WORK_MAX = 2
"""What all fields of an output may take together, in limits of one expression: two minutes of a
core for the largest record."""
ELEMENT = 16
"""Bytes that an element of an array takes beside its own, at least."""
RECORD = "record"
_CONSTANT = ""
_FIELD = "field of "

Size = Mapping[str, float]
"""Factor of each part: `RECORD`, a decoded field, a variable, or the constant."""


class Effort(NamedTuple):
    """What Spark does for one record."""

    work: Size
    """Nanoseconds of a core: so many for each byte of the record, and so many beside."""
    steps: float
    """Steps of patterns whose texts have a limited length."""


def constant(size: float) -> Size:
    return {_CONSTANT: size}


def times_of(name: str, factor: float = 1, beside: float = 0) -> Size:
    """Return `factor` times the record or a variable, and a constant beside."""
    return {name: factor, _CONSTANT: beside}


def of_field(path: str) -> Size:
    """Return the size of a decoded field. `path`: as it is spelled. Formats may take a field by a
    name in other letters."""
    return times_of(_FIELD + path.lower().replace("_", ""))


def of_record(size: Size) -> Size:
    """Return a size in terms of the record alone: fields of which none is within another are
    together no larger than it."""
    fields = {name: part for name, part in size.items() if name.startswith(_FIELD)}
    others = {name: part for name, part in size.items() if name not in fields}
    around = (
        part + sum(fields.get(path[:at], 0) for at, sign in enumerate(path) if sign in ".[")
        for path, part in fields.items()
    )
    return added(others, {RECORD: max(around)}) if fields else others


def added(*sizes: Size) -> Size:
    together: dict[str, float] = {}
    for size in sizes:
        for name, part in size.items():
            together[name] = together.get(name, 0) + part
    return together


def largest(*sizes: Size) -> Size:
    """Return a size that none of these exceeds."""
    most: dict[str, float] = {}
    for size in sizes:
        for name, part in size.items():
            most[name] = max(most.get(name, 0), part)
    return most


def scaled(size: Size, factor: float) -> Size:
    return {name: part * factor for name, part in size.items()}


def constant_of(size: Size) -> float | None:
    """Return the size if it is the same for each record; None if it grows with the record."""
    grows = any(part for name, part in size.items() if name != _CONSTANT)
    return None if grows else size.get(_CONSTANT, 0)


def smallest(*sizes: Size) -> Size:
    """Return the size of the operand that bounds a comparison."""
    return min(sizes, key=lambda size: (constant_of(size) is None, of_record(size).get(RECORD, 0)))


_SHORTEN = "Shorten one part to a literal size, as in substr(value, 1, 100)"
_SHORTEN_ARRAY = (
    "A lambda takes a column of the record for each element. Use it outside, as in"
    " array_contains(headers.key, key), or shorten the array, as in"
    " split(substr(value, 1, 100), ',')"
)


def multiplied(left: Size, right: Size, subject: str, remedy: str = _SHORTEN) -> Size:
    """Raises ValueError, with what to write, if both grow with the record."""
    for size, factor in ((left, constant_of(right)), (right, constant_of(left))):
        if factor is not None:
            return scaled(size, factor)
    raise ValueError(f"{subject} grows with the square of a record. {remedy}")


def of_elements(body: Size, variables: Mapping[str, Size], subject: str) -> Size:
    """Return the size of a lambda's results over all elements. `variables`: those of the lambda,
    with the sizes of their arrays. Raises ValueError as `multiplied`."""
    rest = {name: part for name, part in body.items() if name not in variables}
    beside = constant_of(rest)
    if beside is not None:
        # An array holds its elements' own bytes, or as many more elements.
        each = (beside + ELEMENT) / ELEMENT
        return added(
            *(scaled(array, max(body.get(name, 0), each)) for name, array in variables.items())
        )
    counts = scaled(added(*variables.values()), 1 / ELEMENT)
    whole = [scaled(array, body.get(name, 0)) for name, array in variables.items()]
    return added(
        *whole, multiplied(counts, added(rest, constant(ELEMENT)), subject, _SHORTEN_ARRAY)
    )


def require_small(size: Size, quote: Callable[[], str]) -> None:
    """Raises ValueError if a result may be too large. `quote`: names it, which takes long."""
    growth, beside = of_record(size).get(RECORD, 0), size.get(_CONSTANT, 0)
    if growth > GROWTH_MAX:
        raise ValueError(
            f"{quote()} may become {growth:,.0f} times as large as its record; {GROWTH_MAX} times"
            " are allowed. Shorten what it repeats, as in substr(value, 1, 100)"
        )
    if beside > CONSTANT_MAX:
        raise ValueError(f"{quote()} may take {beside:,.0f} bytes; {CONSTANT_MAX:,} are allowed")


def require_little_work(effort: Effort, times: int = 1) -> None:
    """Raises ValueError if Spark would do too much for each record. `times`: how often the limit of
    an expression's work is allowed."""
    work, most = of_record(effort.work), WORK_MAX * times
    if work.get(RECORD, 0) > most or work.get(_CONSTANT, 0) > WORK_CONSTANT_MAX * times:
        raise ValueError(
            f"{'the expression' if times == 1 else 'all fields together'} may take"
            f" {work.get(RECORD, 0):,.0f} ns for each byte of a record, and"
            f" {work.get(_CONSTANT, 0):,.0f} ns beside; {most:,} and"
            f" {WORK_CONSTANT_MAX * times:,} are allowed. Use fewer functions and patterns, or"
            " shorten what they read, as in substr(value, 1, 100)"
        )
    if effort.steps > STEPS_MAX:
        raise ValueError(
            f"all patterns together may take {effort.steps:,.0f} steps for a record;"
            f" {STEPS_MAX:,} are allowed. Use fewer patterns, or match shorter texts, as in"
            " substr(value, 1, 100)"
        )


def require_little_together(efforts: Iterable[Effort]) -> None:
    """Raises ValueError if the expressions of all fields of an output would do too much."""
    every = list(efforts)
    work = added(*(effort.work for effort in every))
    require_little_work(Effort(work, sum(effort.steps for effort in every)), FIELDS_WORK_MAX)

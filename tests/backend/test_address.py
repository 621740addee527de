"""An address keeps its secrets; asking until something is so ends."""

from __future__ import annotations

from topicproof.backend.address import Address
from topicproof.backend.waiting import ask_until


def test_an_address_shows_no_secret() -> None:
    """Story: an address is printed, logged and used as a key. Its password shows nowhere, but tells
    two addresses apart."""
    secured = Address("a:1", {"sasl.password": "hush"})
    assert "hush" not in f"{secured} {secured!r}"
    assert secured != Address("a:1") and {secured: 1}[Address("a:1", {"sasl.password": "hush"})]


def test_asking_ends_with_the_answer_or_with_the_time() -> None:
    """Story: the third answer is the one. Another question never gets its answer: its last one is
    returned when the time is up."""
    answers = iter([1, 2, 3, 4])
    assert ask_until(lambda: next(answers), lambda answer: answer == 3, 5.0, 0.001) == 3
    assert next(answers) == 4
    assert not ask_until(lambda: False, bool, 0.01, 0.001)

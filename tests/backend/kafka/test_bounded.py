"""Calls that may never return, and what happens beside them."""

from __future__ import annotations

import multiprocessing
import threading
from queue import SimpleQueue

import pytest

from topicproof.backend.kafka.bounded import bounded

GIVEN_UP_S = 0.05


def test_the_answer_or_the_error_of_the_call_is_handed_on() -> None:
    assert bounded(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        bounded(lambda: 1 // 0)


def test_calls_share_a_thread_until_one_is_stuck() -> None:
    """Story: one call never comes back. It is given up, and the next has a thread that answers."""
    first, second = bounded(threading.get_ident), bounded(threading.get_ident)
    assert first == second
    comes_back = threading.Event()
    with pytest.raises(TimeoutError, match="did not return"):
        bounded(comes_back.wait, stuck_s=GIVEN_UP_S)
    assert bounded(threading.get_ident) != first
    comes_back.set()


def test_the_call_is_made_meanwhile() -> None:
    """Each waits for the other: only side by side do both come to an end."""
    there, back = SimpleQueue[str](), SimpleQueue[str]()

    def call() -> str:
        there.put("asked")
        return back.get(timeout=10)

    def meanwhile() -> None:
        back.put(there.get(timeout=10))

    assert bounded(call, meanwhile) == "asked"


def test_what_fails_meanwhile_is_heard_and_the_call_is_waited_for() -> None:
    ended = threading.Event()

    def call() -> None:
        ended.set()
        raise ValueError("of the call")

    def meanwhile() -> None:
        raise KeyError("of what was done meanwhile")

    with pytest.raises(KeyError, match="meanwhile"):
        bounded(call, meanwhile)
    assert ended.is_set()
    assert bounded(lambda: "next") == "next"


def test_a_forked_process_has_threads_of_its_own() -> None:
    """Spark forks its workers: the threads of the process that they come from are not there."""
    bounded(lambda: None)
    forking = multiprocessing.get_context("fork")
    answers = forking.SimpleQueue()
    child = forking.Process(target=lambda: answers.put(bounded(lambda: "there")))
    child.start()
    child.join(30)
    assert child.exitcode == 0 and answers.get() == "there"

"""The page Home: nothing there yet, and a cluster with trouble and verdicts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from tests.app.conftest import OpenPage, texts
from tests.backend.kafka.hanging import end_what_hangs, hang
from tests.backend.kafka.test_lag import commit
from tests.backend.kafka.topics import Writer
from topicproof.app.session.cluster_reads import cluster_overview
from topicproof.backend.history.run_state import Facts
from topicproof.backend.history.signoff import Decision, sign
from topicproof.backend.history.store import History, State
from topicproof.backend.kafka.browse import causes
from topicproof.backend.settings import Settings


@pytest.mark.usefixtures("empty_home")
def test_a_fresh_installation_whose_kafka_does_not_answer(open_page: OpenPage) -> None:
    """Story: somebody opens the dashboard for the first time, with a wrong address. Home says what
    this is, that Kafka does not answer, and that nothing was judged; the three doors are there."""
    app = open_page("home")
    assert not app.exception
    assert [one.label for one in app.button] == [
        "Jump to …",
        "Watch a demo",
        "Inspect a topic",
        "Check a pipeline",
    ]
    said = texts(app)
    assert "what Kafka transactions did to your topics" in said
    assert "No Kafka broker can be reached (127.0.0.1:1" in said
    assert "Watch a demo to see its records here" in said
    assert "The list comes when Kafka answers" in said and "Nothing has been judged yet" in said


def test_what_is_wrong_comes_first(
    open_page: OpenPage,
    at_home: Settings,
    bootstrap: str,
    new_topic: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Story: an operator and a QA lead look at Home. One transaction is open for long on two
    partitions, one hangs: each is one entry, red if nothing ends it, with what it holds back and
    from whom; causes beyond the worst are folded. The QA lead sees who signed the last verdict.
    When what hangs is aborted, young transactions are no trouble, and Home is green."""
    monkeypatch.setattr(causes, "LONG_OPEN_MS", 0)
    topic, hung = new_topic(partitions=2), new_topic()
    writer = Writer(bootstrap, topic)
    for partition in range(2):
        writer.write("n5 A40", partition)
        commit(bootstrap, topic, f"{topic}-waits", 5, partition)
    Writer(bootstrap, new_topic()).write("A1 B1 C1 D1")
    producer_id = hang(bootstrap, hung)
    history = History(at_home)
    run = history.create("check", "home", {"guarantee": "exactly_once"})
    history.remember(run.id, Facts(source=topic, sink=topic))
    history.end(run.id, State.DONE, "HOLDS", "All is well.")
    sign(history, run.id, [], "0" * 64, Decision.REJECT, "Grace Hopper")
    app = open_page("home")
    assert not app.exception
    said = texts(app)
    (opened,) = (text for text in readable(app.warning) if topic in text)
    assert opened.startswith(
        f"**Open: {topic}-A** holds back **80 records** on 2 partitions of **{topic}**, and group"
        f" **{topic}-waits**."
    )
    assert "It has been open for" in opened and "Its producer may still end it" in opened
    (hanging,) = (text for text in readable(app.error) if hung in text)
    assert hanging.startswith(
        f"**Hanging: producer {producer_id}** holds back **1 record** on partition 0 of **{hung}**."
    )
    commands = [block.value for block in app.code]
    assert any(command.startswith(f"topicproof abort {hung} 0 0") for command in commands)
    assert "Nothing is wrong" not in said and "offsets withheld" in said
    assert "All is well." in said and "by Grace Hopper (unauthenticated)" in said
    assert any("further cause" in expander.label for expander in app.expander)

    end_what_hangs(bootstrap)
    monkeypatch.setattr(causes, "LONG_OPEN_MS", 10**9)
    cluster_overview.clear()
    app = open_page("home")
    assert not app.exception and not app.error and not app.warning
    assert [box.value.partition(":")[0] for box in app.success] == ["Nothing is wrong now"]


def readable(boxes: Iterable[Any]) -> list[str]:
    """The Markdown of these boxes without what keeps names from being read as Markdown."""
    return [box.value.replace("\\", "").replace("\u2060", "") for box in boxes]

"""The page Home: nothing there yet, and a cluster with trouble and verdicts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.app.conftest import OpenPage, texts
from tests.backend.kafka.test_lag import commit
from tests.backend.kafka.topics import Writer
from topicproof.backend.history.run_state import Facts
from topicproof.backend.history.signoff import Decision, sign
from topicproof.backend.history.store import History, State
from topicproof.backend.settings import Settings


@pytest.mark.usefixtures("empty_home")
def test_a_fresh_installation_whose_kafka_does_not_answer(open_page: OpenPage) -> None:
    """Story: somebody opens the dashboard for the first time, with a wrong address. Home says what
    this is, that Kafka does not answer, and that nothing was judged; the three doors are there."""
    app = open_page("home")
    assert not app.exception
    assert [one.label for one in app.button] == [
        "Watch a demo",
        "Inspect a topic",
        "Check a pipeline",
    ]
    said = texts(app)
    assert "what Kafka transactions did to your topics" in said
    assert "No Kafka broker can be reached (127.0.0.1:1" in said
    assert "Watch a demo to see its records here" in said
    assert "The figures come when Kafka answers" in said and "Nothing has been judged yet" in said


def test_a_cluster_at_a_glance_with_its_last_verdict(
    open_page: OpenPage, at_home: Settings, bootstrap: str, new_topic: Callable[..., str]
) -> None:
    """Story: an operator and a QA lead look at Home. One sees what an open transaction withholds,
    the other who signed the last verdict."""
    topic = new_topic()
    Writer(bootstrap, topic).write("B5 B+ A40")
    commit(bootstrap, topic, f"{topic}-group", 0)
    commit(bootstrap, topic, f"{topic}-waits", 6)
    history = History(at_home)
    run = history.create("check", "home", {"guarantee": "exactly_once"})
    history.remember(run.id, Facts(source=topic, sink=topic))
    history.end(run.id, State.DONE, "HOLDS", "All is well.")
    sign(history, run.id, [], "0" * 64, Decision.REJECT, "Grace Hopper")
    app = open_page("home")
    assert not app.exception and not app.error and not app.warning
    figures = {one.label: one.value for one in app.metric}
    assert int(figures["Open transactions"]) >= 1 and int(figures["Records withheld"]) >= 40
    assert set(figures) == {
        "Open transactions",
        "Hanging transactions",
        "Records withheld",
        "Worst lag",
    }
    said = texts(app)
    assert f"**{topic}-waits** has read all it can, and waits for it." in said.replace("\n", " ")
    assert (
        "is most behind" in said
        and "All is well." in said
        and "by Grace Hopper (unauthenticated)" in said
    )

"""What topics and people wrote is text on every page: no tag, link, picture or formula comes of it.

Compare and Topics have such tests of their own, with records; here are the pages that show what was
said about them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from streamlit.testing.v1 import AppTest

from tests.app.conftest import OpenPage
from tests.app.test_history_page import TWICE, Stored, stored
from tests.backend.kafka.topics import Writer
from topicproof.app.shell.places import PLACES
from topicproof.app.wording import plain
from topicproof.backend.history.store import State
from topicproof.backend.settings import Settings
from topicproof.validators.finding import Example

HOSTILE = (
    "<script>alert(1)</script> ![x](http://127.0.0.1:1/y) [z](javascript:alert(2)) $x$ :red[y] `c`"
)
__all__ = ["stored"]  # a fixture


def read(app: AppTest) -> str:
    """Everything of a page that Streamlit reads as Markdown, as it was given to it."""
    assert not app.exception
    kinds = (
        app.title,
        app.header,
        app.markdown,
        app.caption,
        app.info,
        app.warning,
        app.error,
        app.success,
    )
    told = [str(element.value) for kind in kinds for element in kind]
    labels = [str(one.label) for kind in (app.button, app.expander) for one in kind]
    return "\n".join([*told, *labels, *(str(one.value) for one in app.page_link)])


@pytest.mark.parametrize("page", ["run", "demos", "verdict", "history"])
def test_what_a_run_says_is_text(page: str, open_page: OpenPage, stored: Stored) -> None:
    """Story: a value that is a script is quoted by a finding, a doubt and an error, and somebody
    has signed like that. Every page about the run shows it letter by letter."""
    example = Example(0, 7, f"numbers/0/3/0{HOSTILE}", HOSTILE, f"value {HOSTILE} again")
    finding = replace(TWICE.findings[0], why=f"One is {HOSTILE}.", examples=(example,))
    report = replace(
        TWICE, why=f"Not exactly once: {HOSTILE}.", findings=(finding,), doubts=(HOSTILE,)
    )
    run = stored.add(report, HOSTILE)
    stored.history.end(run.id, State.DONE, report.verdict, report.why, f"It failed: {HOSTILE}")
    params = {
        "run": {"run": run.id},
        "demos": {"story": "clean", "runs": run.id},
        "verdict": {"run": run.id, "stage": HOSTILE},
        "history": {"before": run.id, "after": stored.add(report, HOSTILE).id, "of": HOSTILE},
    }
    said = read(open_page(page, **params[page]))
    assert HOSTILE not in said
    assert plain(HOSTILE) in said


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("run", ("run",)),
        ("demos", ("story", "runs")),
        ("verdict", ("run", "stage")),
        ("matrix", ("guarantee", "fault")),
        ("history", ("scenario", "guarantee", "verdict", "before", "after", "of", "measure")),
        ("compare", ("topic", "partition", "offset", "record", "level", "fate")),
        ("transactions", ("topic", "partition", "producer", "outcome", "skip", "transaction")),
        (
            "topics",
            ("topic", "view", "partition", "offset", "time", "until", "record", "level", "fate"),
        ),
    ],
)
def test_an_address_that_is_a_script_falls_back(
    page: str, names: tuple[str, ...], open_page: OpenPage, stored: Stored
) -> None:
    """Story: a link from a stranger. Each page still opens, and nothing in the link becomes
    markup."""
    stored.add(TWICE)
    app = open_page(page, **dict.fromkeys(names, HOSTILE))
    place = next(place for place in PLACES if page in {each.path for each in place.pages})
    assert HOSTILE not in read(app) and app.title[0].value == place.title


class Stranger(Writer):
    """Its transactional ids are scripts."""

    def transactional_id(self, who: str) -> str:
        return f"{who}{HOSTILE}{self.topic}"


def test_a_transactional_id_is_text(
    open_page: OpenPage, at_home: Settings, bootstrap: str, new_topic: Callable[..., str]
) -> None:
    """Story: Kafka lets an id be any text, and the page says whose transaction is open, and whose
    was aborted."""
    assert at_home.home
    topic = new_topic()
    writer = Stranger(bootstrap, topic)
    writer.write("A2 A- B1")
    app = open_page("transactions", topic=topic, transaction="0/0")
    said = read(app)
    assert HOSTILE not in said
    assert plain(f"B{HOSTILE}{topic}") in said and plain(f"A{HOSTILE}{topic}") in said
    assert app.dataframe[1].value["transactional id"].tolist() == [
        f"{who}{HOSTILE}{topic}" for who in "BA"
    ]
    writer.write("B+")

"""The selector of named clusters, on pages that read no topic."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.app.conftest import OpenPage, texts
from topicproof.app.shell.pages import CHOICE
from topicproof.backend.history.run_state import Facts, RanOn
from topicproof.backend.history.store import History
from topicproof.backend.settings import read_settings

TWO = 'east: {bootstrap: "127.0.0.1:1"}\nwest: {bootstrap: "127.0.0.1:2"}\n'


@pytest.fixture
def checked(empty_home: None, tmp_path: Path) -> str:  # noqa: ARG001 - makes the home
    """A home with two named clusters, and a check across them. Gives the check's id."""
    (tmp_path / "clusters.yaml").write_text(TWO)
    history = History(read_settings())
    sides = {"source": "east (127.0.0.1:1)", "sink": "west (127.0.0.1:2)"}
    run = history.create("check", "check", {"source": "a", "sink": "a", "clusters": sides})
    history.remember(run.id, Facts(source="a", sink="a", cluster=RanOn("127.0.0.1:2", 1, "west")))
    return run.id


def test_a_cluster_is_chosen_on_any_page(checked: str, open_page: OpenPage) -> None:
    """Story: somebody chooses a cluster on one page and goes to others. The choice stays, in the
    URL too; a run's link leads to the run's own cluster; the history names both of a check."""
    page = open_page("history")
    selector = page.selectbox(CHOICE)
    assert selector.options == ["Cluster: 127.0.0.1:1", "Cluster: east", "Cluster: west"]
    assert selector.value == ""
    assert "cluster" not in page.query_params
    (shown,) = [one.value for one in page.dataframe if "cluster" in one.value.columns]
    assert list(shown["cluster"]) == ["east (127.0.0.1:1) → west (127.0.0.1:2)"]

    selector.set_value("east").run()
    assert page.query_params["cluster"] in ("east", ["east"])
    page.switch_page("views/topics.py").run()
    assert page.selectbox(CHOICE).value == "east"
    assert "127.0.0.1:1" in texts(page) and page.query_params["cluster"] in ("east", ["east"])

    page = open_page("verdict", run=checked)
    assert page.selectbox(CHOICE).value == "west"


def test_an_unknown_cluster_is_named(checked: str, open_page: OpenPage) -> None:  # noqa: ARG001
    page = open_page("history", cluster="north")
    assert "There is no cluster north in" in texts(page)


@pytest.mark.usefixtures("empty_home")
def test_without_named_clusters_nothing_is_shown(open_page: OpenPage) -> None:
    assert CHOICE not in [one.key for one in open_page("history").selectbox]


@pytest.mark.usefixtures("empty_home")
def test_a_wrong_file_is_one_sentence(open_page: OpenPage, tmp_path: Path) -> None:
    (tmp_path / "clusters.yaml").write_text("east: 3\n")
    assert "line 1: east:" in texts(open_page("run"))

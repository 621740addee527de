"""Which clusters a contract's topics are on, from its fields and from what a command says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from topicproof.backend.address import Address
from topicproof.backend.contracts.contract import Contract, make_contract
from topicproof.backend.errors import UsageError
from topicproof.backend.runs.sides import settings_of_sides
from topicproof.backend.settings import read_settings


@pytest.fixture(autouse=True)
def clusters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two named clusters, each with a registry."""
    path = tmp_path / "clusters.yaml"
    path.write_text(
        'east: {bootstrap: "east:1", schema_registry: "http://east"}\n'
        'west: {bootstrap: "west:1", schema_registry: "http://west"}\n'
    )
    monkeypatch.setenv("TOPICPROOF_CLUSTERS", str(path))
    monkeypatch.setenv("TOPICPROOF_HOME", str(tmp_path))


def contract(source: str | None, *sinks: str | None) -> Contract:
    """Return a contract whose topics are on these clusters, or on none by name."""

    def side(topic: str, name: str | None) -> dict[str, Any]:
        return {"topic": topic} | ({"cluster": name} if name else {})

    fields = {"source": side("orders", source), "identity": "key"}
    return make_contract(fields | {"sinks": [side(f"copy-{n}", s) for n, s in enumerate(sinks)]})


def test_each_sink_is_judged_on_its_own_cluster() -> None:
    """Story: one topic is mirrored to two clusters, one of them its own. Each side also decodes
    with its own registry, because their schema ids have nothing to do with each other."""
    one, two = contract("east", "west", "east").each()
    far, near = (settings_of_sides(each, read_settings(bootstrap="given:1")) for each in (one, two))
    assert (
        far.sink.address.called == "west (west:1)" and near.sink.address.called == "east (east:1)"
    )
    assert far.other == Address("east:1") and near.other is None
    with far.formats() as (sink, source), near.formats() as (both, none):
        assert source is not None and none is None
        urls = [one.registry.url for one in (sink, source, both) if one.registry is not None]
    assert urls == ["http://west", "http://east", "http://east"]


def test_what_no_contract_names_is_on_the_commands_cluster() -> None:
    """Story: options name the clusters, of one side or of both."""
    given, other = read_settings(bootstrap="given:1"), read_settings(cluster="west")
    (plain,) = contract(None, None).each()
    assert (
        settings_of_sides(plain, given).sink is given
        and settings_of_sides(plain, given).other is None
    )
    assert settings_of_sides(plain, given, other).other == Address("west:1")
    (of_source,) = contract("east", None).each()
    assert settings_of_sides(of_source, given).other == Address("east:1")
    (of_sink,) = contract(None, "east").each()
    assert settings_of_sides(of_sink, given, other).at(Address("east:1")).source == Address(
        "west:1"
    )


@pytest.mark.parametrize(
    ("source", "sink", "told", "said"),
    [
        (None, "west", None, "names the cluster of the sink alone, west. Name the source's too:"),
        ("east", "west", "west", "already names the source's cluster east. Remove the options"),
        ("north", "west", None, "There is no cluster north in"),
    ],
    ids=["the sink alone", "twice", "unknown"],
)
def test_what_is_unclear_is_refused(
    source: str | None, sink: str, told: str | None, said: str
) -> None:
    """Story: guessing a cluster could judge a topic against itself."""
    (one,) = contract(source, sink).each()
    other = read_settings(cluster=told) if told else None
    with pytest.raises(UsageError, match=said):
        settings_of_sides(one, read_settings(), other)

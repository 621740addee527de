"""Named clusters: what their file says, how one is chosen, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from topicproof.backend.errors import UsageError
from topicproof.backend.settings import Settings, read_settings

TWO = 'east: {bootstrap: "east:9092", config: east.properties}\nwest: {bootstrap: "west:9092"}\n'


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with two named clusters; variables point to a third one."""
    (tmp_path / "clusters.yaml").write_text(TWO)
    (tmp_path / "east.properties").write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        "sasl.username=me\nsasl.password=secret\n"
    )
    monkeypatch.setenv("TOPICPROOF_HOME", str(tmp_path))
    monkeypatch.setenv("TOPICPROOF_BOOTSTRAP", "variable:9092")
    monkeypatch.setenv("TOPICPROOF_SCHEMA_REGISTRY", "http://variable:8081")
    return tmp_path


@pytest.mark.usefixtures("home")
def test_a_cluster_has_its_own_address_and_properties() -> None:
    """Story: two clusters are named in the home. Each has its own properties; a variable for
    another cluster does not leak into either, and a child process has the same settings."""
    east, west = (read_settings(cluster=name) for name in ("east", "west"))
    assert (east.address.bootstrap, east.address.called) == ("east:9092", "east (east:9092)")
    assert east.client["sasl.username"] == "me" and not west.client
    assert (west.config, west.registry, west.address.name) == (None, None, "west")
    assert east.environment()["TOPICPROOF_CLUSTER"] == "east"
    assert list(east.named_clusters) == ["east", "west"]


@pytest.mark.usefixtures("home")
def test_a_variable_chooses_a_cluster_and_an_address_overrides_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOPICPROOF_CLUSTER", "west")
    assert read_settings().bootstrap == "west:9092"
    assert read_settings().cluster_options == " --cluster west"
    other = read_settings(bootstrap="other:9092")
    assert (other.bootstrap, other.cluster) == ("other:9092", None)
    assert other.address.called == "other:9092"
    assert other.cluster_options == " --bootstrap other:9092"


@pytest.mark.parametrize("field", ["bootstrap", "config", "schema_registry"])
@pytest.mark.parametrize("control", ["\\0", "\\a", "\\x9f"])
def test_no_field_of_a_cluster_has_a_control_character(
    home: Path, field: str, control: str
) -> None:
    (home / "clusters.yaml").write_text(
        f'east: {{bootstrap: a:1}}\nwest: {{{field}: "x{control}"}}'
    )
    with pytest.raises(UsageError, match="line 2: a control character is in a text"):
        read_settings(cluster="east")


def test_no_file_means_no_clusters(tmp_path: Path) -> None:
    assert Settings(home=tmp_path).named_clusters == {}
    assert Settings(home=tmp_path).cluster_options == ""
    config = tmp_path / "my client.properties"
    config.touch()
    secured = Settings(home=tmp_path, bootstrap="other:9092", config=config)
    assert secured.cluster_options == f" --bootstrap other:9092 --config '{config}'"
    with pytest.raises(UsageError, match=r"gone\.yaml cannot be read"):
        _ = Settings(home=tmp_path, clusters=tmp_path / "gone.yaml").named_clusters


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("east: {}\n", r"line 1: east\.bootstrap: Field required"),
        ("east: {bootstrap: a, configs: b}\n", r"line 1: east\.configs: there is no such field"),
        ("east: {bootstrap: a}\neast: {bootstrap: b}\n", "line 2: east appears twice"),
        ("east: {bootstrap: 'u:p@a:1'}\n", r"line 1: east\.bootstrap: the address has a password"),
        ("east/west: {bootstrap: a}\n", "line 1: a cluster's name has"),
        ("west: {bootstrap: a}\n", r"no cluster east in .*clusters\.yaml\. It names west\."),
        ("- east\n", "expected a mapping of clusters by name"),
        ("east: {bootstrap: a, config: '~nobody1/x'}\n", r"line 1: config: Could not determine"),
    ],
)
def test_mistakes_are_named(home: Path, text: str, says: str) -> None:
    (home / "clusters.yaml").write_text(text)
    with pytest.raises(UsageError, match=says):
        read_settings(cluster="east")


@pytest.mark.usefixtures("home")
def test_a_cluster_is_given_once() -> None:
    with pytest.raises(UsageError, match="Cluster east has an address"):
        read_settings(bootstrap="other:9092", cluster="east")

"""The Helm chart as Helm renders it.

Building Helm takes minutes, so its answers to each of `CASES` are kept in `answers/`, with a seal
over the chart and the cases. `make chart` renders them again. A test fails if the seal is broken.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from topicproof.backend.settings import ROOT

HERE = Path(__file__).parent
CHART = ROOT / "deploy" / "helm" / "topicproof"
ANSWERS, SEAL = HERE / "answers", HERE / "answers" / "seal"
Manifest = dict[str, Any]
TOKEN = "token-of-the-tests"
"""Stands for Spark's token in the answers."""
PLAIN: dict[str, Any] = {"kafka": {"bootstrap": "broker:9092"}}
"""The fewest values that the chart takes."""
EVERYTHING: Mapping[str, Any] = {
    "kafka": {
        "bootstrap": "team-kafka-bootstrap:9093",
        "strimziUser": "checker",
        "schemaRegistry": "https://registry:8081",
    },
    "spark": {"operator": {"enabled": True, "sparkConf": {"spark.sql.shuffle.partitions": "8"}}},
    "storage": {"url": "s3a://proofs/team", "existingSecret": "storage"},
    "database": {"existingSecret": "database"},
    "login": {
        "config": {
            "openid": {
                "issuer": "https://sso.example/realms/team",
                "client_id": "topicproof",
                "address": "https://proof.example",
            }
        },
        "existingSecret": "login",
    },
    "signing": {"existingSecret": "signing"},
    "dashboard": {"hosts": ["proof.internal"]},
    "env": [{"name": "TOPICPROOF_FOUR_EYES", "value": "true"}],
    "image": {"pullSecrets": [{"name": "registry"}]},
    "persistence": {"storageClass": "fast"},
    "ingress": {
        "enabled": True,
        "className": "nginx",
        "host": "proof.example",
        "tlsSecret": "certificate",
        "annotations": {"team": "data"},
    },
    "networkPolicy": {"from": [{"namespaceSelector": {"matchLabels": {"name": "ingress"}}}]},
    "strimzi": {
        "enabled": True,
        "cluster": "team",
        "users": [
            {"name": "runner", "tasks": ["run"], "prefix": "squares-", "topics": ["orders"]},
            {"name": "checker", "tasks": ["inspect", "check"], "topics": ["orders", "invoices"]},
        ],
    },
}
"""Values that turn on everything that the chart has."""


USERS: tuple[Mapping[str, Any], ...] = (
    {"tasks": ["run"], "prefix": "squares-"},
    {"tasks": ["run"], "prefix": "loud-", "topics": ["quiet", "orders"]},
    {"tasks": ["inspect"], "topics": ["orders"]},
    {"tasks": ["check"], "topics": ["orders", "invoices"]},
    {"tasks": ["check"], "topics": ["a"], "groups": ["g", "h"], "prefix": "billing-"},
    {"tasks": ["inspect"], "topics": ["a", "b"], "groups": ["g"], "mirrors": ["east", "west"]},
    {"tasks": ["inspect", "check"], "topics": ["a"], "prefix": "p", "mirrors": ["east"]},
    {"tasks": ["run", "check"], "topics": ["a"], "prefix": "p-"},
)
"""What users of Strimzi may be for."""
REFUSED: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "no-brokers": ("kafka.bootstrap is empty", {}),
    "no-port": ("/kafka/bootstrap", {"kafka": {"bootstrap": "broker"}}),
    "misspelt": ("dashbord", PLAIN | {"dashbord": {}}),
    "open-ingress": (
        "needs login.config",
        PLAIN | {"ingress": {"enabled": True, "host": "a.example"}},
    ),
    "no-host": ("/ingress/host", PLAIN | {"ingress": {"enabled": True}}),
    "no-storage": ("needs storage.url", PLAIN | {"spark": {"operator": {"enabled": True}}}),
    "no-client-secret": (
        "needs login.existingSecret",
        PLAIN | {"login": {"config": {"openid": {"issuer": "https://sso.example"}}}},
    ),
    "secret-as-value": (
        "client_secret",
        PLAIN | {"login": {"config": {"openid": {"client_secret": "s"}}}},
    ),
    "unknown-user": (
        "strimziUser is nobody",
        {"kafka": {"bootstrap": "b:1", "strimziUser": "nobody"}},
    ),
    "two-secrets": (
        "'/kafka': 'not' failed",
        {"kafka": {"bootstrap": "b:1", "strimziUser": "a", "existingSecret": "b"}},
    ),
    "no-cluster": ("/strimzi/cluster", PLAIN | {"strimzi": {"enabled": True}}),
    "every-topic": (
        "/users/0/prefix",
        PLAIN | {"strimzi": {"users": [{"name": "a", "tasks": ["run"], "prefix": ""}]}},
    ),
    "no-topic": ("'topics'", PLAIN | {"strimzi": {"users": [{"name": "a", "tasks": ["check"]}]}}),
    "unknown-task": (
        "/users/0/tasks/0",
        PLAIN | {"strimzi": {"users": [{"name": "a", "tasks": ["all"]}]}},
    ),
}
"""Values that Helm refuses, each with what its message names."""
CASES: Mapping[str, Mapping[str, Any]] = {
    "plain": PLAIN,
    "everything": EVERYTHING,
    "users": PLAIN
    | {
        "strimzi": {
            "enabled": True,
            "cluster": "team",
            "users": [{"name": f"user-{n}", **each} for n, each in enumerate(USERS)],
        }
    },
    **{name: values for name, (_, values) in REFUSED.items()},
}


def seal() -> str:
    """Return the hash of all that the answers depend on, besides Helm."""
    files = sorted(path for path in CHART.rglob("*") if path.is_file())
    texts = [f"{path.relative_to(CHART)}\n{path.read_text()}" for path in files]
    return hashlib.sha256(json.dumps([CASES, texts]).encode()).hexdigest()


def template(
    helm: str, values: Mapping[str, Any], folder: Path
) -> subprocess.CompletedProcess[str]:
    """Let Helm render the chart with these values, as the release `proof`. `folder`: for its own
    files."""
    given = folder / "values.yaml"
    given.write_text(yaml.safe_dump(dict(values)))
    command = [helm, "template", "proof", str(CHART), "--namespace", "team", "-f", str(given)]
    # It finds no cluster of this user's.
    own = {"HOME": str(folder)}
    return subprocess.run(command, env=own, capture_output=True, text=True, check=False)


def rendered(case: str) -> list[Manifest]:
    """Return the manifests that Helm has rendered for a case."""
    text = (ANSWERS / f"{case}.yaml").read_text()
    return [each for each in yaml.safe_load_all(text) if each]


def of_kind(manifests: list[Manifest], kind: str) -> list[Manifest]:
    return [each for each in manifests if each["kind"] == kind]


def pods(manifests: list[Manifest]) -> Iterator[Manifest]:
    """Every pod that these manifests start: its `spec`."""
    for each in manifests:
        if "template" in each.get("spec", {}):
            yield each["spec"]["template"]["spec"]
        if each["kind"] == "SparkConnect":
            yield each["spec"]["server"]["template"]["spec"]
            yield each["spec"]["executor"]["template"]["spec"]


def containers(pod: Manifest) -> list[Manifest]:
    return [*pod.get("initContainers", ()), *pod["containers"]]


def dashboard(manifests: list[Manifest]) -> tuple[Manifest, Manifest]:
    """The dashboard's pod and its container."""
    (found,) = of_kind(manifests, "StatefulSet")
    pod = found["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    return pod, container


def variables(container: Manifest) -> dict[str, str]:
    """The environment of a container, without what Secrets give."""
    return {each["name"]: each["value"] for each in container["env"] if "value" in each}

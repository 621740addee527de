"""What the Helm chart promises: versions, rights, no more power than needed, secrets in Secrets."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pyspark
import pytest
import trustme
import yaml

from tests.chart.chart import (
    ANSWERS,
    CHART,
    EVERYTHING,
    HERE,
    REFUSED,
    SEAL,
    TOKEN,
    USERS,
    Manifest,
    containers,
    dashboard,
    of_kind,
    pods,
    rendered,
    seal,
    variables,
)
from topicproof.backend.kafka.acls import Resource, Right, Task, rights_for
from topicproof.backend.properties.facts import facts_of
from topicproof.backend.services.processes import java
from topicproof.backend.services.spark import given_remote
from topicproof.backend.settings import ROOT, Settings
from topicproof.backend.trust.keys import make_key, read_private
from topicproof.backend.trust.login import dashboard_provider, read_login

Rule = tuple[str, str, str, tuple[str, ...]]


@pytest.fixture(scope="module")
def everything() -> list[Manifest]:
    return rendered("everything")


@pytest.fixture(scope="module")
def plain() -> list[Manifest]:
    return rendered("plain")


def test_chart_and_images_have_the_version_of_the_package(everything: list[Manifest]) -> None:
    """Story: a version is raised in pyproject.toml. Chart, images and Spark have to follow."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version = project["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    # The chart's own version is a semantic one, whose word for a development version has a dash.
    assert (chart["appVersion"], chart["version"]) == (version, version.replace(".dev", "-dev"))
    images = {each["image"] for pod in pods(everything) for each in containers(pod)}
    assert images == {f"topicproof:{version}", f"topicproof-spark:{version}"}
    (spark,) = of_kind(everything, "SparkConnect")
    pinned = f"pyspark[connect]=={spark['spec']['sparkVersion']}"
    assert pinned in project["optional-dependencies"]["cli"]
    dockerfile = (ROOT / "deploy" / "spark" / "Dockerfile").read_text()
    assert f"FROM topicproof:{version}\n" in dockerfile
    assert f"FROM apache/spark:{spark['spec']['sparkVersion']}-" in dockerfile


def rules(user: Manifest) -> list[Rule]:
    """The ACLs of a KafkaUser."""
    return [
        (
            rule["resource"]["type"],
            rule["resource"]["name"],
            rule["resource"]["patternType"],
            tuple(rule["operations"]),
        )
        for rule in user["spec"]["authorization"]["acls"]
    ]


def rules_of(rights: Iterable[Right]) -> list[Rule]:
    """Rights in the words of Strimzi."""
    words = {
        Resource.TOPIC: "topic",
        Resource.GROUP: "group",
        Resource.TRANSACTIONAL_ID: "transactionalId",
    }
    patterns = ("literal", "prefix")
    return [
        (words[each.resource], each.name, patterns[each.prefixed], each.operations)
        for each in rights
    ]


def test_users_of_strimzi_have_the_rights_that_the_command_prints() -> None:
    """Story: a task needs another right. The chart's users get it, and none gets more than
    `topicproof rights` grants."""
    made = of_kind(rendered("users"), "KafkaUser")
    assert {task for each in USERS for task in each["tasks"]} == set(Task)
    for user, each in zip(made, USERS, strict=True):
        wanted = [
            right
            for task in each["tasks"]
            for right in rights_for(
                Task(task),
                each.get("topics", ()),
                each.get("groups", ()),
                each.get("prefix"),
                each.get("mirrors", ()),
            )
        ]
        assert rules(user) == rules_of(wanted)
        assert user["spec"]["authorization"]["type"] == "simple"
        assert user["metadata"]["labels"]["strimzi.io/cluster"] == "team"


def test_no_container_has_more_power_than_it_needs(
    everything: list[Manifest], plain: list[Manifest]
) -> None:
    """Story: somebody adds a container. It is no root, has no capability, and writes nowhere but
    into volumes."""
    found = [pod for manifests in (everything, plain) for pod in pods(manifests)]
    assert len(found) == 4
    for pod in found:
        security = pod["securityContext"]
        assert security["runAsNonRoot"] and security["runAsUser"] == 1000
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        # Otherwise Kubernetes lets the group read the key in the volume at the next start.
        assert security["fsGroupChangePolicy"] == "OnRootMismatch"
        for each in containers(pod):
            assert each["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
        # The Connect server makes the pods of its executors. Nothing else speaks to Kubernetes.
        makes_pods = pod["containers"][0]["name"] == "spark-kubernetes-driver"
        assert pod["automountServiceAccountToken"] is makes_pods
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        volumes = {each["name"]: each for each in pod["volumes"]}
        assert "Memory" not in str(volumes["tmp"]) and "hostPath" not in str(volumes)
    assert "useradd --uid 1000 " in (ROOT / "Dockerfile").read_text()


def test_probes_ask_as_the_compose_file_does(plain: list[Manifest]) -> None:
    """Story: with a login, health is a 401, and a probe by the pod's address is a stranger. All
    probes ask from inside, as docker compose does."""
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    _, *command = compose["dashboard"]["healthcheck"]["test"]
    _, container = dashboard(plain)
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["exec"]["command"] == command
        assert container[probe]["timeoutSeconds"] > 4


def test_each_variable_is_a_setting(everything: list[Manifest], plain: list[Manifest]) -> None:
    """Story: a setting is renamed. The chart must not go on with its old name, which nobody
    reads."""
    known = {"SPARK_REMOTE", *(f"TOPICPROOF_{name.upper()}" for name in Settings.model_fields)}
    for manifests in (everything, plain):
        _, container = dashboard(manifests)
        assert {each["name"] for each in container["env"]} <= known
    _, container = dashboard(everything)
    told = variables(container)
    # The Service that Spark's operator makes has the name of the resource and "-server".
    (spark,) = of_kind(everything, "SparkConnect")
    assert told["SPARK_REMOTE"] == f"sc://{spark['metadata']['name']}-server:15002"
    assert told["TOPICPROOF_DASHBOARD_HOSTS"] == "proof.internal,proof.example"


def test_without_a_login_nobody_else_reaches_the_dashboard(
    everything: list[Manifest], plain: list[Manifest]
) -> None:
    """Story: the chart is installed as it is. The dashboard has no login, so it listens on
    loopback, there is no Service, and the policy lets nobody in. With a login there is a way in,
    for those whom the policy names."""
    _, container = dashboard(plain)
    assert "TOPICPROOF_DASHBOARD_ADDRESS" not in variables(container)
    assert "TOPICPROOF_INSECURE" not in variables(container)
    assert of_kind(plain, "Service") == of_kind(plain, "Ingress") == []
    (policy,) = of_kind(plain, "NetworkPolicy")
    assert policy["spec"]["ingress"] == [] and "Ingress" in policy["spec"]["policyTypes"]
    _, container = dashboard(everything)
    assert variables(container)["TOPICPROOF_DASHBOARD_ADDRESS"] == "0.0.0.0"
    own, spark = of_kind(everything, "NetworkPolicy")
    assert own["spec"]["ingress"][0]["from"] == EVERYTHING["networkPolicy"]["from"]
    ports = {each["port"] for rule in own["spec"]["egress"] for each in rule["ports"]}
    assert ports == {53, 9093, 15002, 8081, 443, 5432}
    # Spark's pods get the labels of their resource. They must not count as the dashboard.
    (service,) = of_kind(everything, "Service")
    (resource,) = of_kind(everything, "SparkConnect")
    assert not service["spec"]["selector"].items() <= resource["metadata"]["labels"].items()
    itself, dashboards = spark["spec"]["ingress"]
    assert [each["port"] for each in dashboards["ports"]] == [15002]
    labels = dashboards["from"][0]["podSelector"]["matchLabels"]
    assert labels == service["spec"]["selector"]
    assert "ports" not in itself


def test_spark_is_set_up_as_in_the_compose_file(everything: list[Manifest]) -> None:
    """Story: a setting of Spark turns out to be needed. It is in both places."""
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    command = " ".join(compose["spark-connect"]["command"])
    wanted = dict(re.findall(r"--conf=(spark\.(?:sql|task)\.\S+)=(\S+)", command))
    (spark,) = of_kind(everything, "SparkConnect")
    ours = EVERYTHING["spark"]["operator"]["sparkConf"]
    assert len(wanted) == 4 and wanted.keys() > ours.keys()
    assert (wanted | ours).items() <= spark["spec"]["sparkConf"].items()


def test_secrets_are_files_for_their_owner_alone(
    everything: list[Manifest], tmp_path: Path
) -> None:
    """Story: Kubernetes lets the group read the files of a Secret, and Topicproof refuses such
    files. The pod's first container copies them, and then login, client properties and key are
    read."""
    pod, container = dashboard(everything)
    given, own = tmp_path / "secrets", tmp_path / "own"
    key = tmp_path / "key.pem"
    make_key(key)
    contents = {
        "ca.crt": trustme.CA().cert_pem.bytes().decode(),
        "sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required"
            ' username="checker" password="a-secret-2718";'
        ),
        "client-secret": "another-secret-3141",
        "key.pem": key.read_text(),
        "token": TOKEN,
    }
    (told,) = of_kind(everything, "ConfigMap")
    volumes = {each["name"]: each for each in pod["volumes"]}
    (copying,) = pod["initContainers"]
    for mount in copying["volumeMounts"]:
        if mount["mountPath"].startswith("/secrets/"):
            folder = given / mount["name"]
            folder.mkdir(parents=True)
            for name in names_in(volumes[mount["name"]]):
                text = contents.get(name) or told["data"][name]
                (folder / name).write_text(text.replace("/run/topicproof", str(own)))
                (folder / name).chmod(0o440)
    own.mkdir()
    *command, from_, to = copying["command"]
    assert (from_, to) == ("/secrets", "/run/topicproof")
    for _again in range(2):  # as after a restart of the container
        subprocess.run([*command, str(given), str(own)], check=True)
    assert {path.stat().st_mode & 0o077 for path in own.rglob("*")} == {0}

    def path(variable: str) -> Path:
        return Path(variables(container)[variable].replace("/run/topicproof", str(own)))

    provider = dashboard_provider(read_login(path("TOPICPROOF_LOGIN")))
    assert provider.client_secret == "another-secret-3141"
    assert read_private(path("TOPICPROOF_SIGNING_KEY")) is not None
    settings = Settings(
        bootstrap="broker:9093",
        config=path("TOPICPROOF_CONFIG"),
        spark_remote=variables(container)["SPARK_REMOTE"],
        spark_token_file=path("TOPICPROOF_SPARK_TOKEN_FILE"),
    )
    assert given_remote(settings).endswith(f":15002/;authorization=Bearer%20{TOKEN}")
    assert settings.client["sasl.username"] == "checker"
    assert facts_of(settings.client).has_tls


def test_spark_asks_for_a_token_that_the_installation_makes(
    everything: list[Manifest], plain: list[Manifest]
) -> None:
    """Story: a pod of the cluster reaches Spark Connect. Only those with the chart's Secret can use
    it. The token is in no value, and an upgrade does not make another one."""
    (secret,) = of_kind(everything, "Secret")
    assert secret["stringData"] == {
        "token": TOKEN,
        "spark-defaults.conf": f"spark.connect.authenticate.token {TOKEN}",
    }
    (spark,) = of_kind(everything, "SparkConnect")
    others = [each for each in everything if each is not secret]
    assert TOKEN not in json.dumps(others) and of_kind(plain, "Secret") == []
    pod = spark["spec"]["server"]["template"]["spec"]
    (volume,) = (each for each in pod["volumes"] if each["name"] == "token")
    assert volume["secret"]["secretName"] == secret["metadata"]["name"]
    (container,) = pod["containers"]
    (mount,) = (each for each in container["volumeMounts"] if each["name"] == "token")
    # Spark reads it in SPARK_HOME/conf, which is /opt/spark in the image. Executors do not get it.
    assert mount["mountPath"] == f"/opt/spark/conf/{names_in(volume)[0]}"
    assert "token" not in json.dumps(spark["spec"]["executor"]).replace("AccountToken", "")
    template = (CHART / "templates" / "spark.yaml").read_text()
    assert 'lookup "v1" "Secret" .Release.Namespace' in template
    assert "b64dec | default (randAlphaNum 48)" in template


def names_in(volume: Manifest) -> list[str]:
    """The files of a volume of Secrets."""
    sources = [*volume.get("projected", {}).get("sources", ()), {"secret": volume.get("secret")}]
    items = [
        source.get("secret") or source.get("configMap")
        for source in sources
        if source.get("secret") or source.get("configMap")
    ]
    return [item["path"] for each in items for item in each["items"]]


CLASSES = {
    "ConfigMap": "ConfigMap",
    "Ingress": "networking.v1.Ingress",
    "NetworkPolicy": "networking.v1.NetworkPolicy",
    "Role": "rbac.Role",
    "Secret": "Secret",
    "RoleBinding": "rbac.RoleBinding",
    "Service": "Service",
    "ServiceAccount": "ServiceAccount",
    "StatefulSet": "apps.StatefulSet",
}
"""The class of each kind in the Kubernetes client that Spark brings."""


def test_kubernetes_knows_each_field(everything: list[Manifest]) -> None:
    """Story: a field is misspelt or at the wrong level. Kubernetes drops it silently from a pod
    template of a SparkConnect, which its own schema leaves open."""
    ours = ("KafkaUser", "SparkConnect")
    pairs = [(CLASSES[each["kind"]], each) for each in everything if each["kind"] not in ours]
    (spark,) = of_kind(everything, "SparkConnect")
    pairs += [
        ("PodTemplateSpec", spark["spec"][name]["template"]) for name in ("server", "executor")
    ]

    misspelt = ("PodTemplateSpec", {"spec": {"containers": [{"readOnlyRootFilesystem": True}]}})
    jars = Path(pyspark.__file__).parent / "jars" / "*"
    answer = subprocess.run(
        [java(), "-cp", str(jars), str(HERE / "Manifests.java")],
        input=json.dumps([*pairs, misspelt]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.stdout == f"{len(pairs)}\n", answer.stderr
    assert 'Unrecognized field "readOnlyRootFilesystem"' in answer.stderr


def test_wrong_values_are_refused() -> None:
    """Story: a value is missing, misspelt, too wide or a secret. Helm refuses to install, and its
    message names the value."""
    for case, (said, _) in REFUSED.items():
        assert said in (ANSWERS / f"{case}.txt").read_text(), case


def test_the_answers_are_those_of_this_chart() -> None:
    """Story: somebody changes the chart. Until Helm has rendered it again, no other test here is
    about it."""
    assert SEAL.read_text() == f"{seal()}\n", "The chart was changed. Run `make chart`."

"""The wheel: it installs one package, and its core needs little."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.backend.evidence.test_attestation import made
from tests.backend.kafka.topics import Writer
from tests.ports import free_ports
from tests.wheel import CORE, fresh_python, requirements_of
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import ROOT


def test_the_wheel_installs_one_package(wheel: Path) -> None:
    """Story: a company installs the wheel beside packages of its own, which may be called app or
    backend."""
    with zipfile.ZipFile(wheel) as packed:
        top = {name.split("/")[0] for name in packed.namelist()}
        names = set(packed.namelist())
    assert top == {"topicproof", wheel.name.removesuffix("-py3-none-any.whl") + ".dist-info"}
    # Without these an installed command could fetch no jars and show no page.
    assert {"topicproof/ivy.xml", "topicproof/app/main.py", "topicproof/py.typed"} <= names


def test_the_installed_dashboard_has_our_options(wheel: Path, tmp_path: Path) -> None:
    """Story: a company installs the wheel. Its dashboard shows no traceback to a viewer, takes no
    uploads of 200 MB, and tells nobody how it is used, as one from a checkout."""
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path)
    options = (
        *("client.showErrorDetails", "server.maxUploadSize", "server.maxWidgetStateSize"),
        *("browser.gatherUsageStats", "runner.magicEnabled", "theme.baseRadius"),
    )
    code = f"from streamlit import config\nprint([config.get_option(name) for name in {options!r}])"
    answers = [
        subprocess.run(
            [sys.executable, "-P", "-c", code],
            cwd=folder,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for folder in (tmp_path / "topicproof", ROOT)
    ]
    assert answers == ["['type', 1, 1, False, False, '6px']\n"] * 2


def test_a_release_has_the_version_of_its_tag(tmp_path: Path) -> None:
    """Story: somebody tags a release and forgets to raise the version. No wheel is built."""
    command = [str(ROOT / "scripts" / "wheel"), str(tmp_path), "v99.0.0"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 3 and "The tag is v99.0.0, and pyproject.toml says" in answer.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def core(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel, what it requires, and pytest."""
    return fresh_python(wheel, tmp_path_factory.mktemp("core") / "fresh", (*CORE, "pytest"))


def test_a_command_without_its_packages_says_what_to_install(core: Path, tmp_path: Path) -> None:
    """Story: somebody installs the core, which is for Spark's workers, and calls the command line.
    Their own tests load the plugin, and do not fail for what they do not use."""
    (tmp_path / "test_mine.py").write_text(
        "def test_mine(): pass\ndef test_theirs(topicproof_broker): pass\n"
    )

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(core), "-W", "error", "-m", *arguments],
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"], "TOPICPROOF_HOME": str(tmp_path / "home")},
            capture_output=True,
            text=True,
            check=False,
        )

    answer = run("topicproof", "doctor")
    assert answer.returncode == 3 and "pip install 'topicproof[cli]'" in answer.stderr
    answer = run("pytest", "-q", "-p", "no:cacheprovider", "test_mine.py")
    assert answer.returncode == 1 and "1 passed, 1 error" in answer.stdout, answer.stdout
    assert "Run: pip install 'topicproof[test]'" in answer.stdout


def test_the_sink_needs_the_core_dependencies_only(core: Path, tmp_path: Path) -> None:
    """Story: Spark's workers have the wheel and what it requires. The sink is imported there,
    without kafka-python, Streamlit or a fault."""
    asked = (
        "import sys, topicproof.sink\nfrom topicproof import"
        " KafkaTransactionalSink\nprint(*sorted({one.split('.')[0] for one in sys.modules} &"
        " {'kafka', 'streamlit', 'sqlalchemy', 'pandas', 'pydantic'}))\n"
        "print(*(one for one in sys.modules if one.startswith('topicproof.backend.faults')))\n"
        "print(topicproof.sink.__file__)\n"
    )
    answer = subprocess.run(
        [core, "-c", asked],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    others, faults, file = answer.stdout.split("\n")[:3]
    assert (others, faults) == ("", "") and Path(file).is_relative_to(core.parent.parent)


def test_a_worker_needs_cryptography_only_for_other_forms_of_keys(
    core: Path, tmp_path: Path
) -> None:
    """Story: the driver hands on keys in the form that each client reads. A worker without the
    package `cryptography` uses them, and says what is missing for another form."""
    asked = (
        "from topicproof.backend.address import Address\n"
        "from topicproof.backend.kafka.client_configs import admin_config, java_client\n"
        "def client(kind):\n"
        "    pem = '-----BEGIN {0}-----\\nAAAA\\n-----END {0}-----\\n'.format\n"
        "    return {'security.protocol': 'SSL', 'ssl.certificate.pem': pem('CERTIFICATE'),"
        " 'ssl.key.pem': pem(kind)}\n"
        "admin_config(Address('a:1', client('PRIVATE KEY')))\n"
        "print(java_client(client('PRIVATE KEY'))['ssl.keystore.type'])\n"
        "java_client(client('RSA PRIVATE KEY'))\n"
    )
    answer = subprocess.run(
        [core, "-c", asked],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.stdout == "PEM\n", answer.stderr
    assert answer.stderr.endswith(
        "UsageError: Client property ssl.key.pem: reading this needs the package cryptography (pip"
        " install cryptography).\n"
    )


def test_the_wheel_alone_serves_the_dashboard_and_inspects_a_topic(
    cluster: Services, wheel: Path, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """Story: somebody installs the wheel with its dashboard, has an empty home, and works outside
    of any clone. The dashboard answers, and so does `inspect` of a topic on a given broker, which
    loads neither Spark nor the history nor the pages. Without Java, what needs it says so in one
    sentence."""
    python = fresh_python(wheel, tmp_path / "fresh", (*CORE, *requirements_of("dashboard")))
    (work := tmp_path / "work").mkdir()
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path / "home")}
    topicproof = [str(python), "-P", "-m", "topicproof"]
    topic = new_topic()
    Writer(cluster.bootstrap, topic).write("A3 A-")
    inspect = subprocess.run(
        [*topicproof, "inspect", topic, "--bootstrap", cluster.bootstrap, "--json"],
        cwd=work,
        # Each import is a line on stderr.
        env=environment | {"PYTHONPROFILEIMPORTTIME": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert inspect.returncode == 0, inspect.stderr
    assert json.loads(inspect.stdout)["fates"]["aborted"] == 3
    imported = {line.rpartition("|")[2].strip() for line in inspect.stderr.splitlines()}
    assert "kafka" in imported and not imported & (SPARK | HISTORY | PAGES | {"pyspark"})

    without_java = subprocess.run(
        [*topicproof, "up"],
        cwd=work,
        env=environment | {"PATH": str(work)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert without_java.returncode == 3 and without_java.stderr.count("\n") == 1
    assert "No Java was found" in without_java.stderr

    (port,) = free_ports(1)
    up = [*topicproof, "up", "--no-demo", "--port", str(port), "--bootstrap", cluster.bootstrap]
    with subprocess.Popen(
        up,
        cwd=work,
        env=environment | {"SPARK_REMOTE": cluster.spark_remote},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "The dashboard is at" in line:
                break
        try:
            page = httpx.get(f"http://127.0.0.1:{port}", timeout=60)
        finally:
            process.send_signal(signal.SIGINT)
        assert page.status_code == 200 and "streamlit" in page.text.lower(), lines
    assert process.returncode == 0
    assert list(work.iterdir()) == []


SPARK = {"pyspark.sql.connect", "grpc"}
HISTORY = {"sqlalchemy", "alembic"}
KAFKA = {"kafka", "confluent_kafka"}
PAGES = {"streamlit", "plotly", "jinja2", "httpx"}
ALL = SPARK | HISTORY | KAFKA | PAGES | {"pandas"}
"""Packages that take 50 ms or more to load, or load others that do."""


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        (("--version",), ALL | {"typer", "pydantic", "rich", "numpy"}),
        (("inspect", "--help"), SPARK | HISTORY | PAGES | {"pyspark"}),
        (("status", "--help"), SPARK | HISTORY | PAGES | {"pyspark"}),
        (("transactions", "--help"), SPARK | HISTORY | PAGES | {"pyspark"}),
        (("rights", "--help"), ALL | {"pyspark", "pyarrow", "numpy"}),
        (("keys", "show"), ALL | {"pyspark", "pyarrow", "numpy"}),
        (("contract", "lint", "contract.yaml"), ALL),
        (("verify", "evidence", "--hashes-only"), ALL),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_command_loads_what_it_needs(
    arguments: tuple[str, ...], absent: set[str], tmp_path: Path
) -> None:
    """Story: a script asks for the version a hundred times, an operator looks at a topic, and a
    build lints its contracts. None waits for packages that take longer to load than its work."""
    (tmp_path / "contract.yaml").write_text(
        'source: {topic: a}\nsink: {topic: b}\nidentity: {json: "$.id"}\nvalue: value\n'
    )
    made(tmp_path / "evidence")
    code = (
        "import sys\nfrom topicproof.__main__ import main\n"
        f"sys.argv = ['topicproof', *{arguments!r}]\n"
        "try:\n    main()\nfinally:\n"
        f"    print('loaded:', *sorted({absent!r} & sys.modules.keys()))\n"
    )
    result = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=tmp_path,
        env={**os.environ, "TOPICPROOF_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "loaded:"


def test_a_command_that_works_collects_its_garbage(tmp_path: Path) -> None:
    """Story: a run goes on for weeks. Nothing is collected while the command is loaded, and
    afterwards all that it makes."""
    code = (
        "import gc, sys\nfrom topicproof.__main__ import main\n"
        "sys.argv = ['topicproof', 'keys', 'show']\n"
        "try:\n    main()\nfinally:\n"
        "    print(gc.isenabled(), gc.get_freeze_count() > 10_000)\n"
    )
    result = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=tmp_path,
        env={**os.environ, "TOPICPROOF_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.splitlines()[-1] == "True True"

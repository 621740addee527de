"""Lets Helm answer each case of `chart.py` and keeps the answers: `make chart`.

    python -m tests.chart [FOLDER]

FOLDER has the CustomResourceDefinitions of both operators as YAML. Their resources are then checked
against them; a field that they do not know is an error. Exits with 1 if anything is wrong.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

from tests.chart.chart import (
    ANSWERS,
    CASES,
    CHART,
    HERE,
    REFUSED,
    SEAL,
    TOKEN,
    Manifest,
    rendered,
    seal,
    template,
)
from topicproof.backend.settings import ROOT


def go() -> str:
    """Return the path of Go: the machine's, or the one of `scripts/setup --dev`."""
    return shutil.which("go") or str(ROOT / ".venv" / "bin" / "go")


def helm() -> str:
    """Return the path of Helm: the machine's, or the one of go.mod, which is built if it is not
    there yet."""
    found = shutil.which("helm")
    built = ROOT / ".venv" / "bin" / "helm"
    if found is None and not built.exists():
        command = [go(), "build", "-o", str(built), "helm.sh/helm/v4/cmd/helm"]
        subprocess.run(command, cwd=HERE, check=True)
    return found or str(built)


def main(arguments: list[str]) -> None:
    tool = helm()
    lint = [tool, "lint", "--strict", "--quiet", str(CHART), "--set", "kafka.bootstrap=broker:9092"]
    subprocess.run(lint, check=True)
    shutil.rmtree(ANSWERS, ignore_errors=True)
    ANSWERS.mkdir()
    for case, values in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            answer = template(tool, values, Path(folder))
        if (answer.returncode == 0) == (case in REFUSED):
            sys.exit(f"{case}: Helm ended with {answer.returncode}. {answer.stderr}")
        suffix = "txt" if case in REFUSED else "yaml"
        text = answer.stdout or answer.stderr
        # Each rendering has a token of its own, which the answers do not keep.
        for token in re.findall(r'^  token: "(\w{48})"$', text, re.MULTILINE):
            text = text.replace(token, TOKEN)
        (ANSWERS / f"{case}.{suffix}").write_text(text)
    SEAL.write_text(seal() + "\n")
    _say(f"Helm answered {len(CASES)} cases.")
    if arguments:
        schemas = definitions(Path(arguments[0]))
        found = [each for case in CASES.keys() - REFUSED.keys() for each in rendered(case)]
        ours = [each for each in found if (each["apiVersion"], each["kind"]) in schemas]
        wrong = [error for each in ours for error in errors(each, schemas)]
        if wrong or {each["kind"] for each in ours} != {"KafkaUser", "SparkConnect"}:
            sys.exit(
                "\n".join(wrong) or "FOLDER lacks the definition of KafkaUser or SparkConnect."
            )
        _say(f"{len(ours)} resources are as their definitions say.")


def definitions(folder: Path) -> dict[tuple[str, str], Any]:
    """Return the schemas of all CustomResourceDefinitions in a folder, by version and kind."""
    found = {}
    for path in sorted(folder.glob("*.yaml")):
        spec = yaml.safe_load(path.read_text())["spec"]
        for version in spec["versions"]:
            name = f"{spec['group']}/{version['name']}"
            found[name, spec["names"]["kind"]] = _strict(version["schema"]["openAPIV3Schema"])
    return found


def errors(manifest: Manifest, schemas: dict[tuple[str, str], Any]) -> list[str]:
    schema = schemas[manifest["apiVersion"], manifest["kind"]]
    name = f"{manifest['kind']} {manifest['metadata']['name']}"
    found = Draft202012Validator(schema).iter_errors(manifest)
    return [f"{name}: {each.json_path}: {each.message}" for each in found]


def _strict(schema: Any) -> Any:
    """Return the schema with no room for fields that it does not name."""
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _strict(each) for key, each in schema.items()}
    open_ = schema.get("x-kubernetes-preserve-unknown-fields")
    if isinstance(schema.get("properties"), dict) and not open_:
        made.setdefault("additionalProperties", False)
    return made


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    main(sys.argv[1:])

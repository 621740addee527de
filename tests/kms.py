"""AWS KMS on loopback for the tests: local-kms, built from tests/kms_server.

The AWS SDK, with which securesystemslib asks it, is in moto's environment (tests/s3.py).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from topicproof.backend.settings import ROOT

SERVER = ROOT / "tests" / "kms_server"


def go() -> str:
    """Return the path of Go: the machine's, or the one of `scripts/setup --dev`."""
    return shutil.which("go") or str(ROOT / ".venv" / "bin" / "go")


@contextmanager
def kms(folder: Path) -> Iterator[Mapping[str, str]]:
    """Start the server with its keys in the folder. Yields the variables by which the AWS SDK finds
    it."""
    program = folder / "kms"
    subprocess.run([go(), "build", "-o", str(program), "."], cwd=SERVER, check=True)
    with (
        (folder / "kms.log").open("wb") as log,
        subprocess.Popen([program, folder / "keys"], stdout=subprocess.PIPE, stderr=log) as process,
    ):
        try:
            assert process.stdout is not None
            yield {
                **os.environ,
                "AWS_ENDPOINT_URL": process.stdout.readline().decode().strip(),
                "AWS_DEFAULT_REGION": "us-east-1",
                "AWS_ACCESS_KEY_ID": "tests",
                "AWS_SECRET_ACCESS_KEY": "a-secret-of-the-tests-3141",
                # No question about credentials leaves this machine.
                "AWS_EC2_METADATA_DISABLED": "true",
            }
        finally:
            process.kill()

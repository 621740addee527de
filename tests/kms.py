"""AWS KMS on loopback for the tests: moto's server, in its environment (tests/s3.py), which has the
AWS SDK too."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.ports import free_ports
from tests.s3 import START_TIMEOUT_S, moto
from topicproof.backend.services.processes import await_start, end_process, listens
from topicproof.backend.settings import Settings

# moto hashes what it signs. AWS does not where a client sends a digest (`MessageType`), as
# securesystemslib does.
_SERVER = """
import sys
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils
from moto.kms.utils import ECDSAPrivateKey
from moto.server import main

def sign_digest(key, message, signing_algorithm):
    assert signing_algorithm == "ECDSA_SHA_256" and len(message) == 32
    return key.private_key.sign(message, ec.ECDSA(utils.Prehashed(hashes.SHA256())))

ECDSAPrivateKey.sign = sign_digest
main(["-H", "127.0.0.1", "-p", sys.argv[1]])
"""


@contextmanager
def kms(settings: Settings, folder: Path) -> Iterator[Mapping[str, str]]:
    """Start the server. Yields the variables by which the AWS SDK finds it. Its log is in the
    folder."""
    (port,) = free_ports(1)
    log = folder / "kms.log"
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [moto(settings), "-P", "-c", _SERVER, str(port)],
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            start_new_session=True,
        ) as process,
    ):
        try:
            await_start("The KMS", process, lambda: listens(port), START_TIMEOUT_S, log)
            yield {
                **os.environ,
                "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
                "AWS_DEFAULT_REGION": "us-east-1",
                "AWS_ACCESS_KEY_ID": "tests",
                "AWS_SECRET_ACCESS_KEY": "a-secret-of-the-tests-3141",
                # No question about credentials leaves this machine.
                "AWS_EC2_METADATA_DISABLED": "true",
            }
        finally:
            process.terminate()
            end_process(process)

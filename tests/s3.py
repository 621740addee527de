"""A real S3 interface on loopback for the tests: moto's server, in an environment of its own, and
the jars with which Spark speaks to it.

Run as `python -m tests.s3` it installs both, which tests then only use. After a change of the
versions here or in requirements-s3.txt, `make lock` writes the hashes again.
"""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyarrow import fs

from tests.ports import free_ports
from topicproof.backend.errors import SetupError, TopicproofError
from topicproof.backend.services.jars import fetch
from topicproof.backend.services.processes import await_start, end_process, listens
from topicproof.backend.settings import ROOT, Settings, read_settings

LOCK, HASHES = ROOT / "requirements-s3.lock", ROOT / "tests" / "s3.sha256"
START_TIMEOUT_S = 60
BUCKET = "proofs"
# hadoop-aws is of the version of Spark's Hadoop, and the others are what it was built with. Its own
# dependency is one jar of 600 MB with every service of AWS; it needs these few. The rest of what
# they need is among Spark's jars.
_IVY = """<ivy-module version="2.0">
  <info organisation="topicproof" module="s3"/>
  <configurations><conf name="s3"/></configurations>
  <dependencies>
    <dependency org="org.apache.hadoop" name="hadoop-aws" rev="3.5.0" conf="s3->master" transitive="false"/>
    <dependency org="software.amazon.s3.analyticsaccelerator" name="analyticsaccelerator-s3" rev="1.3.1" conf="s3->master" transitive="false"/>
    <dependency org="software.amazon.awssdk" name="s3-transfer-manager" rev="2.35.4" conf="s3->default(runtime)"/>
    <dependency org="software.amazon.awssdk" name="sts" rev="2.35.4" conf="s3->default(runtime)"/>
    <exclude org="io.netty"/>
    <exclude org="org.slf4j"/>
    <exclude org="org.apache.httpcomponents"/>
    <exclude org="commons-codec"/>
    <exclude org="commons-logging"/>
  </dependencies>
</ivy-module>
"""  # noqa: E501


@dataclass(frozen=True)
class S3:
    """A running server with an empty bucket."""

    endpoint: str

    @property
    def url(self) -> str:
        return f"s3a://{BUCKET}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which pyarrow and Hadoop find it and its credentials."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": "a-secret-of-the-tests-2718",
            # No question about credentials leaves this machine.
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    @property
    def spark_conf(self) -> dict[str, str]:
        """What an operator tells Spark of it. The credentials are in the environment."""
        return {
            "spark.hadoop.fs.s3a.endpoint": self.endpoint,
            "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
        }


def s3_jars(settings: Settings) -> list[Path]:
    """Return the jars for Spark. They are fetched if they are missing. Raises SetupError."""
    folder = settings.jars / "s3"
    folder.mkdir(parents=True, exist_ok=True)
    definition = folder / "ivy.xml"
    if not definition.exists() or definition.read_text() != _IVY:
        definition.write_text(_IVY)
    lines = (line.split() for line in HASHES.read_text(encoding="utf-8").splitlines())
    fetch(definition, folder, ["s3"], hashes={name: digest for digest, name in lines})
    return sorted((folder / "s3").glob("*.jar"))


def moto(settings: Settings) -> Path:
    """Return the Python of an environment with moto. It is made if it is missing. Raises
    SetupError."""
    folder = settings.jars / "moto"
    python, stamp = folder / "bin" / "python", folder / ".installed"
    wanted = hashlib.sha256(LOCK.read_bytes()).hexdigest()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".installing").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != wanted:
            venv.create(folder, with_pip=True)
            command = [str(python), "-m", "pip", "install", "--quiet", "--require-hashes"]
            answer = subprocess.run(
                [*command, "--disable-pip-version-check", "-r", str(LOCK)],
                capture_output=True,
                text=True,
                check=False,
            )
            if answer.returncode != 0:
                raise SetupError(f"moto could not be installed: {answer.stderr[-2000:]}")
            stamp.write_text(wanted)
    return python


@contextmanager
def s3(settings: Settings, folder: Path) -> Iterator[S3]:
    """Start the server. Its log is in the folder."""
    (port,) = free_ports(1)
    log = folder / "s3.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [moto(settings), "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            start_new_session=True,
        )
    try:
        await_start("The S3 server", process, lambda: listens(port), START_TIMEOUT_S, log)
        found = S3(f"http://127.0.0.1:{port}")
        names = found.environment
        fs.S3FileSystem(
            endpoint_override=f"127.0.0.1:{port}",
            scheme="http",
            region=names["AWS_REGION"],
            access_key=names["AWS_ACCESS_KEY_ID"],
            secret_key=names["AWS_SECRET_ACCESS_KEY"],
            allow_bucket_creation=True,
        ).create_dir(BUCKET)
        yield found
    finally:
        process.terminate()
        end_process(process)


def rewrite_hashes() -> None:
    """Fetch the jars again and trust them: write their hashes."""
    with tempfile.TemporaryDirectory(prefix="topicproof-jars-") as name:
        definition = Path(name) / "ivy.xml"
        definition.write_text(_IVY)
        fetch(definition, Path(name), ["s3"])
        files = sorted((Path(name) / "s3").iterdir())
        hashes = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
    lines = (f"{digest}  s3/{file.name}\n" for digest, file in zip(hashes, files, strict=True))
    HASHES.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    try:
        if sys.argv[1:] == ["hashes"]:
            rewrite_hashes()
        else:
            s3_jars(read_settings())
            moto(read_settings())
    except TopicproofError as error:
        sys.exit(str(error))

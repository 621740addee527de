"""A real OpenID Connect provider on loopback for the tests: Keycloak, in memory, with one realm.

Run as `python -m tests.keycloak` it fetches and builds Keycloak, which tests then only start.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.ports import free_ports
from tests.registry import unpack
from topicproof.backend.errors import SetupError, TopicproofError
from topicproof.backend.services.jars import fetch
from topicproof.backend.services.processes import await_start, end_process, java
from topicproof.backend.settings import Settings, read_settings

VERSION = "26.5.6"
START_TIMEOUT_S = 180
BUILT = 10
"""Exit code of a Keycloak that has just built itself for these options."""
REALM, CLIENT, DEVICE_CLIENT = "team", "topicproof", "topicproof-cli"
CLIENT_SECRET = "a-secret-of-the-tests-7341"
PASSWORD = "a-password-of-the-tests-9152"
PEOPLE = {
    "ada": ("Ada Lovelace", ["viewer"]),
    "grace": ("Grace Hopper", ["kafka-operators"]),
    "kurt": ("Kurt Gödel", ["signer"]),
    "emmy": ("Emmy Noether", ["admin"]),
    "alan": ("Alan Turing", []),
}
"""Names and groups by user name. The last one has no role here."""

_IVY = """<ivy-module version="2.0">
  <info organisation="topicproof" module="keycloak"/>
  <configurations><conf name="keycloak"/></configurations>
  <dependencies>
    <dependency org="org.keycloak" name="keycloak-quarkus-dist" rev="{0}" conf="keycloak->master" transitive="false">
      <artifact name="keycloak-quarkus-dist" type="tar.gz" ext="tar.gz"/>
    </dependency>
  </dependencies>
</ivy-module>
"""  # noqa: E501


@dataclass(frozen=True)
class Keycloak:
    """A running provider."""

    issuer: str

    def login_fields(self, address: str, secret_file: Path) -> dict[str, Any]:
        """Return the fields of a login file for a dashboard at `address`."""
        return {
            "openid": {
                "issuer": self.issuer,
                "client_id": CLIENT,
                "client_secret_file": str(secret_file),
                "address": address,
                "device_client_id": DEVICE_CLIENT,
                "person": "sub",
            },
            "roles": {"claim": "realm_access.roles", "operator": ["kafka-operators"]},
        }

    def id_token(self, name: str, client: str) -> str:
        """Return an ID token of a person for a client."""
        form = {"grant_type": "password", "username": name, "password": PASSWORD}
        form |= {"client_id": client, "scope": "openid"}
        form |= {"client_secret": CLIENT_SECRET} if client == CLIENT else {}
        answer = httpx.post(f"{self.issuer}/protocol/openid-connect/token", data=form)
        return str(answer.json()["id_token"])


def keycloak_home(settings: Settings) -> Path:
    """Return the folder of a Keycloak that is built for start-dev. It is fetched, unpacked and
    built if it is missing. Raises SetupError."""
    folder = settings.jars / f"keycloak-{VERSION}"
    folder.mkdir(parents=True, exist_ok=True)
    definition, wanted = folder / "ivy.xml", _IVY.format(VERSION)
    if not definition.exists() or definition.read_text() != wanted:
        definition.write_text(wanted)
    fetch(definition, folder, ["keycloak"])
    home, built = folder / f"keycloak-{VERSION}", folder / ".built"
    with (folder / ".building").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            shutil.rmtree(home, ignore_errors=True)
            (archive,) = (folder / "keycloak").iterdir()
            unpack(archive, folder)
            answer = subprocess.run(_command(home), capture_output=True, text=True, check=False)
            if answer.returncode != BUILT:
                raise SetupError(f"Keycloak could not be built: {answer.stdout[-2000:]}")
            built.touch()
    return home


@contextmanager
def keycloak(settings: Settings, folder: Path, dashboard_port: int) -> Iterator[Keycloak]:
    """Start Keycloak with the realm of `PEOPLE` for a dashboard at this port."""
    built, imported = keycloak_home(settings), folder / "data" / "import"
    for part in ("lib", "providers", "themes", "conf"):
        (folder / part).symlink_to(built / part)
    imported.mkdir(parents=True)
    (imported / f"{REALM}.json").write_text(json.dumps(_realm(dashboard_port)), encoding="utf-8")
    (http,) = free_ports(1)
    issuer = f"http://127.0.0.1:{http}/realms/{REALM}"

    def ready() -> bool:
        try:
            return httpx.get(f"{issuer}/.well-known/openid-configuration").is_success
        except httpx.TransportError:
            return False

    options = ["-Dkc.config.built=true"]
    command = _command(folder, options, [f"--http-port={http}", "--import-realm"])
    log = folder / "keycloak.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            start_new_session=True,
        )
    try:
        await_start("Keycloak", process, ready, START_TIMEOUT_S, log)
        yield Keycloak(issuer)
    finally:
        process.terminate()
        end_process(process)


def _command(home: Path, options: Sequence[str] = (), more: Sequence[str] = ()) -> list[str]:
    """Return the command that starts Keycloak; the first time it builds it, and ends with
    `BUILT`."""
    java_options = ["-Xmx600m", "-XX:TieredStopAtLevel=1", f"-Dkc.home.dir={home}", *options]
    java_options += ["-Djava.util.logging.manager=org.jboss.logmanager.LogManager"]
    java_options += ["-cp", f"{home}/lib/quarkus-run.jar"]
    started = ["io.quarkus.bootstrap.runner.QuarkusEntryPoint", "start-dev", "--db=dev-mem"]
    return [java(), *java_options, *started, "--cache=local", "--http-host=127.0.0.1", *more]


def _realm(dashboard_port: int) -> dict[str, Any]:
    own = f"http://127.0.0.1:{dashboard_port}"
    roles = {
        "name": "realm roles",
        "protocol": "openid-connect",
        "protocolMapper": "oidc-usermodel-realm-role-mapper",
        "config": {
            "claim.name": "realm_access.roles",
            "jsonType.label": "String",
            "multivalued": "true",
            "id.token.claim": "true",
        },
    }
    return {
        "realm": REALM,
        "enabled": True,
        "sslRequired": "none",
        "roles": {"realm": [{"name": name} for name in _groups()]},
        "users": [_user(name, *about) for name, about in PEOPLE.items()],
        "clients": [
            {
                "clientId": CLIENT,
                "secret": CLIENT_SECRET,
                "directAccessGrantsEnabled": True,
                "redirectUris": [f"{own}/oauth2callback"],
                "attributes": {"post.logout.redirect.uris": f"{own}/oauth2callback"},
                "protocolMappers": [roles],
            },
            {
                "clientId": DEVICE_CLIENT,
                "publicClient": True,
                "directAccessGrantsEnabled": True,
                "standardFlowEnabled": False,
                "attributes": {"oauth2.device.authorization.grant.enabled": "true"},
                "protocolMappers": [roles],
            },
        ],
    }


def _groups() -> list[str]:
    return sorted({group for _, groups in PEOPLE.values() for group in groups})


def subject(name: str) -> str:
    """Return Keycloak's id of a person."""
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{name}.team.example"))


def _user(name: str, full: str, groups: list[str]) -> dict[str, Any]:
    first, last = full.split()
    return {
        "id": subject(name),
        "username": name,
        "firstName": first,
        "lastName": last,
        "email": f"{name}@team.example",
        "emailVerified": True,
        "enabled": True,
        "credentials": [{"type": "password", "value": PASSWORD, "temporary": False}],
        "realmRoles": groups,
    }


if __name__ == "__main__":
    try:
        keycloak_home(read_settings())
    except TopicproofError as error:
        sys.exit(str(error))

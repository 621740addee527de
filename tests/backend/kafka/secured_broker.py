"""One broker for every way to get in: each listener asks for something else."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._scram import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.backend.kafka.tokens import CLIENT_ID, token_endpoint
from tests.backend.properties.stores import Authority, write_stores
from tests.ports import free_ports
from topicproof.backend.address import Address
from topicproof.backend.kafka.client_configs import admin_config
from topicproof.backend.services.jars import BROKER, jar_files
from topicproof.backend.services.kafka import EmbeddedKafka
from topicproof.backend.settings import Settings

PLANTED = f"planted{uuid.uuid4().hex}"
"""Part of the password that is the same in each notation, and nowhere else on this machine."""
PASSWORD = f'a "quoted\\ {PLANTED}; #1'
"""What has to be escaped in a JAAS configuration, and in a properties file."""
USER, LIMITED = "reader", "limited"
"""The first may do everything, the second nothing."""
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_MODULE = "org.apache.kafka.common.security"


@dataclass(frozen=True)
class Secured:
    """A running broker."""

    ports: Mapping[str, int]
    """By listener, as in `LISTENERS`."""
    folder: Path
    """It has the files of `write_stores`, for a client certificate of `USER`, and
    secrets.properties."""
    tokens: str
    """The URL of the token endpoint, without a path."""
    tls_tokens: str
    """The same with TLS."""

    def address(self, listener: str, client: Mapping[str, str]) -> Address:
        return Address(f"127.0.0.1:{self.ports[listener]}", client)


LISTENERS = {
    "open": "PLAINTEXT",
    "mtls": "SSL",
    "sasl_ssl": "SASL_SSL",
    "sasl_plain": "SASL_PLAINTEXT",
    "sasl_only_scram": "SASL_PLAINTEXT",
    "expired": "SSL",
    "elsewhere": "SSL",
    "unresolved": "PLAINTEXT",
    "closed": "PLAINTEXT",
}
ADVERTISED = {"unresolved": "kafka.invalid:29092", "closed": "127.0.0.1:1"}
"""What some listeners tell clients instead of their own address."""


def _overrides(ports: Mapping[str, int], folder: Path, tokens: str) -> dict[str, str]:
    listeners = ",".join(f"{name.upper()}://127.0.0.1:{ports[name]}" for name in LISTENERS)
    advertised = ",".join(
        f"{name.upper()}://{ADVERTISED.get(name, f'127.0.0.1:{ports[name]}')}" for name in LISTENERS
    )
    controller = f"CONTROLLER://127.0.0.1:{ports['controller']}"
    protocols = ",".join(f"{name.upper()}:{protocol}" for name, protocol in LISTENERS.items())
    known = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
    # Once for the properties file of the broker, after once for JAAS.
    plain = (
        f'{_MODULE}.plain.PlainLoginModule required user_{USER}="{known}" user_{LIMITED}="l";'
    ).replace("\\", "\\\\")
    given = {
        "listeners": f"{listeners},{controller}",
        "advertised.listeners": f"{advertised},{controller}",
        "listener.security.protocol.map": f"{protocols},CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "OPEN",
        "controller.quorum.voters": f"1@127.0.0.1:{ports['controller']}",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "ca.pem"),
        "listener.name.mtls.ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^.*CN=([^,]*).*$/$1/,DEFAULT",
        "sasl.oauthbearer.jwks.endpoint.url": f"{tokens}/keys",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "false",
        "super.users": f"User:ANONYMOUS;User:{USER};User:{CLIENT_ID}",
    }
    for name in ("mtls", "sasl_ssl", "expired", "elsewhere"):
        given[f"listener.name.{name}.ssl.keystore.type"] = "PEM"
        given[f"listener.name.{name}.ssl.keystore.location"] = str(folder / f"{name}.pem")
    given["listener.name.sasl_only_scram.sasl.enabled.mechanisms"] = "SCRAM-SHA-256"
    for name in ("sasl_ssl", "sasl_plain", "sasl_only_scram"):
        of = f"listener.name.{name}"
        given[f"{of}.plain.sasl.jaas.config"] = plain
        for bits in ("256", "512"):
            given[f"{of}.scram-sha-{bits}.sasl.jaas.config"] = (
                f"{_MODULE}.scram.ScramLoginModule required;"
            )
        given[f"{of}.oauthbearer.sasl.jaas.config"] = (
            f"{_MODULE}.oauthbearer.OAuthBearerLoginModule required;"
        )
        given[f"{of}.oauthbearer.sasl.server.callback.handler.class"] = (
            f"{_MODULE}.oauthbearer.OAuthBearerValidatorCallbackHandler"
        )
    return given


@contextmanager
def secured_broker(settings: Settings, folder: Path) -> Iterator[Secured]:
    """Start it; its own files and those of its clients are in `folder`."""
    authority = Authority()
    write_stores(folder, authority, authority.issue("client@example.org", USER))
    escaped = PASSWORD.replace("\\", "\\\\")
    (folder / "secrets.properties").write_text(f"kafka={escaped}\n")
    for name, host, expired in (
        ("mtls", "127.0.0.1", False),
        ("sasl_ssl", "127.0.0.1", False),
        ("expired", "127.0.0.1", True),
        ("elsewhere", "broker.example", False),
    ):
        issued = authority.issue(host, expired=expired)
        (folder / f"{name}.pem").write_text(issued.key + issued.chain)
    names = (*LISTENERS, "controller")
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    with token_endpoint() as tokens, token_endpoint(folder / "sasl_ssl.pem") as tls_tokens:
        kafka = EmbeddedKafka(
            folder / "kafka",
            jar_files(settings, BROKER),
            overrides=_overrides(ports, folder, tokens),
        )
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={tokens}/keys"
        options = f"{os.environ.get('JDK_JAVA_OPTIONS', '')} {allowed}"
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("JDK_JAVA_OPTIONS", options)
            kafka.start()
        try:
            found = Secured(ports, folder, tokens, tls_tokens)
            _add_scram(found)
            yield found
        finally:
            kafka.stop()


def _add_scram(secured: Secured) -> None:
    admin = AdminClient(admin_config(secured.address("open", {})))
    kinds = (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
    for kind in kinds:
        wanted = UserScramCredentialUpsertion(
            USER, ScramCredentialInfo(kind, 4096), PASSWORD.encode()
        )
        for made in admin.alter_user_scram_credentials([wanted]).values():
            made.result()

"""The facts in the words of each client: librdkafka, kafka-python, and Java in Spark.

Certificates and keys are given inline, because Spark's executors have no file of ours.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from topicproof.backend.errors import UsageError
from topicproof.backend.properties.facts import MODULES, OAUTHBEARER, ClientFacts, Tokens
from topicproof.backend.properties.jaas import login_line

_JAVA_KNOWS = ("client.id", "client.rack", "client.dns.lookup", "connections.max.idle.ms")
"""Settings with one meaning for librdkafka and Java."""
_TOKEN_HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"


def for_librdkafka(facts: ClientFacts) -> dict[str, str]:
    """Also the form in which an Address keeps them, and a sink's options carry them."""
    properties = dict(facts.others)
    if facts.protocol != "PLAINTEXT":
        properties["security.protocol"] = facts.protocol
    if facts.mechanism is not None:
        properties["sasl.mechanism"] = facts.mechanism
    if facts.username is not None:
        properties |= {"sasl.username": facts.username, "sasl.password": facts.password or ""}
    if facts.tokens is not None:
        properties |= _tokens_of_librdkafka(facts.tokens)
    if facts.has_tls and facts.ca is not None:
        properties["ssl.ca.pem"] = facts.ca
    if facts.has_tls and facts.identity is not None:
        identity = facts.identity
        properties |= {"ssl.certificate.pem": identity.chain, "ssl.key.pem": identity.key}
        if identity.key_password is not None:
            properties["ssl.key.password"] = identity.key_password
    if facts.has_tls and not facts.check_host:
        properties["ssl.endpoint.identification.algorithm"] = "none"
    return properties


def _tokens_of_librdkafka(tokens: Tokens) -> dict[str, str]:
    properties = {
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": tokens.endpoint,
        "sasl.oauthbearer.client.id": tokens.client_id,
        "sasl.oauthbearer.client.secret": tokens.client_secret,
    }
    if tokens.scope is not None:
        properties["sasl.oauthbearer.scope"] = tokens.scope
    if tokens.extensions:
        properties["sasl.oauthbearer.extensions"] = ",".join(
            f"{name}={value}" for name, value in tokens.extensions.items()
        )
    if tokens.ca is not None:
        properties["https.ca.pem"] = tokens.ca
    return properties


def for_kafka_python(facts: ClientFacts) -> dict[str, Any]:
    """Keyword arguments without a token provider: `backend/kafka/tokens.py` has it."""
    arguments: dict[str, Any] = {}
    if facts.protocol != "PLAINTEXT":
        arguments["security_protocol"] = facts.protocol
    if facts.mechanism is not None:
        arguments["sasl_mechanism"] = facts.mechanism
    if facts.username is not None:
        arguments |= {"sasl_plain_username": facts.username, "sasl_plain_password": facts.password}
    if facts.has_tls:
        arguments["ssl_context"] = tls_context(facts)
    if "client.id" in facts.others:
        arguments["client_id"] = facts.others["client.id"]
    return arguments


def for_java(facts: ClientFacts) -> dict[str, str]:
    """Kafka's Java properties (KIP-651 for inline PEM, KIP-768 for tokens)."""
    properties = {name: facts.others[name] for name in _JAVA_KNOWS if name in facts.others}
    if facts.protocol != "PLAINTEXT":
        properties["security.protocol"] = facts.protocol
    if facts.mechanism is not None:
        properties["sasl.mechanism"] = facts.mechanism
        properties["sasl.jaas.config"] = login_line(MODULES[facts.mechanism], _login_options(facts))
    if facts.tokens is not None:
        properties["sasl.login.callback.handler.class"] = _TOKEN_HANDLER
        properties["sasl.oauthbearer.token.endpoint.url"] = facts.tokens.endpoint
    if not facts.has_tls:
        return properties
    if facts.ca is not None:
        properties |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": facts.ca}
    identity = facts.with_plain_key().identity
    if identity is not None:
        properties |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": identity.chain,
            "ssl.keystore.key": identity.key,
        }
    if not facts.check_host:
        properties["ssl.endpoint.identification.algorithm"] = ""
    return properties


def _login_options(facts: ClientFacts) -> dict[str, str]:
    if facts.mechanism != OAUTHBEARER or facts.tokens is None:
        return {"username": facts.username or "", "password": facts.password or ""}
    tokens = facts.tokens
    options = {"clientId": tokens.client_id, "clientSecret": tokens.client_secret}
    if tokens.scope is not None:
        options["scope"] = tokens.scope
    options |= {f"extension_{name}": value for name, value in tokens.extensions.items()}
    if tokens.ca is not None:
        options |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": tokens.ca}
    return options


def tls_context(facts: ClientFacts, verified: bool = True) -> ssl.SSLContext:
    """Return the TLS settings of a client in Python, TLS 1.2 or later.

    Raises UsageError if a certificate is damaged, or if the key, its password and the certificate
    do not fit together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = facts.check_host and verified
    if not verified:
        context.verify_mode = ssl.CERT_NONE
    elif facts.ca is None:
        context.load_default_certs()
    else:
        try:
            context.load_verify_locations(cadata=facts.ca)
        except ssl.SSLError as error:
            raise UsageError(
                "The authorities' certificates are damaged (ssl.ca.location)."
            ) from error
    if facts.identity is not None:
        _load_identity(context, facts)
    return context


def _load_identity(context: ssl.SSLContext, facts: ClientFacts) -> None:
    """OpenSSL in Python reads a key from a file only: one in a folder of this user's, for the
    moment of reading."""
    identity = facts.identity
    assert identity is not None
    with TemporaryDirectory(prefix="topicproof-") as folder:
        path = Path(folder) / "identity.pem"
        path.touch(mode=0o600)
        path.write_text(identity.key + identity.chain, encoding="ascii")
        try:
            # Without a password OpenSSL would ask the terminal for one.
            context.load_cert_chain(path, password=lambda: identity.key_password or "")
        except ssl.SSLError as error:
            why = (
                "it does not belong to the certificate"
                if error.reason == "KEY_VALUES_MISMATCH"
                else "its password (ssl.key.password) is wrong or missing, or it is damaged"
            )
            raise UsageError(f"The client's private key cannot be used: {why}.") from error

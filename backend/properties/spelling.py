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
    told = dict(facts.others)
    if facts.protocol != "PLAINTEXT":
        told["security.protocol"] = facts.protocol
    if facts.mechanism is not None:
        told["sasl.mechanism"] = facts.mechanism
    if facts.username is not None:
        told |= {"sasl.username": facts.username, "sasl.password": facts.password or ""}
    if facts.tokens is not None:
        told |= _tokens_of_librdkafka(facts.tokens)
    if facts.has_tls and facts.ca is not None:
        told["ssl.ca.pem"] = facts.ca
    if facts.has_tls and facts.identity is not None:
        own = facts.identity
        told |= {"ssl.certificate.pem": own.chain, "ssl.key.pem": own.key}
        if own.key_password is not None:
            told["ssl.key.password"] = own.key_password
    if facts.has_tls and not facts.check_host:
        told["ssl.endpoint.identification.algorithm"] = "none"
    return told


def _tokens_of_librdkafka(tokens: Tokens) -> dict[str, str]:
    told = {
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": tokens.endpoint,
        "sasl.oauthbearer.client.id": tokens.client_id,
        "sasl.oauthbearer.client.secret": tokens.client_secret,
    }
    if tokens.scope is not None:
        told["sasl.oauthbearer.scope"] = tokens.scope
    if tokens.extensions:
        told["sasl.oauthbearer.extensions"] = ",".join(
            f"{name}={value}" for name, value in tokens.extensions.items()
        )
    if tokens.ca is not None:
        told["https.ca.pem"] = tokens.ca
    return told


def for_kafka_python(facts: ClientFacts) -> dict[str, Any]:
    """Keyword arguments without a token provider: `backend/kafka/log/tokens.py` has it."""
    told: dict[str, Any] = {}
    if facts.protocol != "PLAINTEXT":
        told["security_protocol"] = facts.protocol
    if facts.mechanism is not None:
        told["sasl_mechanism"] = facts.mechanism
    if facts.username is not None:
        told |= {"sasl_plain_username": facts.username, "sasl_plain_password": facts.password}
    if facts.has_tls:
        told["ssl_context"] = tls_context(facts)
    if "client.id" in facts.others:
        told["client_id"] = facts.others["client.id"]
    return told


def for_java(facts: ClientFacts) -> dict[str, str]:
    """Kafka's Java properties (KIP-651 for inline PEM, KIP-768 for tokens)."""
    told = {name: facts.others[name] for name in _JAVA_KNOWS if name in facts.others}
    if facts.protocol != "PLAINTEXT":
        told["security.protocol"] = facts.protocol
    if facts.mechanism is not None:
        told["sasl.mechanism"] = facts.mechanism
        told["sasl.jaas.config"] = login_line(MODULES[facts.mechanism], _login_options(facts))
    if facts.tokens is not None:
        told["sasl.login.callback.handler.class"] = _TOKEN_HANDLER
        told["sasl.oauthbearer.token.endpoint.url"] = facts.tokens.endpoint
    if not facts.has_tls:
        return told
    if facts.ca is not None:
        told |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": facts.ca}
    own = facts.with_plain_key().identity
    if own is not None:
        told |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": own.chain,
            "ssl.keystore.key": own.key,
        }
    if not facts.check_host:
        told["ssl.endpoint.identification.algorithm"] = ""
    return told


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
    own = facts.identity
    assert own is not None
    with TemporaryDirectory(prefix="topicproof-") as folder:
        path = Path(folder) / "identity.pem"
        path.touch(mode=0o600)
        path.write_text(own.key + own.chain, encoding="ascii")
        try:
            # Without a password OpenSSL would ask the terminal for one.
            context.load_cert_chain(path, password=lambda: own.key_password or "")
        except ssl.SSLError as error:
            why = (
                "it does not belong to the certificate"
                if error.reason == "KEY_VALUES_MISMATCH"
                else "its password (ssl.key.password) is wrong or missing, or it is damaged"
            )
            raise UsageError(f"The client's private key cannot be used: {why}.") from error

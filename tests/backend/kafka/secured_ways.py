"""Files of client properties as people have them, and what each must do at the secured broker."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.backend.kafka.secured_broker import PASSWORD, USER
from tests.backend.kafka.tokens import CLIENT_ID, CLIENT_SECRET, SCOPE
from tests.backend.properties.stores import KEY_PASSWORD, STORE_PASSWORD

MODULE = "org.apache.kafka.common.security"


@dataclass(frozen=True)
class Way:
    listener: str
    lines: tuple[str, ...]
    """`{folder}`, `{tokens}` and `{tls_tokens}` are filled in."""

    def text(self, folder: Path, tokens: str, tls_tokens: str) -> str:
        text = "".join(f"{line}\n" for line in self.lines)
        filled = text.replace("{folder}", str(folder)).replace("{tokens}", tokens)
        return filled.replace("{tls_tokens}", tls_tokens)


def _escaped(value: str) -> str:
    """Return a value as a properties file has it."""
    return value.replace("\\", "\\\\")


def _jaas(module: str, **options: str) -> str:
    def quoted(value: str) -> str:
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'

    told = " \\\n    ".join(f"{name}={_escaped(quoted(v))}" for name, v in options.items())
    return f"sasl.jaas.config={MODULE}.{module} required \\\n    {told};"


PLAIN_JAAS = _jaas("plain.PlainLoginModule", username=USER, password=PASSWORD)
SCRAM_JAAS = _jaas("scram.ScramLoginModule", username=USER, password=PASSWORD)
OAUTH = "oauthbearer.OAuthBearerLoginModule"
HANDLER = "oauthbearer.OAuthBearerLoginCallbackHandler"
SASL_SSL, SSL = "security.protocol=SASL_SSL", "security.protocol=SSL"
CA = "ssl.ca.location={folder}/ca.pem"
JKS = ("ssl.truststore.location={folder}/ca.jks", f"ssl.truststore.password={STORE_PASSWORD}")
PKCS12 = (
    "ssl.truststore.location={folder}/ca.p12",
    "ssl.truststore.type=PKCS12",
    f"ssl.truststore.password={STORE_PASSWORD}",
)
USERNAME, SECRET = f"sasl.username={USER}", f"sasl.password={_escaped(PASSWORD)}"
ENDPOINT = "sasl.oauthbearer.token.endpoint.url={tokens}/token"
TLS_ENDPOINT = "sasl.oauthbearer.token.endpoint.url={tls_tokens}/token"
BEARER = "sasl.mechanism=OAUTHBEARER"
CREDENTIALS = "sasl.oauthbearer.client.credentials.client"

WAYS = {
    "plain, librdkafka": Way("sasl_ssl", (SASL_SSL, "sasl.mechanisms=PLAIN", USERNAME, SECRET, CA)),
    "plain, java, jks": Way(
        "sasl_ssl",
        (SASL_SSL, "sasl.mechanism=PLAIN", PLAIN_JAAS, *JKS, "acks=all", "key.serializer=a.B"),
    ),
    "plain, mixed, references": Way(
        "sasl_plain",
        (
            "security.protocol=SASL_PLAINTEXT",
            "sasl.mechanism=PLAIN",
            "sasl.username=${env:KAFKA_USER}",
            "sasl.password=${file:{folder}/secrets.properties:kafka}",
        ),
    ),
    "scram 256, librdkafka, folder": Way(
        "sasl_ssl",
        (
            *(SASL_SSL, "sasl.mechanisms=SCRAM-SHA-256", USERNAME, SECRET),
            "ssl.ca.location={folder}/authorities",
        ),
    ),
    "scram 512, java, pkcs12": Way(
        "sasl_ssl", (SASL_SSL, "sasl.mechanism=SCRAM-SHA-512", SCRAM_JAAS, *PKCS12)
    ),
    "tokens, librdkafka": Way(
        "sasl_ssl",
        (
            *(SASL_SSL, BEARER, ENDPOINT, CA, "sasl.oauthbearer.method=oidc"),
            f"sasl.oauthbearer.client.id={CLIENT_ID}",
            f"sasl.oauthbearer.client.secret={CLIENT_SECRET}",
            f"sasl.oauthbearer.scope={SCOPE}",
        ),
    ),
    "tokens, java 3": Way(
        "sasl_ssl",
        (
            *(SASL_SSL, BEARER, ENDPOINT, *JKS),
            f"sasl.login.callback.handler.class={MODULE}.{HANDLER}",
            _jaas(OAUTH, clientId=CLIENT_ID, clientSecret=CLIENT_SECRET, scope=SCOPE),
        ),
    ),
    "tokens, java 4": Way(
        "sasl_ssl",
        (
            *(SASL_SSL, BEARER, ENDPOINT, *JKS),
            f"sasl.jaas.config={MODULE}.{OAUTH} required;",
            f"{CREDENTIALS}.id={CLIENT_ID}",
            f"{CREDENTIALS}.secret={CLIENT_SECRET}",
            f"sasl.oauthbearer.scope={SCOPE}",
        ),
    ),
    "tokens by tls, librdkafka": Way(
        "sasl_ssl",
        (
            *(SASL_SSL, BEARER, TLS_ENDPOINT, CA, "https.ca.location={folder}/ca.pem"),
            f"sasl.oauthbearer.client.id={CLIENT_ID}",
            f"sasl.oauthbearer.client.secret={CLIENT_SECRET}",
            f"sasl.oauthbearer.scope={SCOPE}",
        ),
    ),
    "tokens by tls, java": Way(
        "sasl_ssl",
        (
            *(SASL_SSL, BEARER, TLS_ENDPOINT, *JKS),
            _jaas(
                OAUTH,
                clientId=CLIENT_ID,
                clientSecret=CLIENT_SECRET,
                scope=SCOPE,
                **{
                    "ssl.truststore.location": "{folder}/ca.jks",
                    "ssl.truststore.password": STORE_PASSWORD,
                },
            ),
        ),
    ),
    "certificate, encrypted key": Way(
        "mtls",
        (
            *(SSL, CA, "ssl.certificate.location={folder}/me.pem"),
            *("ssl.key.location={folder}/me.encrypted.key", f"ssl.key.password={KEY_PASSWORD}"),
        ),
    ),
    "certificate, pkcs1 key": Way(
        "mtls",
        (
            *(SSL, CA, "ssl.certificate.location={folder}/me.pem"),
            "ssl.key.location={folder}/me.pkcs1.key",
        ),
    ),
    "certificate, java, jks": Way(
        "mtls",
        (
            *(SSL, *JKS, "ssl.keystore.location={folder}/me.jks", "ssl.keystore.type=JKS"),
            *(f"ssl.keystore.password={STORE_PASSWORD}", f"ssl.key.password={KEY_PASSWORD}"),
        ),
    ),
    "certificate, pkcs12": Way(
        "mtls",
        (
            *(SSL, CA, "ssl.keystore.location={folder}/me.p12"),
            f"ssl.keystore.password={STORE_PASSWORD}",
        ),
    ),
    "certificate, java, pem": Way(
        "mtls",
        (
            *(SSL, "ssl.truststore.type=PEM", "ssl.truststore.location={folder}/ca.pem"),
            *("ssl.keystore.type=PEM", "ssl.keystore.location={folder}/both.pem"),
            f"ssl.key.password={KEY_PASSWORD}",
        ),
    ),
    "certificate, java, inline": Way(
        "mtls",
        (
            *(SSL, "ssl.truststore.type=PEM", "ssl.keystore.type=PEM"),
            "ssl.truststore.certificates=${directory:{folder}:ca.pem}",
            "ssl.keystore.certificate.chain=${directory:{folder}:me.pem}",
            "ssl.keystore.key=${directory:{folder}:me.key}",
        ),
    ),
    "no host check, java": Way("elsewhere", (SSL, *JKS, "ssl.endpoint.identification.algorithm=")),
    "no host check, librdkafka": Way(
        "elsewhere", (SSL, CA, "ssl.endpoint.identification.algorithm=none")
    ),
}

_LOGIN = (SASL_SSL, "sasl.mechanism=PLAIN", CA)
REFUSED = {
    "a wrong password": (
        Way("sasl_ssl", (*_LOGIN, USERNAME, "sasl.password=hidden")),
        r"does not know user reader with this password \(PLAIN\)",
    ),
    "an unknown user": (
        Way(
            "sasl_ssl",
            (
                *(SASL_SSL, "sasl.mechanism=SCRAM-SHA-512", CA),
                *("sasl.username=nobody", "sasl.password=hidden"),
            ),
        ),
        r"does not know user nobody with this password \(SCRAM-SHA-512\)",
    ),
    "a wrong client secret": (
        Way(
            "sasl_ssl",
            (
                *(SASL_SSL, BEARER, ENDPOINT, CA, f"sasl.oauthbearer.client.id={CLIENT_ID}"),
                "sasl.oauthbearer.client.secret=hidden",
            ),
        ),
        r"The token endpoint .* refused client topicproof \(HTTP 401\)",
    ),
    "no token endpoint": (
        Way(
            "sasl_ssl",
            (
                *(SASL_SSL, BEARER, CA, "sasl.oauthbearer.client.id=me"),
                "sasl.oauthbearer.token.endpoint.url=http://127.0.0.1:1/token",
                "sasl.oauthbearer.client.secret=hidden",
            ),
        ),
        "The token endpoint .* cannot be reached: Connection refused",
    ),
    "a login that the port does not take": (
        Way(
            "sasl_only_scram",
            ("security.protocol=SASL_PLAINTEXT", "sasl.mechanism=PLAIN", USERNAME, SECRET),
        ),
        "does not take PLAIN: it offers SCRAM-SHA-256",
    ),
    "no login": (Way("sasl_plain", ()), "closes the connection of a client that does not log in"),
    "an untrusted authority": (
        Way("mtls", (SSL,)),
        "signed by an authority that this client does not trust",
    ),
    "an expired certificate": (Way("expired", (SSL, CA)), "certificate of .* has expired"),
    "another host": (Way("elsewhere", (SSL, CA)), r"certificate of .* is not for the name 127"),
    "no client certificate": (Way("mtls", (SSL, CA)), "asks for a client certificate"),
    "no TLS": (
        Way("mtls", ()),
        r"(speaks TLS, and this client does not|TLS listener needs) ?.*protocol=SSL",
    ),
    "TLS at a port without": (Way("open", (SSL, CA)), "does not speak TLS on this port"),
}

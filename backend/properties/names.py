"""What each client property means here: ignored, refused with what would be lost, or unknown."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches

from topicproof.backend.characters import has_control, visible
from topicproof.backend.errors import UsageError
from topicproof.backend.properties.properties_file import CONTROL_IN_VALUE, place_of

KNOWN = frozenset(
    {
        *("bootstrap.servers", "metadata.broker.list", "security.protocol"),
        *("sasl.mechanism", "sasl.mechanisms", "sasl.jaas.config"),
        *("sasl.username", "sasl.password", "sasl.login.callback.handler.class"),
        *("sasl.oauthbearer.method", "sasl.oauthbearer.grant.type", "sasl.oauthbearer.scope"),
        *("sasl.oauthbearer.client.id", "sasl.oauthbearer.client.secret"),
        "sasl.oauthbearer.client.credentials.client.id",
        "sasl.oauthbearer.client.credentials.client.secret",
        *("sasl.oauthbearer.token.endpoint.url", "sasl.oauthbearer.extensions"),
        *("https.ca.location", "https.ca.pem"),
        *("ssl.ca.location", "ssl.ca.pem", "ssl.certificate.location", "ssl.certificate.pem"),
        *("ssl.key.location", "ssl.key.pem", "ssl.key.password"),
        *("ssl.truststore.location", "ssl.truststore.password", "ssl.truststore.type"),
        *("ssl.truststore.certificates", "ssl.keystore.certificate.chain", "ssl.keystore.key"),
        *("ssl.keystore.location", "ssl.keystore.password", "ssl.keystore.type"),
        "ssl.endpoint.identification.algorithm",
    }
)
"""What `facts.py` translates."""

_IGNORED = frozenset(
    {
        # What a producer or a consumer of Topicproof's does, it decides itself.
        *("acks", "request.required.acks", "enable.idempotence", "retries", "transactional.id"),
        *("message.send.max.retries", "transaction.timeout.ms"),
        *("transaction.two.phase.commit.enable", "delivery.report.only.error"),
        *("group.id", "group.instance.id", "group.protocol", "group.remote.assignor"),
        *("enable.auto.commit", "enable.auto.offset.store", "auto.commit.interval.ms"),
        *("auto.offset.reset", "isolation.level", "partition.assignment.strategy"),
        *("enable.partition.eof", "max.poll.records", "allow.auto.create.topics"),
        *("partitioner", "partitioner.class", "partitioner.ignore.keys"),
        "partitioner.adaptive.partitioning.enable",
        "partitioner.availability.timeout.ms",
        *("key.serializer", "value.serializer", "key.deserializer", "value.deserializer"),
        *("interceptor.classes", "metric.reporters", "metrics.num.samples"),
        *("metrics.recording.level", "metrics.sample.window.ms", "auto.include.jmx.reporter"),
        # How large or patient a Java client is.
        *("buffer.memory", "max.block.ms", "max.request.size", "default.api.timeout.ms"),
        *("fetch.max.wait.ms", "exclude.internal.topics", "metadata.max.idle.ms"),
        *("receive.buffer.bytes", "send.buffer.bytes", "socket.connection.setup.timeout.max.ms"),
        *("compression.gzip.level", "compression.lz4.level", "compression.zstd.level"),
        *(f"sasl.login.{each}.timeout.ms" for each in ("connect", "read")),
        *("sasl.login.retry.backoff.ms", "sasl.login.retry.backoff.max.ms"),
        *(f"sasl.login.refresh.{each}.seconds" for each in ("buffer", "min.period")),
        *("sasl.login.refresh.window.factor", "sasl.login.refresh.window.jitter"),
        # Java's words for Kerberos: without the mechanism GSSAPI nothing reads them.
        *(f"sasl.kerberos.{each}" for each in ("service.name", "kinit.cmd", "principal")),
        *("sasl.kerberos.keytab", "sasl.kerberos.min.time.before.relogin"),
        *("sasl.kerberos.ticket.renew.jitter", "sasl.kerberos.ticket.renew.window.factor"),
        # Names of Java's parts that have one usual value.
        *("ssl.keymanager.algorithm", "ssl.trustmanager.algorithm"),
        "ssl.secure.random.implementation",
    }
)
"""Accepted, because people share one file among programs, and without effect."""

_ONLY_LIBRDKAFKA = (
    "only librdkafka has it, so kafka-python and Spark's Kafka source would not keep it"
)
_ONLY_JAVA = "only Java has it, so librdkafka and kafka-python would not keep it"
_NO_CODE = "it loads code of yours into one client, and the others would do without"
_CLAIMS = "only tokens by client id and secret are supported"
MSK_IAM = (
    "AWS_MSK_IAM signs each login with AWS credentials, in code that only Java loads. Write"
    " sasl.mechanism=SCRAM-SHA-512 with sasl.username and sasl.password from the cluster's secret"
    " (port 9096), or security.protocol=SSL with the client's certificate (port 9094)"
)
"""What Amazon MSK offers instead of its own mechanism."""
_JAAS_FILE = (
    "only Java reads a JAAS file. Write its login in one line:"
    ' sasl.jaas.config=MODULE required NAME="VALUE";'
)

_REFUSED = {
    "ssl.cipher.suites": "Java and OpenSSL name ciphers differently: one client would not keep it",
    **dict.fromkeys(
        ("ssl.curves.list", "ssl.sigalgs.list", "ssl.crl.location", "ssl.ca.certificate.stores"),
        _ONLY_LIBRDKAFKA,
    ),
    **dict.fromkeys(("ssl.provider", "security.providers"), _ONLY_JAVA),
    **dict.fromkeys(
        (
            *("ssl.engine.factory.class", "sasl.client.callback.handler.class"),
            *("sasl.login.class", "plugin.library.paths", "ssl.engine.location", "ssl.engine.id"),
            *("ssl.providers", "sasl.oauthbearer.jwt.validator.class"),
        ),
        _NO_CODE,
    ),
    **dict.fromkeys(
        ("sasl.oauthbearer.config", "enable.sasl.oauthbearer.unsecure.jwt"),
        "unsigned tokens of librdkafka's own are not supported",
    ),
    "java.security.auth.login.config": _JAAS_FILE,
    "sasl.oauthbearer.header.urlencode": "librdkafka never encodes the client id and secret",
}


def _versions(value: str) -> str | None:
    """TLS 1.2 and later are what librdkafka offers, and it cannot be limited further. A file that
    allows 1.2 loses nothing: both sides agree on the newest version that they know."""
    allowed = {version.strip().upper() for version in value.split(",")}
    if "TLSV1.2" in allowed or allowed == {"TLS"}:
        return None
    return (
        "librdkafka offers TLS 1.2 and 1.3 and cannot be limited further. Allow TLSv1.2, or remove"
        " the line"
    )


def _unless(usual: tuple[str, ...], why: str) -> Callable[[str], str | None]:
    return lambda value: None if value.strip().rpartition(".")[2].lower() in usual else why


_VALUES: Mapping[str, Callable[[str], str | None]] = {
    "ssl.protocol": lambda value: None if value == "TLSv1.3" else _versions(value),
    "ssl.enabled.protocols": _versions,
    "enable.ssl.certificate.verification": _unless(
        ("true",),
        "Spark's Kafka source always verifies the broker's certificate. Give the authority that"
        " signed it as ssl.ca.location",
    ),
    "sasl.oauthbearer.method": _unless(("oidc",), _CLAIMS),
    "sasl.oauthbearer.grant.type": _unless(("client_credentials",), _CLAIMS),
    "sasl.oauthbearer.jwt.retriever.class": _unless(
        ("clientcredentialsjwtretriever", "defaultjwtretriever"), _CLAIMS
    ),
    "sasl.login.callback.handler.class": _unless(
        ("oauthbearerlogincallbackhandler", "jaasclientoauthlogincallbackhandler"), _NO_CODE
    ),
    "sasl.oauthbearer.sub.claim.name": _unless(("sub",), _ONLY_JAVA),
    "sasl.oauthbearer.scope.claim.name": _unless(("scope",), _ONLY_JAVA),
}


_NAME = re.compile(r"[a-z0-9._-]+")
"""What librdkafka is asked about, and gets. Its texts end at a NUL: a name that is none of those
above for Python could be one of them for librdkafka."""


def others(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that concern no security and that librdkafka knows.

    Raises UsageError for a property that one of the clients cannot keep, and for one that nobody
    knows. Each message names the line.
    """
    remaining: dict[str, str] = {}
    for name, value in properties.items():
        if has_control(value, layout=True):
            raise UsageError(f"{_place(properties, name)}: {CONTROL_IN_VALUE}")
        why = _REFUSED.get(name) or (_VALUES[name](value) if name in _VALUES else None)
        if name.startswith("sasl.oauthbearer.assertion."):
            why = _CLAIMS
        is_login = name == "sasl.jaas.config" or name.endswith(".class")
        if is_login and value.startswith("software.amazon.msk.auth.iam."):
            why = MSK_IAM
        if why is not None:
            raise UsageError(f"{_place(properties, name)} is not supported: {why}.")
        if name in KNOWN or name in _VALUES or name in _IGNORED:
            continue
        _require_known(name, value, properties)
        remaining[name] = value
    return remaining


def _place(properties: Mapping[str, str], name: str) -> str:
    return visible(place_of(properties, name))


def _require_known(name: str, value: str, properties: Mapping[str, str]) -> None:
    """Ask librdkafka itself. It reads settings in order and stops at the first that it does not
    know, so a second one that nobody knows keeps it from opening a client."""
    from confluent_kafka import KafkaException, Producer  # late: most files need none of this

    last = "topicproof.last"
    message = _UNKNOWN
    try:
        if _NAME.fullmatch(name):
            Producer({name: value, last: ""})
    except KafkaException as error:
        message = error.args[0].str()
    except TypeError:
        pass  # A Python callback, which a file cannot name.
    if last in message:
        return
    if _UNKNOWN not in message:
        raise UsageError(f"{_place(properties, name)}: librdkafka does not take its value.")
    supported = KNOWN | _IGNORED | _VALUES.keys()
    near = get_close_matches(name, supported, 1, 0.8)
    bare = [candidate for candidate in KNOWN if name.endswith(f".{candidate}")]
    hint = " Remove the line, or correct the name."
    if bare:
        hint = f" Write {max(bare, key=len)}, without a prefix."
    elif near:
        hint = f" Did you mean {near[0]}?"
    raise UsageError(f"{_place(properties, name)}: no Kafka client has this property.{hint}")


_UNKNOWN = "No such configuration property"

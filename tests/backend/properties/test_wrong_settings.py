"""Each wrong client property is named at the start: its line and the reason, in one sentence."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import confluent_kafka
import pytest
from hypothesis import example, given as each_of, strategies as st

from tests.backend.properties.stores import STORE_PASSWORD
from topicproof.backend.errors import UsageError
from topicproof.backend.properties import names
from topicproof.backend.properties.facts import facts_of
from topicproof.backend.properties.spelling import for_librdkafka
from topicproof.backend.settings import read_settings

SSL = "security.protocol=SSL\n"
DAMAGED = "-----BEGIN CERTIFICATE-----\\nAAAA\\n-----END CERTIFICATE-----"
PLAIN = "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
MSK = (
    "security.protocol=SASL_SSL\nsasl.mechanism=AWS_MSK_IAM\n"
    "sasl.client.callback.handler.class=software.amazon.msk.auth.iam.IAMClientCallbackHandler\n"
)
STRIMZI = (
    "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\n"
    "sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
    ' oauth.token.endpoint.uri="https://idp/token" oauth.client.id="me" oauth.client.secret="hid"'
    ' oauth.username.claim="sub" oauth.scope="read";\n'
    "sasl.login.callback.handler.class=io.strimzi.kafka.oauth.client"
    ".JaasClientOauthLoginCallbackHandler\n"
)
OAUTH = (
    "security.protocol=SASL_SSL\nsasl.mechanism=OAUTHBEARER\nsasl.oauthbearer.client.id=me\n"
    "sasl.oauthbearer.client.secret=hid\nsasl.oauthbearer.token.endpoint.url=https://idp/token\n"
)
WRONG = {
    "a typo": ("sasl.pasword=hid", "line 1, sasl.pasword: no Kafka client has this property. Did"
               " you mean sasl.password?"),
    "nonsense": ("foo.bar=hid", "line 1, foo.bar: no Kafka client has this property. Remove"),
    "a callback": ("error_cb=hid", "line 1, error_cb: no Kafka client has this property."),
    "a value": ("socket.timeout.ms=hid", "socket.timeout.ms: librdkafka does not take its value."),
    "a range": ("client.id=a\nsocket.timeout.ms=1", "line 2, socket.timeout.ms: librdkafka does"),
    "a protocol": ("security.protocol=TLS", "it must be one of PLAINTEXT, SSL, SASL_PLAINTEXT"),
    "Kerberos": (PLAIN.replace("PLAIN\n", "GSSAPI"),
                 "GSSAPI (Kerberos) is not supported. Supported are PLAIN, SCRAM-"),
    "no mechanism": ("security.protocol=SASL_SSL", "sasl.mechanism: it is missing, and GSSAPI"
                     " (Kerberos), which is meant without it, is not supported. Write which of"),
    "an unknown mechanism": ("security.protocol=SASL_SSL\nsasl.mechanism=SCRAM",
                             "it must be one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER,"
                             " and reads 'SCRAM'."),
    "a comment": ("security.protocol=SASL_SSL   # as the provider says", "it reads 'SASL_SSL   # as"
                  " the provider says': comments and quotes belong to the value. Write SASL_SSL"
                  " alone."),
    "quotes": ('security.protocol="SASL_SSL"', "comments and quotes belong to the value. Write"),
    "typographic quotes": (PLAIN + "sasl.jaas.config=a.PlainLoginModule required username=\u201cme"
                           "\u201d password=\u201chid\u201d;", "line 3, sasl.jaas.config: character"
                           " 38 is a typographic quote (\u201c). Write a straight one (\")."),
    "an open quote": (PLAIN + 'sasl.jaas.config=a.PlainLoginModule required username="me;',
                      "the quote at character 38 is not closed."),
    "no quotes": (PLAIN + "sasl.jaas.config=a.PlainLoginModule required username=me password=h/d;",
                  'the value of password holds what only quotes allow. Write password="VALUE".'),
    "no semicolon": (PLAIN + 'sasl.jaas.config=a.PlainLoginModule required username="me"',
                     "a semicolon (;) must end it, after the last option."),
    "MSK's IAM": (MSK, "line 3, sasl.client.callback.handler.class is not supported: AWS_MSK_IAM"
                  " signs each login with AWS credentials, in code that only Java loads. Write"
                  " sasl.mechanism=SCRAM-SHA-512"),
    "MSK's IAM alone": ("\n".join(MSK.splitlines()[:2]), "line 2, sasl.mechanism: AWS_MSK_IAM"),
    "tokens of a program": ("security.protocol=SASL_SSL\nsasl.mechanisms=OAUTHBEARER",
                            "sasl.oauthbearer.token.endpoint.url: it is missing. Write the http(s)"
                            " address that gives tokens, and sasl.oauthbearer.client.id and"),
    "a JAAS file": ('KafkaClient {\n  a.b.PlainLoginModule required\n  username="hid";\n};',
                    "client.properties is a JAAS file. Client properties hold a login in one line:"
                    ' write sasl.jaas.config=MODULE required NAME="VALUE";'),
    "the name of a JAAS file": ("java.security.auth.login.config=/a/jaas.conf", "line 1,"
                                " java.security.auth.login.config is not supported: only Java reads"
                                " a JAAS file. Write its login in one line: sasl.jaas.config="),
    "a prefix of Spark": ("kafka.security.protocol=SSL",
                          "Write security.protocol, without a prefix."),
    "a login of Spring Boot": ("spring.kafka.jaas.options.password=hid", "line 1,"
                               " spring.kafka.jaas.options.password: only Spring Boot makes a login"
                               " of this. Write it as spring.kafka.properties.sasl.jaas.config="),
    "a store in a jar": ("spring.kafka.ssl.trust-store-location=classpath:ca.jks", "line 1,"
                         " spring.kafka.ssl.trust-store-location: classpath: is inside a jar."),
    "another token of Strimzi": (STRIMZI.replace("oauth.client.secret", "oauth.refresh.token"),
                                 "the option oauth.refresh.token of Strimzi's login is not"
                                 " supported: only tokens by oauth.token.endpoint.uri,"),
    "a secret in Strimzi's environment": (STRIMZI.replace(' oauth.client.secret="hid"', ""),
                                          "Strimzi's login has no oauth.client.secret there. Its"
                                          " programs may take it from their environment; write"),
    "no password": (PLAIN + "sasl.username=me", "sasl.password: it is missing, and"),
    "two users": (PLAIN + 'sasl.username=you\nsasl.jaas.config=a.PlainLoginModule required'
                  ' username="me" password="hid";', "line 3, sasl.username: sasl.jaas.config says"),
    "another module": (PLAIN + 'sasl.jaas.config=a.ScramLoginModule required username="me";',
                       "line 3, sasl.jaas.config: PLAIN needs the login module PlainLoginModule."),
    "two mechanisms": (PLAIN + "sasl.mechanisms=SCRAM-SHA-256", "sasl.mechanism says something"),
    "a verifier": (SSL + "enable.ssl.certificate.verification=false",
                   "is not supported: Spark's Kafka source always verifies"),
    "ciphers": (SSL + "ssl.cipher.suites=A", "line 2, ssl.cipher.suites is not supported: Java"),
    "revocations": (SSL + "ssl.crl.location=/a", "ssl.crl.location is not supported: only librd"),
    "only TLS 1.3": (SSL + "ssl.enabled.protocols=TLSv1.3", "Allow TLSv1.2, or remove the line."),
    "an engine": (SSL + "ssl.engine.factory.class=a.B", "it loads code of yours into one client"),
    "two authorities": (SSL + "ssl.ca.location=/a\nssl.truststore.location=/b",
                        "ssl.truststore.location: ssl.ca.location already gives it."),
    "no such file": (SSL + "ssl.ca.location=/no/such", "line 2, ssl.ca.location: /no/such cannot be"
                     " read (No such file or directory)."),
    "no certificate": (SSL + "ssl.ca.location={0}/me.key", "me.key holds no certificate."),
    "no key": (SSL + "ssl.keystore.location={0}/me.pem", "me.pem holds no private key in PEM."),
    "a key alone": (SSL + "ssl.key.location={0}/me.key", "a key needs its certificate too"),
    "a store's type": (SSL + "ssl.truststore.type=BCFKS\nssl.truststore.location={0}/ca.jks",
                       "ssl.truststore.type: it must be one of JKS, PKCS12, PEM."),
    "a JKS password": (SSL + "ssl.truststore.location={0}/ca.jks\nssl.truststore.password=hid",
                       "line 2, ssl.truststore.location: the store cannot be opened: its password"
                       " is wrong"),
    "a PKCS12 password": (SSL + "ssl.keystore.location={0}/me.p12\nssl.keystore.password=hid",
                          "the store cannot be opened: its password is wrong, or it is not a"
                          " store."),
    "no PKCS12 password": (SSL + "ssl.keystore.location={0}/me.p12",
                           "the store cannot be opened: its password is missing."),
    "the key's password in a JKS": (
        SSL + "ssl.keystore.location={0}/me.jks\nssl.keystore.password=" + STORE_PASSWORD,
        "line 2, ssl.keystore.location: the password of the key in the store"),
    "the key's password": (SSL + "ssl.keystore.location={0}/both.pem\nssl.key.password=hid",
                           "line 3, ssl.key.password: it is the wrong password."),
    "no password of the key": (SSL + "ssl.keystore.location={0}/both.pem",
                               "the key is encrypted. Set ssl.key.password."),
    "a damaged store": (SSL + "ssl.keystore.location={0}/damaged.jks", "the key store is damaged."),
    "another key": (SSL + "ssl.certificate.location={0}/ca.pem\nssl.key.location={0}/me.key",
                    "private key cannot be used: it does not belong to the certificate."),
    "damaged PEM": (SSL + f"ssl.ca.pem={DAMAGED}",
                    "The authorities' certificates are damaged (ssl.ca.location)."),
    "unsigned tokens": ("security.protocol=SASL_SSL\nsasl.mechanism=OAUTHBEARER\n"
                        "sasl.oauthbearer.config=principal=me", "unsigned tokens"),
    "no address": ("security.protocol=SASL_SSL\nsasl.mechanism=OAUTHBEARER\n"
                   "sasl.oauthbearer.token.endpoint.url=idp:8080",
                   "sasl.oauthbearer.token.endpoint.url: it must be an http(s) address."),
    "an extension's name": (OAUTH + "sasl.oauthbearer.extensions=a=b,c-d=hid",
                            "line 6, sasl.oauthbearer.extensions: an extension is NAME=VALUE"),
    "a second token": (OAUTH + "sasl.oauthbearer.extensions=auth=hid", "and is not auth."),
    "half an extension": (OAUTH + "sasl.oauthbearer.extensions=hid", "is NAME=VALUE"),
    "an extension beyond ASCII": (OAUTH + "sasl.oauthbearer.extensions=a=h\u00efd",
                                  "the extension a has a character that is not allowed."),
    "an extension for librdkafka": (OAUTH + "sasl.jaas.config=org.apache.kafka.common.security"
                                    ".oauthbearer.OAuthBearerLoginModule required"
                                    ' extension_a="b,auth=hid";',
                                    "sasl.jaas.config: the extension a has a character"),
    "an endpoint's user": (OAUTH.replace("https://", "https://me:hid@"), "it has a user, which"),
    "a registry's address": ("schema.registry.url=registry:8081",
                             "line 1, schema.registry.url: it must be an http(s) address."),
    "a registry's typo": ("schema.registry.ulr=hid", "line 1, schema.registry.ulr is not supported"
                          " for a schema registry. Remove the line, or correct the name."),
    "a registry's user": ("schema.registry.url=http://a\nbasic.auth.user.info=hid",
                          "line 2, basic.auth.user.info: it must be user:password."),
    "two logins": ("schema.registry.url=http://a\nbasic.auth.user.info=me:hid\n"
                   "bearer.auth.token=hid", "line 3, bearer.auth.token: basic.auth.user.info is"),
    "a registry's login": ("schema.registry.url=http://a\n"
                           "basic.auth.credentials.source=SASL_INHERIT",
                           "line 2, basic.auth.credentials.source: it must be USER_INFO or URL."),
    "a registry's authority": ("schema.registry.url=https://a\n"
                               "schema.registry.ssl.truststore.location=/no/such",
                               "line 2, schema.registry.ssl.truststore.location: /no/such cannot"),
    "a registry's key": ("schema.registry.url=https://a\n"
                         "schema.registry.ssl.keystore.location={0}/both.pem",
                         "line 2, schema.registry.ssl.keystore.location: the key is encrypted."),
    "a registry's host": ("schema.registry.url=https://a\n"
                          "schema.registry.ssl.endpoint.identification.algorithm=",
                          "line 2, schema.registry.ssl.endpoint.identification.algorithm: the"),
    "an assertion": ("sasl.oauthbearer.assertion.file=/a", "only tokens by client id and secret"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_setting_is_named_at_the_start(stores: Path, tmp_path: Path, case: str) -> None:
    """Story: a file has one wrong setting. One sentence names the line and the reason, and holds no
    secret."""
    text, sentence = WRONG[case]
    (stores / "damaged.jks").write_bytes((stores / "me.jks").read_bytes()[:200])
    path = tmp_path / "client.properties"
    path.write_text(text.replace("{0}", str(stores)))
    with pytest.raises(UsageError, match=re.escape(sentence)) as told:
        read_settings(config=path, home=tmp_path)
    assert "hid" not in str(told.value).replace("hidden", "") and "\n" not in str(told.value)


_SPECIAL = sorted({*names._REFUSED, *names._VALUES, *names._IGNORED})
_ODD = st.text(st.sampled_from("\0\t\n\r\x01\x7f\x85 \xa0A.\u200b\u0130"), min_size=1, max_size=3)


@st.composite
def _respelled(draw: st.DrawFn) -> str:
    """A name that is refused or ignored, in another spelling."""
    name, odd = draw(st.sampled_from(_SPECIAL)), draw(_ODD)
    at = draw(st.integers(0, len(name)))
    return draw(
        st.sampled_from(
            [
                f"{name[:at]}{odd}{name[at:]}",
                f"{name}{odd}x",
                name.upper(),
                name.title(),
                f"{name} ",
            ]
        )
    )


@example("plugin.library.paths\0")
@example("plugin.library.paths\0=x")
@each_of(_respelled())
def test_no_spelling_of_a_name_brings_back_what_is_refused(name: str) -> None:
    """Story: librdkafka's texts end at a NUL, so another name for us is the same one for it, and
    it loads the library of `plugin.library.paths` as soon as it hears of it. It hears of plain
    names alone, and no other one reaches a client."""
    heard: list[str] = []

    def hear(settings: dict[str, str]) -> None:
        heard.extend(settings)
        raise confluent_kafka.KafkaException(
            confluent_kafka.KafkaError(-1, f'{names._UNKNOWN}: "topicproof.last"')
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(confluent_kafka, "Producer", hear)
        with suppress(UsageError):
            heard.extend(for_librdkafka(facts_of({name: "/evil.so"})))
    assert all(re.fullmatch(r"[a-z0-9._-]+", each) for each in heard)
    assert not set(heard) & set(_SPECIAL)


@pytest.mark.parametrize("value", ["a\0b", "a\x1bb", "a\rb", "a\x7f"])
@pytest.mark.parametrize("name", ["client.id", "sasl.username", "acks", "ssl.key.pem"])
def test_no_value_of_a_client_has_a_control_character(name: str, value: str) -> None:
    """Story: properties come from the options of a sink, past the reader of files."""
    with pytest.raises(UsageError, match=f"Client property {name}: a control character"):
        facts_of({name: value})


KAFKAS = "bootstrap.servers=a:9092\n" + PLAIN + "sasl.username=me\nsasl.password=you\n"
SPRING = (
    "spring.application.name=orders\nserver.port=8080\n"
    "spring.kafka.bootstrap-servers=a:9092\nspring.kafka.consumer.group-id=orders\n"
    "spring.kafka.properties.security.protocol=SSL\n"
    "spring.kafka.consumer.security.protocol=SASL_PLAINTEXT\n"
    "spring.kafka.properties[sasl.mechanism]=PLAIN\n"
    'spring.kafka.properties.sasl.jaas.config=a.PlainLoginModule required username="me"'
    ' password="you";\n'
)
KAFKAS_TOKENS = (
    "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\nsasl.oauthbearer.scope=read\n"
    "sasl.oauthbearer.token.endpoint.url=https://idp/token\nsasl.oauthbearer.client.id=me\n"
    "sasl.oauthbearer.client.secret=hid\n"
)


@pytest.mark.parametrize(
    ("dialect", "kafkas"),
    [(SPRING, KAFKAS), (f"\ufeff{KAFKAS}", KAFKAS), (STRIMZI, KAFKAS_TOKENS)],
    ids=["Spring Boot", "a byte order mark", "Strimzi"],
)
def test_what_other_programs_write_is_translated(dialect: str, kafkas: str, tmp_path: Path) -> None:
    """Story: somebody hands over the file of his own program. It has all facts, so it gives the
    same settings as Kafka's own names."""
    path = tmp_path / "client.properties"
    path.write_text(dialect, encoding="utf-8")
    given = read_settings(config=path, home=tmp_path)
    path.write_text(kafkas, encoding="utf-8")
    assert given == read_settings(config=path, home=tmp_path)
    assert given.client


def test_a_store_of_spring_boot_is_read(stores: Path, tmp_path: Path) -> None:
    """Story: Spring Boot names files with a scheme."""
    path = tmp_path / "client.properties"
    path.write_text(
        f"spring.kafka.security.protocol=SSL\n"
        f"spring.kafka.ssl.trust-store-location=file:{stores}/ca.jks\n"
        f"spring.kafka.ssl.trustStorePassword={STORE_PASSWORD}\n"
    )
    assert "BEGIN CERTIFICATE" in read_settings(config=path, home=tmp_path).client["ssl.ca.pem"]


def test_a_file_in_utf_16_says_so(tmp_path: Path) -> None:
    """Story: PowerShell redirected a command into the file."""
    path = tmp_path / "client.properties"
    path.write_text(KAFKAS, encoding="utf-16")
    with pytest.raises(UsageError, match=r"is UTF-16 text\. Save it as UTF-8\."):
        read_settings(config=path, home=tmp_path)

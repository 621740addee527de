"""Each wrong client property is named at the start: its line and the reason, in one sentence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.backend.properties.stores import STORE_PASSWORD
from topicproof.backend.errors import UsageError
from topicproof.backend.settings import read_settings

SSL = "security.protocol=SSL\n"
DAMAGED = "-----BEGIN CERTIFICATE-----\\nAAAA\\n-----END CERTIFICATE-----"
PLAIN = "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
WRONG = {
    "a typo": ("sasl.pasword=hid", "line 1, sasl.pasword: no Kafka client has this property. Did"
               " you mean sasl.password?"),
    "nonsense": ("foo.bar=hid", "line 1, foo.bar: no Kafka client has this property. Remove"),
    "a callback": ("error_cb=hid", "line 1, error_cb: no Kafka client has this property."),
    "a value": ("socket.timeout.ms=hid", "socket.timeout.ms: librdkafka does not take its value."),
    "a range": ("client.id=a\nsocket.timeout.ms=1", "line 2, socket.timeout.ms: librdkafka does"),
    "a protocol": ("security.protocol=TLS", "it must be one of PLAINTEXT, SSL, SASL_PLAINTEXT"),
    "Kerberos": (PLAIN.replace("PLAIN\n", "") + "sasl.mechanism=GSSAPI",
                 "GSSAPI is not supported. Supported are PLAIN, SCRAM-SHA-256"),
    "no mechanism": ("security.protocol=SASL_SSL", "sasl.mechanism: GSSAPI (Kerberos), which is"
                     " meant without this property, is not supported."),
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
    "no endpoint": ("security.protocol=SASL_SSL\nsasl.mechanism=OAUTHBEARER\n",
                    "sasl.oauthbearer.token.endpoint.url: it must be an http(s) address."),
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

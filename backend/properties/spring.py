"""Client properties as Spring Boot writes them, in Kafka's words.

What has all facts is translated. The rest is refused with what to write instead.
"""

from __future__ import annotations

import re

from topicproof.backend.errors import UsageError
from topicproof.backend.properties.properties_file import Properties, place_of

_SPRING = "spring.kafka."
_CLIENTS = ("producer.", "streams.", "admin.", "consumer.")
"""Spring Boot's clients have settings of their own. The last of these that has one is taken."""
_NAMES = {
    "bootstrapservers": "bootstrap.servers",
    "clientid": "client.id",
    "security.protocol": "security.protocol",
    "ssl.protocol": "ssl.protocol",
    "ssl.keypassword": "ssl.key.password",
    "ssl.truststorelocation": "ssl.truststore.location",
    "ssl.truststorepassword": "ssl.truststore.password",
    "ssl.truststoretype": "ssl.truststore.type",
    "ssl.truststorecertificates": "ssl.truststore.certificates",
    "ssl.keystorelocation": "ssl.keystore.location",
    "ssl.keystorepassword": "ssl.keystore.password",
    "ssl.keystoretype": "ssl.keystore.type",
    "ssl.keystorecertificatechain": "ssl.keystore.certificate.chain",
    "ssl.keystorekey": "ssl.keystore.key",
}
"""Kafka's name of each of Spring Boot's, without dashes and capital letters."""
_OTHERS = ("spring.", "server.", "management.", "logging.")
"""What else stands in a file of Spring Boot's."""
_PROPERTY = re.compile(r"properties(?:\.|\[)(?P<name>[^\]]+)\]?")


def in_kafkas_words(properties: Properties) -> Properties:
    """Return the properties with Kafka's names instead of Spring Boot's; others stay as they are.

    Raises UsageError for a login or a store that only Spring Boot finds.
    """
    if not any(name.startswith(_SPRING) for name in properties):
        return properties
    names = [name for name in properties if not name.startswith(_OTHERS)]
    values = {name: properties[name] for name in names}
    places = {name: properties.places[name] for name in names if name in properties.places}
    for prefix in ("", *_CLIENTS):
        for name, value in properties.items():
            translated = _kafkas_name(name.removeprefix(_SPRING + prefix))
            if not name.startswith(_SPRING + prefix) or translated is None:
                continue
            values[translated] = _without_scheme(value, properties, name)
            places[translated] = properties.places.get(name, name)
    if login := next((name for name in properties if name.startswith(f"{_SPRING}jaas.")), None):
        raise UsageError(
            f"{place_of(properties, login)}: only Spring Boot makes a login of this. Write it as"
            ' spring.kafka.properties.sasl.jaas.config=MODULE required NAME="VALUE";'
        )
    return Properties(values, places)


def _kafkas_name(name: str) -> str | None:
    """Return Kafka's name of a setting of Spring Boot's; None if it says nothing on connecting."""
    if match := _PROPERTY.fullmatch(name):
        return match["name"]
    return _NAMES.get(name.replace("-", "").replace("_", "").lower())


def _without_scheme(value: str, properties: Properties, name: str) -> str:
    """Return the path of a resource. Raises UsageError for one inside a jar."""
    if value.startswith("classpath:"):
        raise UsageError(
            f"{place_of(properties, name)}: classpath: is inside a jar. Write the path of a file."
        )
    return value.removeprefix("file:") if name.lower().endswith("location") else value

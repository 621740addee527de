"""Why a registry over https cannot be reached: found out by a TLS handshake of our own.

With TLS 1.3 a server looks at the client's certificate after the handshake. It may close the
connection while the request is being written, and its alert is then lost. So nothing is written
here: the alert is read.
"""

from __future__ import annotations

import socket
import ssl
from urllib.parse import urlsplit

from topicproof.backend.properties.registry_properties import RegistryFacts
from topicproof.backend.properties.spelling import tls_context

HANDSHAKE_S = 1.0
"""A server that wants no certificate says nothing after the handshake, for that long."""
_EXPIRED, _NOT_YET, _HOST, _IP = 10, 9, 62, 64
"""OpenSSL's X509_V_ERR codes."""
_OWN = (
    "Set schema.registry.ssl.keystore.location, or schema.registry.ssl.certificate.location and"
    " schema.registry.ssl.key.location, to one that its authorities signed."
)
_ALERT = "ALERT_"


def tls_refusal(facts: RegistryFacts) -> str | None:
    """Return a sentence that names the cause; None if TLS works, and where nothing listens."""
    for url in facts.url.split(","):
        if url.startswith("https:") and (why := _refusal(url, facts)) is not None:
            return why
    return None


def _refusal(url: str, facts: RegistryFacts) -> str | None:
    place = urlsplit(url)
    host = place.hostname or ""
    try:
        plain = socket.create_connection((host, place.port or 443), HANDSHAKE_S)
        with plain, tls_context(facts.tls).wrap_socket(plain, server_hostname=host) as connection:
            connection.recv(1)
    except ssl.SSLCertVerificationError as error:
        return _untrusted(url, error)
    except ssl.SSLError as error:
        reason = error.reason or ""
        if _ALERT in reason:
            return _unwanted(url, facts, reason.rpartition(_ALERT)[2].lower().replace("_", " "))
        return f"The registry {url} does not speak TLS on this port. Begin its address with http:."
    except OSError:
        return None  # The caller's own sentence says that the registry does not answer.
    return None


def _untrusted(url: str, error: ssl.SSLCertVerificationError) -> str:
    its = f"The certificate of the registry {url}"
    if error.verify_code in (_HOST, _IP):
        return f"{its} is not for this host name. Use a name that the certificate has."
    if error.verify_code == _EXPIRED:
        return f"{its} has expired. Renew it on the registry."
    if error.verify_code == _NOT_YET:
        return f"{its} is not valid yet. Check both clocks."
    return (
        f"{its} is signed by an authority that this client does not trust"
        f" ({error.verify_message}). Set schema.registry.ssl.ca.location or"
        " schema.registry.ssl.truststore.location to that authority's certificate."
    )


def _unwanted(url: str, facts: RegistryFacts, alert: str) -> str:
    if facts.identity is None:
        return f"The registry {url} asks for a client certificate. {_OWN}"
    return f"The registry {url} refuses this client's certificate ({alert}). {_OWN}"

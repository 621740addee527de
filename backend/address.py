"""The address of a Kafka cluster, and how to connect to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from topicproof.backend.errors import ClusterError, LogTooLong, TopicError
from topicproof.backend.properties.facts import facts_of


def require_no_secret(url: str) -> str:
    """Return a URL, or a list of host:port, as it is. Raises ValueError, which does not quote it,
    if it has a password or a query: errors, reports and pages show where something was read."""
    rest = url.partition("://")[2] or url
    # The end of a password is anybody's guess: those of S3 have slashes.
    has_password = ":" in rest.rpartition("@")[0] and not url.startswith("file:")
    if has_password or "?" in url:
        raise ValueError(
            f"the address has a {'password' if has_password else 'query, where passwords may be'}."
            " It would be shown in errors and reports. Leave that out, and put secrets where the"
            " client of such a service looks for them (docs/CLUSTERS.md)"
        )
    return url


@dataclass(frozen=True)
class Address:
    """One cluster, for any of its clients."""

    bootstrap: str
    """host:port, or several separated by commas."""
    client: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    """Client properties (TLS, SASL), in any names that `backend/properties/` understands. They hold
    secrets: never printed."""
    name: str = field(default="", compare=False)
    """Its name among the clusters of the settings; empty without one."""

    @property
    def encrypted(self) -> bool:
        """Whether its clients use TLS."""
        return facts_of(self.client).has_tls

    @property
    def called(self) -> str:
        """How history and reports name the cluster."""
        return f"{self.name} ({self.bootstrap})" if self.name else self.bootstrap

    def __str__(self) -> str:
        return self.bootstrap

    def missing(self, topic: str) -> TopicError:
        """Return the error for a topic that this cluster does not have."""
        unless = ", and that this user may describe it" if self.client else ""
        return TopicError(
            f"There is no topic {topic} at {self}. Check its name, which is case-sensitive{unless}."
        )

    def too_large(self, topic: str, batches: int) -> LogTooLong:
        """Return the error for a log with more than so many batches."""
        return LogTooLong(
            f"The log of {topic} at {self} has more than {batches:,} batches in this range, which"
            " one process cannot examine: each takes some 500 bytes of memory. Producers with a"
            " larger linger.ms write fewer batches. Old ones go with retention.ms or"
            " kafka-delete-records.sh; a contract with range: retained judges what is left."
        )

    def not_allowed(self, right: str) -> ClusterError:
        """Return the error for a missing ACL; `right` is its operation and resource. It is a
        TopicError if the resource is a topic."""
        error = TopicError if " on topic " in right else ClusterError
        return error(
            f"Kafka at {self} does not allow this client to go on: it lacks {right}. Ask its"
            " operators for this ACL."
        )


@dataclass(frozen=True)
class Sides:
    """The clusters of the topics of one question."""

    sink: Address
    other: Address | None = None
    """The source's cluster, if it is not the sink's. Offsets of one then say nothing about the
    other."""

    @property
    def source(self) -> Address:
        return self.other or self.sink

    @property
    def across(self) -> bool:
        return self.other is not None

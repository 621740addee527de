"""The clusters of a contract's topics: those that it names, or those of the command or page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from topicproof.backend.address import Address, Sides
from topicproof.backend.contracts.contract import Contract
from topicproof.backend.errors import UsageError
from topicproof.backend.formats.formats import Formats, SideFormats
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.settings import Settings, read_settings


@dataclass(frozen=True)
class SideSettings:
    """The settings of both sides."""

    sink: Settings
    source: Settings | None = None
    """None: those of the sink."""

    @property
    def other(self) -> Address | None:
        """The source's cluster, if it is not the sink's. Raises UsageError without an address."""
        return None if self.source is None else self.source.address

    def at(self, sink: Address) -> Sides:
        """Return both addresses; `sink` is where its services run."""
        return Sides(sink, self.other)

    def clusters(self, sink: Address) -> list[Cluster]:
        """Return both clusters as `question_of` takes them; `sink` is where its services run."""
        return [Cluster(side) for side in (sink, self.other) if side is not None]

    @contextmanager
    def formats(self) -> Iterator[SideFormats]:
        """Give the formats of the sink, and those of the source if it has a registry of its own."""
        with closing(Formats(self.sink.registry, self.sink.avro_files)) as formats:
            source_registry = None if self.source is None else self.source.registry
            if (
                self.source is None
                or source_registry is None
                or source_registry == self.sink.registry
            ):
                yield SideFormats(formats)
                return
            with closing(Formats(source_registry, self.source.avro_files)) as others:
                yield SideFormats(formats, others)


def settings_of_sides(
    terms: Contract, settings: Settings, source: Settings | None = None
) -> SideSettings:
    """Choose the clusters of a contract for one sink. `settings` are those of the command or page,
    `source` what the command says of the source alone.

    Raises UsageError if the contract names a cluster that is unknown, or that of the sink alone;
    or if the source's cluster has no address.
    """
    sink, name = terms.sink_cluster, terms.source.cluster
    if name is not None and source is not None:
        raise UsageError(
            f"The contract already names the source's cluster {name}. Remove the options"
            " --source-..."
        )
    if sink not in (None, settings.cluster) and name is None and source is None:
        raise UsageError(
            f"The contract names the cluster of the sink alone, {sink}. Name the source's too:"
            " `source: {topic: ..., cluster: ...}`, --source-cluster or --source-bootstrap."
        )
    sink_settings = settings if sink is None else read_settings(cluster=sink)
    if source is None and (name is None or name == sink_settings.cluster):
        return SideSettings(sink_settings)
    other = source or read_settings(cluster=name)
    if other.bootstrap is None:
        raise UsageError("Name the source's cluster: --source-bootstrap or --source-cluster.")
    return SideSettings(sink_settings, other)

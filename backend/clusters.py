"""The clusters that a person has names for, from a file in YAML.

    east: {bootstrap: "east:9092", config: east.properties}
    west: {bootstrap: "west:9092", schema_registry: "http://west:8081"}

Paths of properties files are relative to the folder of this file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from topicproof.backend.address import require_no_secret
from topicproof.backend.errors import UsageError
from topicproof.backend.yaml_fields import Subject, YamlFields, read_yaml, why_refused

DEFAULT_FILE = "clusters.yaml"
CLUSTER_FIELDS = Subject(
    "list of clusters",
    "clusters by name, for example `east: {bootstrap: broker:9092}`",
    is_settings=True,
)
"""The file's name in the home, unless TOPICPROOF_CLUSTERS names another one."""
_NAME = re.compile(r"(?!\.\.?$)[a-zA-Z0-9._-]{1,60}")


class _ClusterFields(BaseModel):
    """One cluster, as it is written."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    bootstrap: Annotated[str, Field(min_length=1), AfterValidator(require_no_secret)]
    config: Path | None = None
    schema_registry: str | None = None


@dataclass(frozen=True)
class NamedCluster:
    """How to reach a cluster."""

    bootstrap: str
    """host:port, or several separated by commas."""
    config: Path | None
    """The file of its client properties."""
    schema_registry: str | None
    """http(s) address; it overrides the one in the properties."""


def read_clusters(path: Path) -> dict[str, NamedCluster]:
    """Read the clusters, in the order of the file. Raises UsageError naming the line and the
    field."""
    fields = read_yaml(path, CLUSTER_FIELDS)
    return {str(name): _cluster(fields, name, path.parent) for name in fields}


def cluster_named(clusters: Mapping[str, NamedCluster], name: str, path: Path) -> NamedCluster:
    """Return one of the clusters of the file at `path`. Raises UsageError, naming those that there
    are."""
    if name in clusters:
        return clusters[name]
    names = f"It names {', '.join(clusters)}." if clusters else "It names none."
    raise UsageError(f"There is no cluster {name} in {path}. {names}")


def _cluster(fields: YamlFields, name: str, folder: Path) -> NamedCluster:
    if not _NAME.fullmatch(str(name)):
        raise UsageError(
            f"{fields.where((name,))}: a cluster's name has 1 to 60 letters, digits, dots, dashes"
            " and underscores, and is not . or .., because checks use it as a folder."
        )
    try:
        values = _ClusterFields.model_validate(fields[name])
    except ValidationError as error:
        first = error.errors()[0]
        place = (name, *first["loc"])
        why = "there is no such field" if first["type"] == "extra_forbidden" else why_refused(first)
        dotted = ".".join(map(str, place))
        raise UsageError(f"{fields.where(place)}: {dotted}: {why}.") from error
    try:
        config = None if values.config is None else folder / values.config.expanduser()
    except RuntimeError as error:
        raise UsageError(f"{fields.where((name, 'config'))}: config: {error}.") from error
    return NamedCluster(values.bootstrap, config, values.schema_registry)

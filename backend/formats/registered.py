"""A schema as a registry has it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

AVRO, PROTOBUF, JSON = "AVRO", "PROTOBUF", "JSON"
SchemaId = int | UUID
"""The number of a schema in one registry, or its GUID, which is the same in each."""


class RegistryFailure(Exception):
    """A schema is not to be had. The message is a sentence for people, and holds no secret."""


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema with everything that it refers to."""

    schema_id: SchemaId
    kind: str
    """AVRO, PROTOBUF or JSON."""
    text: str
    references: Mapping[str, str]
    """Texts of the schemas that it refers to, directly or not, by the name of the reference. A
    schema comes after those that it needs."""
    subjects: Mapping[str, int]
    """The schema's version in each subject. Empty if the registry does not say."""

    @property
    def size(self) -> int:
        """Bytes of the schema in JSON, with all that it refers to."""
        parts = self.text, dict(self.references), dict(self.subjects)
        return sum(len(json.dumps(part)) for part in parts)

    def place(self, topic: str, part: str) -> tuple[str | None, int | None]:
        """Return the subject that belongs to the topic and the part of its records, key or value,
        or else the first, and its version."""
        conventional = f"{topic}-{part}"
        ranked = sorted(
            self.subjects,
            key=lambda subject: (subject != conventional, not subject.startswith(topic), subject),
        )
        return (ranked[0], self.subjects[ranked[0]]) if ranked else (None, None)

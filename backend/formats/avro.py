"""Avro's binary form, without the header of a file."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from typing import Any

from fastavro import parse_schema, schemaless_reader

from topicproof.backend.formats.avro_sizes import AvroSizes
from topicproof.backend.formats.limits import quoted, require_size


class AvroSchema:
    """A parsed schema of Avro. Raises ValueError if it is no such schema, RecursionError if its
    types are nested too deeply."""

    def __init__(self, text: str, references: Iterable[str] = ()) -> None:
        """`references` are the texts of schemas whose types it names, each after those that it
        needs itself."""
        self.text = text
        texts = list(references)
        require_size(text, dict(enumerate(texts)))
        named: dict[str, Any] = {}
        try:
            for reference in texts:
                parse_schema(_loaded(reference), named_schemas=named)
            self._parsed = parse_schema(_loaded(text), named_schemas=named)
        except Exception as error:  # fastavro's own errors have no common class
            raise ValueError(f"fastavro does not read the schema ({quoted(error)})") from error
        self._sizes = AvroSizes(self._parsed, named)
        self._bytes = self._parsed == "bytes" or (
            isinstance(self._parsed, dict) and self._parsed.get("type") == "bytes"
        )
        """Confluent's serialisers write a schema of bytes alone as it is, without its length."""

    def read(self, data: bytes) -> Any:
        """Return the value as fastavro does. Every byte belongs to it.

        Raises ValueError for truncated or broken bytes and for values that take too much memory,
        RecursionError if it is nested too deeply.
        """
        if self._bytes:
            return data
        self._sizes.require(data)
        source = io.BytesIO(data)
        try:
            value = schemaless_reader(source, self._parsed, None)
        except RecursionError:
            raise
        except Exception as error:  # broken bytes raise nearly anything
            raise ValueError(_why(error)) from error
        left = len(data) - source.tell()
        if left:
            raise ValueError(f"{left:,} bytes follow the value")
        return value


def _loaded(text: str) -> Any:
    """Return the schema's JSON; the bare name of a type is one, too."""
    text = text.strip()
    return json.loads(text) if text.startswith(("{", "[", '"')) else text


def _why(error: Exception) -> str:
    text = quoted(error)
    return "the bytes end too early" if isinstance(error, EOFError) or not text else text

"""A schema registry with Confluent's API (Confluent, Apicurio under `/apis/ccompat/v7`, Redpanda).

Each schema id or GUID is asked for once, whatever the number of records and threads. An unknown
one, and a registry that does not answer, are asked again only after `ASKED_AGAIN_S`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any, TypeGuard, TypeVar

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, SchemaRegistryError
from confluent_kafka.schema_registry.common._httpx_compat import httpx

from topicproof.backend.formats.cache import Cache
from topicproof.backend.formats.limits import (
    ANSWER_BYTES_MAX,
    ANSWER_SECONDS_MAX,
    ASKED_AT_ONCE,
    NAME_CHARACTERS_MAX,
    REFERENCE_DEPTH_MAX,
    REFERENCES_MAX,
    SCHEMA_BYTES_MAX,
    SCHEMAS_MAX,
    TEXTS_BYTES_MAX,
    quoted,
)
from topicproof.backend.formats.refused import tls_refusal
from topicproof.backend.formats.registered import AVRO, RegisteredSchema, RegistryFailure, SchemaId
from topicproof.backend.kafka.bounded import bounded
from topicproof.backend.properties.registry_properties import RegistryFacts, registry_config

ASKED_AGAIN_S = 30.0
_NOT_FOUND = 404
_UNKNOWN = (40401, 40402, 40403)
"""The registry's codes for a subject, a version and a schema that it does not have. Without one,
somebody else has answered."""
_REFUSALS = {
    401: "user, password or token are missing or wrong",
    403: "this user lacks the right to read it",
}
_LOG = "see the registry's log"
_MISSING = "this is not the address of a registry. Apicurio's ends in /apis/ccompat/v7"
_BY_GUID = "it gives no schemas by GUID, as Confluent Platform 8 does, or this is not its address"

Answer = TypeVar("Answer")


class Registry:
    """Schemas by id or GUID. Safe for several threads."""

    def __init__(self, facts: RegistryFacts) -> None:
        self.url = facts.url
        self._facts = facts
        with registry_config(facts) as config:
            self._client = SchemaRegistryClient(config)
        session = self._client._rest_client.session
        session.headers["Accept-Encoding"] = "identity"
        session.event_hooks = {"response": [_limit]}
        self._found: Cache[RegisteredSchema] = Cache(SCHEMAS_MAX, TEXTS_BYTES_MAX, ASKED_AT_ONCE)
        self._failed: dict[SchemaId | None, tuple[float, str]] = {}
        """When a request for an id failed, in seconds of the monotonic clock, and why. None stands
        for the registry itself."""
        self._lock = Lock()
        """Guards `_failed`, of which the oldest entries go when there are many."""

    def close(self) -> None:
        self._client.close()

    def schema(self, schema_id: SchemaId) -> RegisteredSchema:
        """Return the schema of an id or GUID. Raises RegistryFailure."""

        def ask() -> tuple[RegisteredSchema, int]:
            self._raise_known(schema_id)
            try:
                schema = self._ask_in_time(schema_id)
            except RegistryFailure as failure:
                self._remember(schema_id, str(failure))
                raise
            finally:
                # It would keep every answer for ever.
                self._client.clear_caches()  # type: ignore[no-untyped-call]
            return schema, schema.size

        return self._found.get(schema_id, ask)

    def _remember(self, schema_id: SchemaId | None, why: str) -> None:
        with self._lock:
            self._failed[schema_id] = time.monotonic(), why
            while len(self._failed) > SCHEMAS_MAX:
                del self._failed[next(iter(self._failed))]

    def _raise_known(self, schema_id: SchemaId) -> None:
        for key in (None, schema_id):
            at, why = self._failed.get(key, (float("-inf"), ""))
            if time.monotonic() - at < ASKED_AGAIN_S:
                raise RegistryFailure(why)

    def _ask_in_time(self, schema_id: SchemaId) -> RegisteredSchema:
        """Ask for a schema and all that it refers to. Raises RegistryFailure. The client's own time
        limit is for each piece of an answer, and a registry may send pieces for ever."""
        try:
            return bounded(lambda: self._ask(schema_id), stuck_s=ANSWER_SECONDS_MAX)
        except TimeoutError as error:
            why = f"The registry {self.url} has not answered within {ANSWER_SECONDS_MAX:g} s."
            self._remember(None, why)
            raise RegistryFailure(why) from error

    def _ask(self, schema_id: SchemaId) -> RegisteredSchema:
        item = f"schema {schema_id}"
        if isinstance(schema_id, int):
            schema = self._request(partial(self._client.get_schema, schema_id), item)
        else:
            # A UUID's text has 32 hexadecimal digits and 4 hyphens, whatever bytes it is of.
            ask_by_guid = partial(self._client.get_schema_by_guid, str(schema_id))
            schema = self._request(ask_by_guid, item, missing=_BY_GUID)
        chain = _Chain()
        text = chain.add(schema.schema_str)
        self._refer(schema, chain, 1)
        subjects = self._subjects(schema_id, item) if isinstance(schema_id, int) else {}
        return RegisteredSchema(
            schema_id, str(schema.schema_type or AVRO), text, chain.texts, subjects
        )

    def _subjects(self, schema_id: int, item: str) -> dict[str, int]:
        """Return the schema's version in each subject; nothing for registries that lack this
        request, because the record can be decoded."""
        try:
            versions: Any = self._request(lambda: self._client.get_schema_versions(schema_id), item)
        except RegistryFailure:
            return {}
        return {
            version.subject: version.version
            for version in versions
            if _is_name(version.subject) and type(version.version) is int
        }

    def _refer(self, schema: Schema, chain: _Chain, depth: int) -> None:
        """Ask for all that a schema refers to. Raises RegistryFailure."""
        if depth > REFERENCE_DEPTH_MAX:
            raise RegistryFailure(
                f"The schema's references are nested deeper than {REFERENCE_DEPTH_MAX} levels."
            )
        for reference in schema.references or ():
            name, subject, version = reference.name, reference.subject, reference.version
            if not _is_name(name) or not _is_name(subject) or type(version) is not int:
                raise RegistryFailure(
                    "A reference of the schema has no name, subject or version, or one of over"
                    f" {NAME_CHARACTERS_MAX} characters."
                )
            if name in chain.begun:
                continue
            chain.begun.add(name)
            if len(chain.begun) > REFERENCES_MAX:
                raise RegistryFailure(
                    f"The schema refers to more than {REFERENCES_MAX} others; fewer are allowed."
                )
            item = f"version {version} of {quoted(subject)}, to which the schema refers"
            ask = partial(self._client.get_version, subject, version, True)
            referred = self._request(ask, item).schema
            text = chain.add(referred.schema_str)
            self._refer(referred, chain, depth + 1)
            chain.texts[name] = text

    def _request(self, ask: Callable[[], Answer], item: str, missing: str = _MISSING) -> Answer:
        """Ask, and translate each error of the client to a sentence. `missing`: what it means if
        nothing is at the request's address."""
        try:
            return ask()
        except SchemaRegistryError as error:
            status = error.http_status_code
            if status == _NOT_FOUND and error.error_code in _UNKNOWN:
                raise RegistryFailure(f"The registry {self.url} has no {item}.") from error
            reasons = {**_REFUSALS, _NOT_FOUND: missing}
            raise RegistryFailure(
                f"The registry {self.url} refused the request for {item} with HTTP {status}:"
                f" {reasons.get(status, _LOG)}."
            ) from error
        except RecursionError as error:
            raise RegistryFailure(
                f"The registry {self.url} gave no readable answer for {item}: it is nested too"
                " deeply."
            ) from error
        except (httpx.HTTPError, httpx.InvalidURL, OSError, RuntimeError) as error:
            silent = f"The registry {self.url} does not answer ({type(error).__name__})."
            reason = tls_refusal(self._facts) or silent
            self._remember(None, reason)
            raise RegistryFailure(reason) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RegistryFailure(
                f"The registry {self.url} gave no readable answer for {item}. Check its address:"
                " Apicurio's ends in /apis/ccompat/v7."
            ) from error


@dataclass
class _Chain:
    """What a schema refers to, while it is asked for."""

    texts: dict[str, str] = field(default_factory=dict)
    """By name. A schema comes after those that it needs."""
    begun: set[str] = field(default_factory=set)
    size: int = 0

    def add(self, text: object) -> str:
        """Count the size of a schema, and return it. Raises RegistryFailure above the limit, and if
        it is no text."""
        if not isinstance(text, str | None):
            raise RegistryFailure("The registry's answer has a schema that is no text.")
        text = text or ""
        self.size += len(text)
        if self.size > SCHEMA_BYTES_MAX:
            raise RegistryFailure(
                f"The schema has more than {SCHEMA_BYTES_MAX:,} bytes with all that it refers to."
            )
        return text


def _is_name(name: object) -> TypeGuard[str]:
    return isinstance(name, str) and 0 < len(name) <= NAME_CHARACTERS_MAX


class _LimitedStream(httpx.SyncByteStream):
    """An answer's body, as it arrives. Raises RegistryFailure if it is too long or slow."""

    def __init__(self, stream: httpx.SyncByteStream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        size, end = 0, time.monotonic() + ANSWER_SECONDS_MAX
        for chunk in self._stream:
            size += len(chunk)
            if size > ANSWER_BYTES_MAX:
                raise RegistryFailure(
                    f"The registry's answer has more than {ANSWER_BYTES_MAX:,} bytes."
                )
            if time.monotonic() > end:
                raise RegistryFailure(
                    f"The registry's answer takes longer than {ANSWER_SECONDS_MAX:.0f} s."
                )
            yield chunk

    def close(self) -> None:
        self._stream.close()


def _limit(response: Any) -> None:
    """Limit the body of an answer before it is read. A compressed one could become any size."""
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise RegistryFailure(
            "The registry, or a proxy in front of it, compresses its answers although the request"
            " does not allow it. Switch this off."
        )
    response.stream = _LimitedStream(response.stream)

"""A schema registry with Confluent's API (Confluent, Apicurio under `/apis/ccompat/v7`, Redpanda).

Each schema id is asked for once, whatever the number of records and threads. An unknown id, and a
registry that does not answer, are asked again only after `ASKED_AGAIN_S`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from threading import RLock
from typing import Any, TypeVar

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, SchemaRegistryError
from confluent_kafka.schema_registry.common._httpx_compat import httpx

from topicproof.backend.formats.refused import tls_refusal
from topicproof.backend.formats.registered import AVRO, Registered, RegistryFailure
from topicproof.backend.properties.registry import RegistryFacts, registry_config

ASKED_AGAIN_S = 30.0
_NOT_FOUND = 404
_UNKNOWN = (40401, 40402, 40403)
"""The registry's codes for a subject, a version and a schema that it does not have. Without one,
somebody else has answered."""
_REFUSALS = {
    401: "user, password or token are missing or wrong",
    403: "this user lacks the right to read it",
    _NOT_FOUND: "this is not the address of a registry. Apicurio's ends in /apis/ccompat/v7",
}

Answer = TypeVar("Answer")


class Registry:
    """Schemas by id. Safe for several threads."""

    def __init__(self, facts: RegistryFacts) -> None:
        self.url = facts.url
        self._facts = facts
        with registry_config(facts) as config:
            self._client = SchemaRegistryClient(config)
        self._found: dict[int, Registered] = {}
        self._failed: dict[int | None, tuple[float, str]] = {}
        """When a request for an id failed, in seconds of the monotonic clock, and why. None stands
        for the registry itself."""
        self._lock = RLock()

    def close(self) -> None:
        self._client.close()

    def schema(self, schema_id: int) -> Registered:
        """Return the schema of an id. Raises RegistryFailure."""
        found = self._found.get(schema_id)
        if found is not None:
            return found
        with self._lock:
            if schema_id not in self._found:
                self._raise_known(schema_id)
                try:
                    self._found[schema_id] = self._ask(schema_id)
                except RegistryFailure as failure:
                    self._failed[schema_id] = time.monotonic(), str(failure)
                    raise
            return self._found[schema_id]

    def _raise_known(self, schema_id: int) -> None:
        for key in (None, schema_id):
            at, why = self._failed.get(key, (float("-inf"), ""))
            if time.monotonic() - at < ASKED_AGAIN_S:
                raise RegistryFailure(why)

    def _ask(self, schema_id: int) -> Registered:
        what = f"schema {schema_id}"
        schema = self._request(lambda: self._client.get_schema(schema_id), what)
        references: dict[str, str] = {}
        self._refer(schema, references, set())
        try:
            told: Any = self._request(lambda: self._client.get_schema_versions(schema_id), what)
        except RegistryFailure:
            told = ()  # Some registries lack this request. The record can be decoded all the same.
        subjects = {one.subject or "": one.version or 0 for one in told}
        kind = schema.schema_type or AVRO
        return Registered(schema_id, kind, schema.schema_str or "", references, subjects)

    def _refer(self, schema: Schema, found: dict[str, str], begun: set[str]) -> None:
        for reference in schema.references or ():
            name, subject, version = reference.name, reference.subject, reference.version
            if name is None or subject is None or version is None:
                raise RegistryFailure("A reference of the schema has no name, subject or version.")
            if name in begun:
                continue
            begun.add(name)
            what = f"version {version} of {subject}, to which the schema refers"
            ask = partial(self._client.get_version, subject, version, True)
            there = self._request(ask, what)
            self._refer(there.schema, found, begun)
            found[name] = there.schema.schema_str or ""

    def _request(self, ask: Callable[[], Answer], what: str) -> Answer:
        """Ask, and translate each error of the client to a sentence."""
        try:
            return ask()
        except SchemaRegistryError as error:
            status = error.http_status_code
            if status == _NOT_FOUND and error.error_code in _UNKNOWN:
                raise RegistryFailure(f"The registry {self.url} has no {what}.") from error
            said = _REFUSALS.get(status, "see the registry's log")
            raise RegistryFailure(
                f"The registry {self.url} refused the request for {what} with HTTP {status}:"
                f" {said}."
            ) from error
        except (httpx.HTTPError, httpx.InvalidURL, OSError, RuntimeError) as error:
            silent = f"The registry {self.url} does not answer ({type(error).__name__})."
            said = tls_refusal(self._facts) or silent
            self._failed[None] = time.monotonic(), said
            raise RegistryFailure(said) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RegistryFailure(
                f"The registry {self.url} gave no readable answer for {what}. Check its address:"
                " Apicurio's ends in /apis/ccompat/v7."
            ) from error

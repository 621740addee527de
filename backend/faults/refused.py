"""Refused: the worker produces a record that is larger than the sink topic allows."""

from __future__ import annotations

import os

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource

from topicproof.backend.address import Address
from topicproof.backend.kafka.client_configs import REQUEST_TIMEOUT_MS, admin_config

CLIENT_TAKES_BYTES = 1_000_000_000
"""The client's own limit, raised so that the broker refuses the record."""


def oversized(address: Address, topic: str) -> bytes:
    """Return a random value that is larger than the topic allows, even compressed."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    admin = AdminClient(admin_config(address))
    settings = admin.describe_configs([resource], request_timeout=REQUEST_TIMEOUT_MS / 1000)[
        resource
    ].result()
    return os.urandom(int(settings["max.message.bytes"].value) + 1)

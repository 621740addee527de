"""Brokers with settings of other people's clusters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from topicproof.backend.services.jars import BROKER, jar_files
from topicproof.backend.services.kafka import EmbeddedKafka
from topicproof.backend.settings import Settings

BrokerWith = Callable[[dict[str, str]], AbstractContextManager[str]]


@pytest.fixture(scope="module")
def broker_with(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> BrokerWith:
    """Start one broker with these settings; it ends with the block."""

    @contextmanager
    def start(overrides: dict[str, str]) -> Iterator[str]:
        folder = tmp_path_factory.mktemp("broker") / "kafka"
        kafka = EmbeddedKafka(folder, jar_files(settings, BROKER), overrides=overrides)
        kafka.start()
        try:
            yield kafka.bootstrap
        finally:
            kafka.stop()

    return start

"""Produce, then commit the offset: work that dies between the two is produced again."""

from __future__ import annotations

from topicproof.backend.errors import SinkError
from topicproof.backend.sink.batcher import Contents
from topicproof.backend.sink.delivery.plain import PlainDelivery
from topicproof.backend.sink.hooks import Step


class AtLeastOnce(PlainDelivery):
    def attempt(self, contents: Contents, attempt: int) -> None:
        self.task.step(Step.BEGUN, contents, self.flush)
        self._produce(contents)
        self.task.hooks.before_commit(contents.sequence, attempt, self.flush)
        self._commit_offset(contents)

    def after_failure(self, contents: Contents, error: SinkError) -> Contents:  # noqa: ARG002
        return contents

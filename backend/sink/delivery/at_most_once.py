"""Commit the offset, then produce: work that dies between the two is lost."""

from __future__ import annotations

from topicproof.backend.errors import SinkError
from topicproof.backend.sink.batcher import Contents
from topicproof.backend.sink.delivery.plain import PlainDelivery
from topicproof.backend.sink.hooks import Step


class AtMostOnce(PlainDelivery):
    def attempt(self, contents: Contents, attempt: int) -> None:
        self.task.step(Step.BEGUN, contents, self.flush)
        self._commit_offset(contents)
        self.task.hooks.before_commit(contents.sequence, attempt, self.flush)
        self._produce(contents)

    def after_failure(self, contents: Contents, error: SinkError) -> None:
        """Retry nothing: the offset may be committed already."""

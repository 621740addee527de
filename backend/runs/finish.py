"""The end of a run that goes on until somebody stops it, when it was asked to finish instead: its
fill ends, the query processes what is there, and everything is judged."""

from __future__ import annotations

from concurrent.futures import Future

from topicproof.backend.runs.context import Context
from topicproof.backend.runs.real_time import SourceEnds, look_at_brokers


class Finish:
    """Watches whether the request to finish has been carried out."""

    def __init__(self, context: Context, filling: Future[None] | None) -> None:
        self.context, self.filling = context, filling
        self.ends: SourceEnds | None = None

    def reached(self) -> bool:
        """Return whether a run that was asked to finish has processed its source."""
        context = self.context
        if context.stop.is_set() or not context.plan.until_stopped or not context.fill_over:
            return False
        if self.filling is not None and not self.filling.done():
            return False
        context.finished = context.finished or look_at_brokers(self._processed)
        return context.finished

    def close(self) -> None:
        if self.ends is not None:
            self.ends.close()

    def _processed(self) -> bool:
        context = self.context
        if self.ends is None:
            self.ends = SourceEnds(context.cluster, context.names, context.plan.source.isolation)
        return self.ends.reached()

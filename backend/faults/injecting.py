"""The sinks with faults: five more options tell their hooks when to strike.

- `faults` (none): the faults to fire (backend/faults/kinds.py), separated by spaces. They need a
  journal.
- `abortProbability` (0) and `seed` (0): abort on purpose, at random from seed, partition, sequence
  and attempt.
- `byHand` (false): tell the journal the process of each task, so that it can be killed by hand.
- `slowMotionMs` (0): wait so long in each transaction when its records are in the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource

from topicproof.backend.errors import UsageError
from topicproof.backend.faults.fault import Fault
from topicproof.backend.faults.kinds import parse_fault
from topicproof.backend.faults.worker import Injector
from topicproof.backend.sink.exactly_once import KafkaTransactionalSink
from topicproof.backend.sink.hooks import Hooks, MakeHooks
from topicproof.backend.sink.options import FORMAT, SinkOptions
from topicproof.backend.sink.real_time import Pace, start_real_time
from topicproof.backend.sink.stateful import KafkaStatefulSink
from topicproof.backend.sink.task_watch import RealTimeQuery

OPTIONS = frozenset({"faults", "abortprobability", "seed", "byhand", "slowmotionms"})


@dataclass(frozen=True)
class Faults:
    """A query's deliberate faults. Makes the hooks of its writers."""

    faults: tuple[Fault, ...] = ()
    abort_probability: float = 0.0
    seed: int = 0
    by_hand: bool = False
    slow_motion_ms: int = 0

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Faults:
        """Raises UsageError naming the option."""
        by_name = {name.lower(): value for name, value in options.items()}
        probability = float(by_name.get("abortprobability", "0"))
        if not 0 <= probability <= 1:
            raise UsageError(
                f"{FORMAT}: abortProbability is {probability}; it must lie between 0 and 1."
            )
        faults = tuple(parse_fault(text) for text in by_name.get("faults", "").split())
        by_hand = by_name.get("byhand", "false") == "true"
        slow_motion_ms = int(by_name.get("slowmotionms", "0"))
        if faults and "journal" not in by_name:
            raise UsageError(
                f"{FORMAT}: faults need the option journal: without it each would fire again and"
                " again."
            )
        return cls(faults, probability, int(by_name.get("seed", "0")), by_hand, slow_motion_ms)

    def __call__(self, sink: SinkOptions, source: tuple[str, int], name: str, task: str) -> Hooks:
        return Injector(
            by_hand=self.by_hand,
            slow_motion_ms=self.slow_motion_ms,
            faults=self.faults,
            abort_probability=self.abort_probability,
            seed=self.seed,
            sink=sink,
            source=source,
            name=name,
            task=task,
        )


class Injecting(DataSource):
    """Common parts of the sinks with faults."""

    def sink_options(self) -> Mapping[str, str]:
        return without_faults(self.options)

    def hooks(self) -> MakeHooks:
        return Faults.parse(self.options)


class InjectingSink(Injecting, KafkaTransactionalSink):
    pass


class InjectingStatefulSink(Injecting, KafkaStatefulSink):
    pass


def start_injecting_real_time(
    rows: DataFrame, options: Mapping[str, str], batch_s: int, pace: Pace
) -> RealTimeQuery:
    """Start a query in real time (backend/sink/real_time.py) whose sink has faults."""
    return start_real_time(rows, without_faults(options), batch_s, Faults.parse(options), pace)


def without_faults(options: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in options.items() if name.lower() not in OPTIONS}

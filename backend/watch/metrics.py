"""Figures of a watch for Prometheus.

Labels are kinds, and the contracts that the command names. So their number does not depend on what
strangers put into the cluster. Its names are in the notices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from topicproof.backend.kafka.browse.causes import CauseKind, causes
from topicproof.backend.services.local_servers import LoopbackHandler, LoopbackServer
from topicproof.backend.watch.alarms import NO_ALARMS, AlarmState, Change
from topicproof.backend.watch.conditions import ClusterLook, Kind
from topicproof.backend.watch.contract_watch import ContractFigures
from topicproof.validators.finding import Outcome

TRANSACTION_CAUSES = (CauseKind.HANGING_TRANSACTION, CauseKind.OPEN_TRANSACTION)
PLAIN = "text/plain; charset=utf-8"
METRICS, HEALTH, READINESS = "/metrics", "/healthz", "/readyz"


@dataclass
class WatchFigures:
    """What a watch has seen and sent so far. One thread writes it, others read whole values."""

    look: ClusterLook | None = None
    """The last look that succeeded."""
    is_up: bool = False
    """Whether the last look succeeded."""
    looked_s: float = 0.0
    """How long it took."""
    failed: int = 0
    """Looks that did not succeed."""
    of_look: tuple[Metric, ...] = ()
    """Its figures: a scrape computes nothing."""
    contracts: dict[str, ContractFigures] = field(default_factory=dict)
    """By name."""
    alarms: AlarmState = NO_ALARMS
    notices: Counter[tuple[Kind, Change]] = field(default_factory=Counter)

    def take_in(self, look: ClusterLook) -> None:
        """Take a look that succeeded."""
        self.of_look = tuple(_of_look(look))
        self.look, self.is_up = look, True


class WatchCollector(Collector):
    """Makes the metrics of the figures at each scrape."""

    def __init__(self, figures: WatchFigures) -> None:
        self.figures = figures

    def collect(self) -> Iterator[Metric]:
        figures = self.figures
        yield _gauge("up", "Whether the last look at the cluster succeeded.", figures.is_up)
        yield _counter("looks_failed", "Looks that did not succeed.", figures.failed)
        if figures.look is not None:
            yield from figures.of_look
            yield _gauge("look_seconds", "How long the last look took.", figures.looked_s)
        yield from _of_alarms(figures)
        yield from _of_contracts(dict(figures.contracts))


def _of_look(look: ClusterLook) -> Iterator[Metric]:
    overview = look.overview
    opened = overview.opened
    oldest = max((transaction.age_ms for transaction in opened), default=0)
    yield _gauge(
        "last_look_timestamp_seconds",
        "When the last look that succeeded was taken.",
        overview.taken_at.timestamp(),
    )
    yield _gauge("look_whole", "Whether nothing was left out of it.", look.is_whole)
    yield _gauge("topics", "Topics, without Kafka's own.", len(overview.topics))
    yield _gauge(
        "open_transactions",
        "Open transactions that withhold records, over all their partitions.",
        sum(not transaction.hanging for transaction in opened),
    )
    yield _gauge(
        "hanging_transactions",
        "Transactions that no coordinator knows of, so that only an operator ends them.",
        sum(transaction.hanging for transaction in opened),
    )
    yield _gauge(
        "oldest_open_transaction_seconds",
        "Age of the oldest one of both; 0 without any.",
        oldest / 1_000,
    )
    yield _gauge(
        "withheld_offsets",
        "Offsets at or above the last stable offset, which read_committed consumers do not get.",
        overview.withheld,
    )
    yield _gauge(
        "withheld_records",
        "Records among them, at most: what was not counted one by one counts as its offsets.",
        sum(cause.records for cause in causes(overview) if cause.kind in TRANSACTION_CAUSES),
    )
    yield _gauge(
        "stuck_groups",
        "Groups that have read all they can of a topic, and wait for open transactions.",
        len({group.group for group in overview.stuck}),
    )
    yield _gauge(
        "worst_lag_records",
        "Records that the group that is most behind can read now.",
        0 if overview.worst is None else overview.worst.records,
    )


def _of_alarms(figures: WatchFigures) -> Iterator[Metric]:
    lasting: Counter[Kind] = Counter()
    folded = 0
    for alarm in figures.alarms.alarms.values():
        lasting[alarm.condition.kind] += alarm.condition.count
        folded += alarm.condition.count if alarm.condition.count > 1 else 0
    alarms = GaugeMetricFamily(
        f"{_PREFIX}alarms", "Conditions that last at the last look.", labels=["kind"]
    )
    notices = CounterMetricFamily(
        f"{_PREFIX}notices", "Alarms, all-clears and events.", labels=["kind", "change"]
    )
    for kind in Kind:
        alarms.add_metric([kind.value], lasting[kind])
        for change in Change:
            notices.add_metric([kind.value, change.value], figures.notices[kind, change])
    yield alarms
    yield notices
    yield _gauge(
        "conditions_folded",
        "Conditions among them that are too many to be told one by one.",
        folded,
    )
    yield _gauge(
        "notices_waiting",
        "Notices that the webhook has not taken yet.",
        len(figures.alarms.waiting),
    )
    yield _counter(
        "notices_dropped",
        "Notices that were never sent: too many waited, or the webhook refused them.",
        figures.alarms.dropped,
    )


def _of_contracts(contracts: Mapping[str, ContractFigures]) -> Iterator[Metric]:
    """Labels are the contracts that the command names, and kinds."""
    verdicts = _by_contract("contract_verdict", "1 holds, 0 violated, -1 unknown.")
    findings = GaugeMetricFamily(
        f"{_PREFIX}contract_findings",
        "Rows of each kind that nothing else explains.",
        labels=["contract", "kind"],
    )
    behind = _by_contract(
        "contract_behind_offsets", "Offsets below the last stable ones that were not read yet."
    )
    delay = _by_contract(
        "contract_delay_seconds", "How old what was judged last is, against the topics' ends."
    )
    silenced = _by_contract(
        "contract_silenced", "Whether it is violated by nothing but kinds that a waiver accepts."
    )
    withheld = _by_contract(
        "contract_withheld_offsets", "Offsets of the sink at or above its last stable one."
    )
    counts = {
        name: CounterMetricFamily(f"{_PREFIX}{name}", meaning, labels=["contract"])
        for name, meaning in (
            ("inputs_due", "Inputs whose time for an output is over."),
            ("inputs_late", "Those of them that had no output then."),
            ("records_judged", "Records of the sink that were judged."),
            ("records_aborted", "Those of them that were aborted."),
        )
    }
    for name, figures in contracts.items():
        verdicts.add_metric([name], VERDICTS[figures.outcome])
        behind.add_metric([name], figures.behind)
        delay.add_metric([name], figures.delay_s)
        silenced.add_metric([name], figures.is_silenced)
        withheld.add_metric([name], figures.withheld)
        for finding in figures.verdict.findings if figures.verdict is not None else ():
            findings.add_metric([name, finding.kind], finding.primary)
        for counter, count in zip(
            counts.values(),
            (figures.inputs_due, figures.inputs_late, figures.judged, figures.aborted),
            strict=True,
        ):
            counter.add_metric([name], count)
    if contracts:
        yield from (verdicts, findings, behind, delay, silenced, withheld, *counts.values())


VERDICTS = {Outcome.HOLDS: 1, Outcome.VIOLATED: 0, Outcome.UNKNOWN: -1}
_PREFIX = "topicproof_watch_"


def _by_contract(name: str, meaning: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{_PREFIX}{name}", meaning, labels=["contract"])


def _gauge(name: str, meaning: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{_PREFIX}{name}", meaning, value=float(value))


def _counter(name: str, meaning: str, value: float) -> Metric:
    return CounterMetricFamily(f"{_PREFIX}{name}", meaning, value=float(value))


def metrics_server(port: int, figures: WatchFigures, unready: Callable[[], str]) -> LoopbackServer:
    """Return a server of the metrics, of `/healthz`, and of `/readyz`, which is 200 while `unready`
    gives no reason why the watch is not caught up. Raises OSError for a port that is taken."""
    registry = CollectorRegistry()
    registry.register(WatchCollector(figures))

    class Handler(LoopbackHandler):
        def do_GET(self) -> None:
            status, kind, body = HTTPStatus.OK, PLAIN, b"ok\n"
            if self.path == METRICS:
                kind, body = CONTENT_TYPE_LATEST, generate_latest(registry)
            elif self.path == READINESS and (why := unready()):
                status, body = HTTPStatus.SERVICE_UNAVAILABLE, f"{why}\n".encode()
            elif self.path not in (HEALTH, READINESS):
                status, body = HTTPStatus.NOT_FOUND, b"not found\n"
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return LoopbackServer(port, Handler)

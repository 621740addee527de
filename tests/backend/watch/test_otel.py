"""Figures of a watch in an OpenTelemetry collector: a real exporter sends to a server that decodes
what it gets."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality

from tests.conftest import wait_until
from topicproof.backend.errors import UsageError
from topicproof.backend.watch.contract_watch import ContractFigures
from topicproof.backend.watch.metrics import WatchCollector, WatchFigures
from topicproof.backend.watch.otel import sent_metrics

LATE = "topicproof_watch_inputs_late"
Figure = tuple[str, frozenset[tuple[str, str]]]


class Collector:
    """What a collector has got, and what it answers."""

    def __init__(self) -> None:
        self.status = 200
        self.is_endless = False
        """Whether the body of its answer has no end."""
        self.paths: set[str] = set()
        self.headers: set[str | None] = set()
        self.requests: list[ExportMetricsServiceRequest] = []

    @property
    def figures(self) -> dict[Figure, float]:
        """Values of the newest request, by name and labels."""
        (resource,) = self.requests[-1].resource_metrics
        (scope,) = resource.scope_metrics
        figures: dict[Figure, float] = {}
        for metric in scope.metrics:
            is_sum = metric.WhichOneof("data") == "sum"
            for point in (metric.sum if is_sum else metric.gauge).data_points:
                labels = frozenset((each.key, each.value.string_value) for each in point.attributes)
                figures[metric.name, labels] = point.as_double
                assert bool(point.start_time_unix_nano) == is_sum
            if is_sum:
                assert metric.sum.is_monotonic
                cumulative = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
                assert metric.sum.aggregation_temporality == cumulative
        return figures


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    state = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers["Content-Encoding"] == "gzip":
                body = gzip.decompress(body)
            state.paths.add(self.path)
            state.headers.add(self.headers["x-team"])
            state.requests.append(ExportMetricsServiceRequest.FromString(body))
            self.send_response(state.status)
            if not state.is_endless:
                self.send_header("Content-Length", "0")
            self.end_headers()
            while state.is_endless:
                try:
                    self.wfile.write(b"x")
                except OSError:
                    return

        def log_message(self, *_args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=payments")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "50")
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_collector_gets_the_figures_of_prometheus(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: an operator has a collector and no Prometheus. It gets the same figures by the same
    names, to the last one. While it refuses them somebody hears of it once."""
    figures = WatchFigures(contracts={"orders": ContractFigures(inputs_due=7, inputs_late=1)})
    troubles: list[str] = []
    with sent_metrics(figures, troubles.append):
        wait_until(lambda: bool(collector.requests), 20, "a request")
        collector.status = 400
        wait_until(lambda: len(troubles) == 1, 20, "a trouble")
        collector.status = 200
        wait_until(lambda: len(troubles) == 2, 20, "its end")
        figures.contracts["orders"].inputs_late = 2
    assert "does not take the figures" in troubles[0] and "takes the figures again" in troubles[1]
    assert (collector.paths, collector.headers) == ({"/v1/metrics"}, {"payments"})
    sent = collector.figures
    assert sent[LATE, frozenset({("contract", "orders")})] == 2
    scraped = {
        (metric.name, frozenset(sample.labels.items())): sample.value
        for metric in WatchCollector(figures).collect()
        for sample in metric.samples
    }
    # The delay goes on.
    assert sent.keys() == scraped.keys()
    assert {key for key in sent if sent[key] != scraped[key]} == {
        ("topicproof_watch_contract_delay_seconds", frozenset({("contract", "orders")}))
    }
    resource = collector.requests[-1].resource_metrics[0].resource
    attributes = {each.key: each.value.string_value for each in resource.attributes}
    assert attributes["service.name"] == "topicproof"
    assert attributes["deployment.environment"] == "test"
    count = len(collector.requests)
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    with sent_metrics(figures, pytest.fail):
        pass
    assert len(collector.requests) == count
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "often")
    with (
        pytest.raises(UsageError, match="'often', and not a whole number"),
        sent_metrics(figures, pytest.fail),
    ):
        pass


def test_an_answer_without_end_is_not_read(collector: Collector) -> None:
    """Story: somebody's server answers each request with a body that never ends. Its status counts,
    and the next figures are sent."""
    collector.is_endless = True
    with sent_metrics(WatchFigures(), pytest.fail):
        wait_until(lambda: len(collector.requests) >= 3, 20, "the figures after such an answer")
    collector.is_endless = False

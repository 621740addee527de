"""Sends the figures of a watch to an OpenTelemetry collector, as OTLP over HTTP. Needs
`topicproof[otel]`.

They are the figures of the Prometheus endpoint, by the same names and from the same definition
(`WatchCollector`): a gauge is a gauge, and a counter is a monotonic sum that grows since the start.
Where to and how often is in OpenTelemetry's own variables, most of which its exporter reads:
`OTEL_EXPORTER_OTLP_ENDPOINT` and its relatives, `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_SERVICE_NAME`,
`OTEL_METRIC_EXPORT_INTERVAL` in milliseconds. `OTEL_SDK_DISABLED=true` sends nothing. Of the
collector's answer only the status counts, so its body is not read: it may have no end.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import requests
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Metric as OtelMetric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.core import CounterMetricFamily, Metric

from topicproof.backend.errors import UsageError
from topicproof.backend.watch.metrics import WatchCollector, WatchFigures

INTERVAL, INTERVAL_MS = "OTEL_METRIC_EXPORT_INTERVAL", "60000"
DISABLED, NAME = "OTEL_SDK_DISABLED", "OTEL_SERVICE_NAME"
CREDENTIALS = "OTEL_PYTHON_EXPORTER_OTLP_HTTP_METRICS_CREDENTIAL_PROVIDER"
"""Names a program of the operator that makes the session: then it is not ours."""
CREDENTIALS_OF_ALL = "OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER"
LAST_SEND_TIMEOUT_S = 15.0


@contextmanager
def sent_metrics(figures: WatchFigures, on_trouble: Callable[[str], None]) -> Iterator[None]:
    """Send the figures again and again while the block runs, and once at its end. `on_trouble` gets
    a sentence when the collector begins to take none, and when it takes them again. Raises
    UsageError for an interval that is none."""
    interval_s, stop = _interval_s(), threading.Event()
    if os.environ.get(DISABLED, "").strip().lower() == "true":
        yield
        return
    exporter, began_ns = OTLPMetricExporter(session=_session()), time.time_ns()

    def send() -> None:
        is_taken = True
        while not stop.is_set():
            stop.wait(interval_s)
            metrics = [*WatchCollector(figures).collect()]
            result = exporter.export(metrics_data(metrics, began_ns, time.time_ns()))
            was_taken, is_taken = is_taken, result is MetricExportResult.SUCCESS
            if was_taken and not is_taken:
                on_trouble("The OpenTelemetry collector does not take the figures of this watch.")
            elif is_taken and not was_taken:
                on_trouble("The OpenTelemetry collector takes the figures again.")

    thread = threading.Thread(target=send, name="opentelemetry", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(LAST_SEND_TIMEOUT_S)
        exporter.shutdown()


def _session() -> requests.Session | None:
    """Return a session that reads no body of an answer; None if the operator has one."""
    if os.environ.get(CREDENTIALS) or os.environ.get(CREDENTIALS_OF_ALL):
        return None
    session = requests.Session()
    session.stream = True
    session.hooks["response"].append(_close)
    return session


def _close(response: requests.Response, *_arguments: Any, **_options: Any) -> None:
    response.close()


def _interval_s() -> float:
    text = os.environ.get(INTERVAL) or INTERVAL_MS
    if not text.isdecimal() or int(text) == 0:
        raise UsageError(f"{INTERVAL} is {text!r}, and not a whole number of milliseconds above 0.")
    return int(text) / 1_000


def metrics_data(metrics: Sequence[Metric], began_ns: int, now_ns: int) -> MetricsData:
    """Return Prometheus' metrics as those of OpenTelemetry. Times in nanoseconds since 1970."""
    resource = Resource.create()
    if not os.environ.get(NAME):
        # The variable for attributes may have the name, too.
        resource = Resource({SERVICE_NAME: "topicproof"}).merge(_named(resource))
    scope = ScopeMetrics(
        InstrumentationScope("topicproof.watch"),
        [_otel_metric(each, began_ns, now_ns) for each in metrics],
        "",
    )
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def _named(resource: Resource) -> Resource:
    """Return the resource without the name that OpenTelemetry gives to one that has none."""
    has_name = not str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service")
    attributes = {
        key: value for key, value in resource.attributes.items() if has_name or key != SERVICE_NAME
    }
    return Resource(attributes)


def _otel_metric(metric: Metric, began_ns: int, now_ns: int) -> OtelMetric:
    is_counter = isinstance(metric, CounterMetricFamily)
    points = [
        NumberDataPoint(sample.labels, began_ns if is_counter else 0, now_ns, float(sample.value))
        for sample in metric.samples
    ]
    data = (
        Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True)
        if is_counter
        else Gauge(points)
    )
    return OtelMetric(metric.name, metric.documentation, "", data)

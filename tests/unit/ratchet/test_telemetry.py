"""What a scrape and a collector are told."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import opentelemetry.metrics
import opentelemetry.trace
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client.parser import text_string_to_metric_families

from ratchet.telemetry import INSTRUMENTS, Attr, Kind, MetricName, Telemetry, configure


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    made = configure("gateway", "test", None)
    yield made
    made.shutdown()


def samples(telemetry: Telemetry) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample of a scrape: name and labels to value."""
    text = telemetry.prometheus_text().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.parametrize("name", MetricName)
def test_every_metric_is_described_and_only_histograms_have_buckets(name: MetricName) -> None:
    instrument = INSTRUMENTS[name]
    assert instrument.unit
    assert instrument.description.endswith(".")
    assert bool(instrument.buckets) == (instrument.kind is Kind.HISTOGRAM)
    assert list(instrument.buckets) == sorted(set(instrument.buckets))


def test_a_scrape_tells_counters_gauges_and_histograms_as_they_were_fed(telemetry: Telemetry) -> None:
    telemetry.counter(MetricName.STORED).add(2)
    telemetry.counter(MetricName.STORED).add(3)
    telemetry.up_down(MetricName.IN_FLIGHT).add(4)
    telemetry.up_down(MetricName.IN_FLIGHT).add(-1)
    telemetry.observe(MetricName.PLAN_VERSION, lambda: [(7, {Attr.REQUEST_MODEL: "smollm2"})])
    for seconds in (0.0005, 0.03, 0.03, 12):
        telemetry.histogram(MetricName.QUEUE_WAIT).record(seconds)

    seen = samples(telemetry)

    assert seen["ratchet_recorder_stored_total", ()] == 5
    assert seen["ratchet_requests_in_flight", ()] == 3
    assert seen["ratchet_plan_version", (("gen_ai_request_model", "smollm2"),)] == 7
    bounds = ("0.001", "0.02", "0.04", "10", "+Inf")
    counts = [seen["ratchet_queue_wait_seconds_bucket", (("le", bound),)] for bound in bounds]
    assert counts == [1, 1, 3, 3, 4]
    assert seen["ratchet_queue_wait_seconds_sum", ()] == pytest.approx(12.0605)


def test_a_gauge_is_asked_at_each_scrape(telemetry: Telemetry) -> None:
    depth = [1.0]
    telemetry.observe(MetricName.SPOOL_DEPTH, lambda: [(depth[0], {})])
    assert samples(telemetry)["ratchet_spool_depth", ()] == 1
    depth[0] = 9
    assert samples(telemetry)["ratchet_spool_depth", ()] == 9


def test_processes_of_one_interpreter_share_nothing(telemetry: Telemetry) -> None:
    other = configure("feedback", "test", None)
    other.counter(MetricName.STORED).add(1)
    assert ("ratchet_recorder_stored_total", ()) not in samples(telemetry)
    other.shutdown()
    assert "Proxy" in type(opentelemetry.metrics.get_meter_provider()).__name__
    assert "Proxy" in type(opentelemetry.trace.get_tracer_provider()).__name__


def test_an_instrument_asked_for_as_another_kind_is_refused(telemetry: Telemetry) -> None:
    with pytest.raises(TypeError, match=r"ratchet\.spool\.depth is of kind observed gauge, not counter"):
        telemetry.counter(MetricName.SPOOL_DEPTH)


class Collector(ThreadingHTTPServer):
    """An OTLP/HTTP collector that keeps what it gets."""

    def __init__(self) -> None:
        self.received: list[tuple[str, bytes]] = []
        super().__init__(("127.0.0.1", 0), Handler)


class Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        self.server.received.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None: ...


def test_a_collector_gets_metrics_and_spans_before_shutdown_ends() -> None:
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        telemetry = configure("gateway", "g1", f"http://127.0.0.1:{collector.server_port}/")
        telemetry.counter(MetricName.REQUESTS).add(1, {Attr.STATUS: "ok"})
        with telemetry.tracer.start_as_current_span("chat smollm2") as span:
            span.set_attribute(Attr.ARM, "production")
        telemetry.shutdown()
        collector.shutdown()
        thread.join()

    bodies = dict(collector.received)
    metrics = ExportMetricsServiceRequest.FromString(bodies["/v1/metrics"]).resource_metrics[0]
    names = {metric.name for scope in metrics.scope_metrics for metric in scope.metrics}
    resource = {item.key: item.value.string_value for item in metrics.resource.attributes}
    assert MetricName.REQUESTS in names
    assert (resource["service.name"], resource["service.instance.id"]) == ("ratchet-gateway", "g1")
    exported = ExportTraceServiceRequest.FromString(bodies["/v1/traces"]).resource_spans[0].scope_spans[0]
    assert [item.name for item in exported.spans] == ["chat smollm2"]
    assert [(item.key, item.value.string_value) for item in exported.spans[0].attributes] == [
        ("ratchet.arm", "production")
    ]

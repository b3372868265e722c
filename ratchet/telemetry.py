"""Traces and metrics, and every name they carry.

`gen_ai.*` names are those of the OpenTelemetry GenAI semantic conventions 0.1.0 (status: development), where
tokens are counted by `gen_ai.client.inference.usage.*` and a server's times are `gen_ai.server.*` histograms.
`ratchet.*` names are ours. Nothing here touches OpenTelemetry's global providers.
"""

import importlib.metadata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import CallbackOptions, Counter, Histogram, Meter, Observation, UpDownCounter
from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, MeterProvider
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased
from opentelemetry.trace import Tracer
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricReader

PROVIDER = "vllm"
"""Value of `gen_ai.provider.name`; the conventions know no word of their own for it."""
MODALITY = "text"
"""Value of `gen_ai.token.modality`."""
PROMETHEUS_CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
EXPORT_INTERVAL_S = 15
EXPORT_TIMEOUT_S = 3


class Attr(StrEnum):
    """Names of attributes on spans and metrics."""

    OPERATION = "gen_ai.operation.name"
    """`chat` or `text_completion`."""
    PROVIDER = "gen_ai.provider.name"
    REQUEST_MODEL = "gen_ai.request.model"
    """The name the client asked for."""
    RESPONSE_MODEL = "gen_ai.response.model"
    """The policy version that answered."""
    RESPONSE_ID = "gen_ai.response.id"
    CONVERSATION_ID = "gen_ai.conversation.id"
    STREAM = "gen_ai.request.stream"
    MAX_TOKENS = "gen_ai.request.max_tokens"
    TEMPERATURE = "gen_ai.request.temperature"
    TOP_P = "gen_ai.request.top_p"
    FINISH_REASONS = "gen_ai.response.finish_reasons"
    INPUT_TOKENS = "gen_ai.usage.input_tokens"
    OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
    TOKEN_MODALITY = "gen_ai.token.modality"
    ERROR_TYPE = "error.type"
    """Code of an error, such as `engine_unavailable`; absent where all went well."""
    HTTP_STATUS = "http.response.status_code"
    ARM = "ratchet.arm"
    STAGE = "ratchet.stage"
    DECODE = "ratchet.decode"
    """Digest of the pinned decode config."""
    DECODE_FIELD = "ratchet.decode.field"
    """A decode field whose client value was overridden."""
    STATUS = "ratchet.status"
    """Status of a response row: ok, error, rejected, cancelled, lost; of a shadow request: copied,
    dropped."""
    STAMP = "ratchet.stamp"
    """Of a response: verified, unverified or mismatch."""
    PLAN_VERSION = "ratchet.plan.version"
    ENGINE = "ratchet.engine.id"
    ENGINE_STATE = "ratchet.engine.state"
    ALARM = "ratchet.alarm.kind"
    PROCESS = "ratchet.process"


class MetricName(StrEnum):
    """Names of metrics; `INSTRUMENTS` says what each is."""

    REQUEST_DURATION = "gen_ai.server.request.duration"
    TIME_TO_FIRST_TOKEN = "gen_ai.server.time_to_first_token"
    TIME_PER_OUTPUT_TOKEN = "gen_ai.server.time_per_output_token"
    INPUT_TOKENS = "gen_ai.client.inference.usage.input_tokens"
    OUTPUT_TOKENS = "gen_ai.client.inference.usage.output_tokens"
    REQUESTS = "ratchet.requests"
    IN_FLIGHT = "ratchet.requests.in_flight"
    QUEUE_DEPTH = "ratchet.queue.depth"
    QUEUE_WAIT = "ratchet.queue.wait"
    DECODE_OVERRIDDEN = "ratchet.decode.overridden"
    STAMP_MISMATCHES = "ratchet.stamp.mismatches"
    SHADOWS = "ratchet.shadow.requests"
    ENGINE_STATE = "ratchet.engine.state"
    PLAN_VERSION = "ratchet.plan.version"
    SPOOL_DEPTH = "ratchet.spool.depth"
    SPOOL_BYTES = "ratchet.spool.size"
    STORED = "ratchet.recorder.stored"
    UNRECORDED = "ratchet.recorder.unrecorded"
    ALARMS = "ratchet.alarms.standing"
    HEARTBEAT_AGE = "ratchet.heartbeat.age"


class Kind(StrEnum):
    """What can be done with an instrument."""

    COUNTER = "counter"
    """`Telemetry.counter(name).add(n, attributes)`, n >= 0."""
    UP_DOWN = "up-down counter"
    """`Telemetry.up_down(name).add(n, attributes)`."""
    HISTOGRAM = "histogram"
    """`Telemetry.histogram(name).record(value, attributes)`."""
    GAUGE = "observed gauge"
    """`Telemetry.observe(name, callback)`; the callback is asked at each scrape."""


@dataclass(frozen=True, slots=True)
class Instrument:
    """What a metric is.

    Attributes:
        kind: How it is fed.
        unit: UCUM unit.
        description: One sentence.
        attributes: Names its points may carry, and no others.
        buckets: Upper bounds of a histogram's buckets, in `unit`.
    """

    kind: Kind
    unit: str
    description: str
    attributes: tuple[Attr, ...] = ()
    buckets: tuple[float, ...] = ()


_INFERENCE = (Attr.OPERATION, Attr.PROVIDER, Attr.REQUEST_MODEL, Attr.RESPONSE_MODEL, Attr.ARM)
_DURATION_BUCKETS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_FIRST_TOKEN_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
_TOKEN_BUCKETS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)

INSTRUMENTS: Mapping[MetricName, Instrument] = {
    MetricName.REQUEST_DURATION: Instrument(
        Kind.HISTOGRAM, "s", "From a request's arrival to its last byte.",
        (*_INFERENCE, Attr.ERROR_TYPE), _DURATION_BUCKETS,
    ),
    MetricName.TIME_TO_FIRST_TOKEN: Instrument(
        Kind.HISTOGRAM, "s", "From a request's arrival to its first token.", _INFERENCE, _FIRST_TOKEN_BUCKETS
    ),
    MetricName.TIME_PER_OUTPUT_TOKEN: Instrument(
        Kind.HISTOGRAM, "s", "Mean time per token after the first, once for each answer.",
        _INFERENCE, _TOKEN_BUCKETS,
    ),
    MetricName.INPUT_TOKENS: Instrument(
        Kind.COUNTER, "{token}", "Prompt tokens.", (*_INFERENCE, Attr.TOKEN_MODALITY)
    ),
    MetricName.OUTPUT_TOKENS: Instrument(
        Kind.COUNTER, "{token}", "Answer tokens.", (*_INFERENCE, Attr.TOKEN_MODALITY)
    ),
    MetricName.REQUESTS: Instrument(
        Kind.COUNTER, "{request}", "Requests by outcome.",
        (*_INFERENCE, Attr.STATUS, Attr.HTTP_STATUS, Attr.ERROR_TYPE),
    ),
    MetricName.IN_FLIGHT: Instrument(Kind.UP_DOWN, "{request}", "Requests being answered."),
    MetricName.QUEUE_DEPTH: Instrument(Kind.UP_DOWN, "{request}", "Requests waiting for a place."),
    MetricName.QUEUE_WAIT: Instrument(
        Kind.HISTOGRAM, "s", "Time a request waited for a place.", (), _FIRST_TOKEN_BUCKETS
    ),
    MetricName.DECODE_OVERRIDDEN: Instrument(
        Kind.COUNTER, "{request}", "Requests with a decode field that the pin overrode.", (Attr.DECODE_FIELD,)
    ),
    MetricName.STAMP_MISMATCHES: Instrument(
        Kind.COUNTER, "{response}", "Answers whose engine was not the policy it claimed to be.",
        (Attr.RESPONSE_MODEL,),
    ),
    MetricName.SHADOWS: Instrument(
        Kind.COUNTER, "{request}", "Requests copied to a shadow policy, or dropped for want of room.",
        (Attr.RESPONSE_MODEL, Attr.STATUS),
    ),
    MetricName.ENGINE_STATE: Instrument(
        Kind.GAUGE, "1", "1 for the state an engine is in.",
        (Attr.ENGINE, Attr.RESPONSE_MODEL, Attr.ENGINE_STATE),
    ),
    MetricName.PLAN_VERSION: Instrument(
        Kind.GAUGE, "1", "Version of the traffic plan in force.", (Attr.REQUEST_MODEL,)
    ),
    MetricName.SPOOL_DEPTH: Instrument(Kind.GAUGE, "{record}", "Records of the spool not yet in PostgreSQL."),
    MetricName.SPOOL_BYTES: Instrument(Kind.GAUGE, "By", "Bytes the spool holds."),
    MetricName.STORED: Instrument(Kind.COUNTER, "{response}", "Responses stored in PostgreSQL."),
    MetricName.UNRECORDED: Instrument(
        Kind.COUNTER, "{response}", "Answers given without a record, on a full spool that fails open."
    ),
    MetricName.ALARMS: Instrument(Kind.GAUGE, "{alarm}", "Alarms not yet cleared.", (Attr.ALARM,)),
    MetricName.HEARTBEAT_AGE: Instrument(
        Kind.GAUGE, "s", "Time since the last sign of life of a process.", (Attr.PROCESS,)
    ),
}  # fmt: skip

Point = tuple[float, Mapping[str, str]]
"""A gauge's value and its attributes."""


class Telemetry:
    """One process's traces and metrics; made by `configure`, ended by `shutdown`."""

    def __init__(self, meters: MeterProvider, tracers: TracerProvider, registry: CollectorRegistry) -> None:
        self._meters = meters
        self._tracers = tracers
        self._registry = registry
        version = importlib.metadata.version("ratchet")
        self.meter: Meter = meters.get_meter("ratchet", version)
        self.tracer: Tracer = tracers.get_tracer("ratchet", version)

    def counter(self, name: MetricName) -> Counter:
        """The counter of this name, made on first use."""
        known = _instrument(name, Kind.COUNTER)
        return self.meter.create_counter(name.value, known.unit, known.description)

    def up_down(self, name: MetricName) -> UpDownCounter:
        """The up-down counter of this name, made on first use."""
        known = _instrument(name, Kind.UP_DOWN)
        return self.meter.create_up_down_counter(name.value, known.unit, known.description)

    def histogram(self, name: MetricName) -> Histogram:
        """The histogram of this name with its buckets, made on first use."""
        known = _instrument(name, Kind.HISTOGRAM)
        return self.meter.create_histogram(
            name.value, known.unit, known.description, explicit_bucket_boundaries_advisory=known.buckets
        )

    def observe(self, name: MetricName, callback: Callable[[], Iterable[Point]]) -> None:
        """Registers a gauge; call it once for each name.

        Args:
            name: A metric of kind `GAUGE`.
            callback: Asked at each scrape or export, possibly in another thread; must not block.
        """
        known = _instrument(name, Kind.GAUGE)

        def observed(_: CallbackOptions) -> Iterable[Observation]:
            return [Observation(value, attributes) for value, attributes in callback()]

        self.meter.create_observable_gauge(name.value, [observed], known.unit, known.description)

    def prometheus_text(self) -> bytes:
        """Every metric of this process in Prometheus' text format (`PROMETHEUS_CONTENT_TYPE`)."""
        return generate_latest(self._registry)

    def shutdown(self) -> None:
        """Sends what is left to the collector, if there is one, and stops the exporters' threads."""
        self._tracers.shutdown()
        self._meters.shutdown(timeout_millis=EXPORT_TIMEOUT_S * 1000)


def configure(service: str, instance: str, otlp_endpoint: str | None) -> Telemetry:
    """Sets up the traces and metrics of one process.

    Args:
        service: `gateway`, `feedback`, `trainer`, `evaluator`; exported as `ratchet-<service>`.
        instance: Tells processes of one service apart.
        otlp_endpoint: Base address of an OTLP/HTTP collector; without one metrics stay in the process, and
            spans have ids but record nothing.

    Returns:
        Telemetry whose metrics are always readable as Prometheus text.
    """
    resource = Resource.create(
        {
            SERVICE_NAME: f"ratchet-{service}",
            SERVICE_INSTANCE_ID: instance,
            SERVICE_VERSION: importlib.metadata.version("ratchet"),
        }
    )
    registry = CollectorRegistry()
    readers: list[MetricReader] = [PrometheusMetricReader(scope_info_enabled=False, registry=registry)]
    sampler = ALWAYS_OFF if otlp_endpoint is None else ParentBased(ALWAYS_ON)
    tracers = TracerProvider(sampler=sampler, resource=resource, shutdown_on_exit=False)
    if otlp_endpoint is not None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        base = otlp_endpoint.rstrip("/")
        readers.append(
            PeriodicExportingMetricReader(
                OTLPMetricExporter(f"{base}/v1/metrics", timeout=EXPORT_TIMEOUT_S),
                export_interval_millis=EXPORT_INTERVAL_S * 1000,
            )
        )
        spans = OTLPSpanExporter(f"{base}/v1/traces", timeout=EXPORT_TIMEOUT_S)
        tracers.add_span_processor(BatchSpanProcessor(spans))
    meters = MeterProvider(
        metric_readers=readers,
        resource=resource,
        exemplar_filter=AlwaysOffExemplarFilter(),
        shutdown_on_exit=False,
    )
    return Telemetry(meters, tracers, registry)


def _instrument(name: MetricName, wanted: Kind) -> Instrument:
    instrument = INSTRUMENTS[name]
    if instrument.kind is not wanted:
        raise TypeError(f"{name} is of kind {instrument.kind}, not {wanted}")
    return instrument

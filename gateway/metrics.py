"""What the gateway counts and times, under the names of `ratchet.telemetry`."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gateway.engines import EnginePool
from gateway.fields import Kind
from gateway.records import Closing
from gateway.snapshot import Snapshot
from ratchet.telemetry import MODALITY, PROVIDER, Attr, MetricName, Point, Telemetry

OPERATIONS = {Kind.CHAT: "chat", Kind.COMPLETION: "text_completion"}
UNAUTHENTICATED = "unauthenticated"


@dataclass(frozen=True)
class Labels:
    """What a request's points carry; bounded by what is served, never by what clients send.

    Attributes:
        kind: Which endpoint.
        model: The name asked for, once it is known to be served.
        policy: The policy that answers.
        arm: Its part.
    """

    kind: Kind
    model: str | None
    policy: str | None
    arm: str | None

    @cached_property
    def attributes(self) -> dict[str, str]:
        """As attributes of a point."""
        known = {
            Attr.OPERATION.value: OPERATIONS[self.kind],
            Attr.PROVIDER.value: PROVIDER,
            Attr.REQUEST_MODEL.value: self.model,
            Attr.RESPONSE_MODEL.value: self.policy,
            Attr.ARM.value: self.arm,
        }
        return {name: value for name, value in known.items() if value is not None}


class Metrics:
    """Every instrument of the gateway, made once."""

    def __init__(self, telemetry: Telemetry, recorder_status: Callable[[], Mapping[str, Any]]) -> None:
        self._telemetry = telemetry
        self._recorder_status = recorder_status
        self._counted: dict[str, int] = {}
        self._stored = telemetry.counter(MetricName.STORED)
        self._unrecorded = telemetry.counter(MetricName.UNRECORDED)
        self._duration = telemetry.histogram(MetricName.REQUEST_DURATION)
        self._first_token = telemetry.histogram(MetricName.TIME_TO_FIRST_TOKEN)
        self._per_token = telemetry.histogram(MetricName.TIME_PER_OUTPUT_TOKEN)
        self._input = telemetry.counter(MetricName.INPUT_TOKENS)
        self._output = telemetry.counter(MetricName.OUTPUT_TOKENS)
        self._requests = telemetry.counter(MetricName.REQUESTS)
        self._in_flight = telemetry.up_down(MetricName.IN_FLIGHT)
        self._queue_depth = telemetry.up_down(MetricName.QUEUE_DEPTH)
        self._queue_wait = telemetry.histogram(MetricName.QUEUE_WAIT)
        self._overridden = telemetry.counter(MetricName.DECODE_OVERRIDDEN)
        self._mismatches = telemetry.counter(MetricName.STAMP_MISMATCHES)
        self._shadows = telemetry.counter(MetricName.SHADOWS)

    def observe(self, pool: EnginePool, snapshot: Callable[[], Snapshot]) -> None:
        """Registers the gauges, read at each scrape."""

        def states() -> Iterable[Point]:
            return [
                (1.0, {Attr.ENGINE.value: str(engine.id), Attr.RESPONSE_MODEL.value: engine.spec.policy,
                       Attr.ENGINE_STATE.value: engine.state.value})
                for engine in pool.engines()
            ]  # fmt: skip

        def versions() -> Iterable[Point]:
            plans = snapshot().plans.values()
            return [(float(plan.version), {Attr.REQUEST_MODEL.value: plan.model}) for plan in plans]

        def spool(name: str) -> Callable[[], Iterable[Point]]:
            return lambda: [(float(self._recorder_status()[name]), {})]

        self._telemetry.observe(MetricName.ENGINE_STATE, states)
        self._telemetry.observe(MetricName.SPOOL_DEPTH, spool("depth"))
        self._telemetry.observe(MetricName.SPOOL_BYTES, spool("bytes"))
        self._telemetry.observe(MetricName.PLAN_VERSION, versions)

    def unauthenticated(self, kind: Kind, status: int, code: str) -> None:
        """A request without a key that may ask: counted, not recorded."""
        self._count(Labels(kind, None, None, None).attributes, UNAUTHENTICATED, status, code)

    def began(self) -> None:
        """A request has a place."""
        self._in_flight.add(1)

    def left(self) -> None:
        """Its place is free again."""
        self._in_flight.add(-1)

    def queued(self, change: int) -> None:
        """One more, or one fewer, waits for a place."""
        self._queue_depth.add(change)

    def waited(self, seconds: float) -> None:
        """A request got its place after so long."""
        self._queue_wait.record(seconds)

    def overridden(self, fields: Iterable[str]) -> None:
        """The pin overrode these fields of a request."""
        for name in fields:
            self._overridden.add(1, {Attr.DECODE_FIELD.value: name})

    def stamp_mismatch(self, policy: str) -> None:
        """An answer's engine was not the policy it claimed to be."""
        self._mismatches.add(1, {Attr.RESPONSE_MODEL.value: policy})

    def shadowed(self, policy: str, outcome: str) -> None:
        """A request was copied to a shadow policy, or there was no room for it."""
        self._shadows.add(1, {Attr.RESPONSE_MODEL.value: policy, Attr.STATUS.value: outcome})

    def ended(self, labels: Labels, closing: Closing, *, stream: bool) -> None:
        """A recorded request is over; only of a stream are the times of its tokens known."""
        attributes = labels.attributes
        self._count(attributes, closing.status, closing.http_status, closing.error_code)
        if closing.duration_ms is not None:
            failed = {Attr.ERROR_TYPE.value: closing.error_code} if closing.error_code else {}
            self._duration.record(closing.duration_ms / 1000, {**attributes, **failed})
        if stream and closing.ttft_ms is not None:
            self._first_token.record(closing.ttft_ms / 1000, attributes)
            later_tokens = (closing.output_tokens or 0) - 1
            if later_tokens > 0 and closing.duration_ms is not None:
                seconds = (closing.duration_ms - closing.ttft_ms) / 1000
                self._per_token.record(seconds / later_tokens, attributes)
        text = {**attributes, Attr.TOKEN_MODALITY.value: MODALITY}
        if closing.prompt_tokens:
            self._input.add(closing.prompt_tokens, text)
        if closing.output_tokens:
            self._output.add(closing.output_tokens, text)

    def follow_recorder(self) -> None:
        """Takes over what the recorder counted since the last time."""
        status = self._recorder_status()
        for counter, name in ((self._stored, "flushed"), (self._unrecorded, "failed_open")):
            counter.add(status[name] - self._counted.get(name, 0))
            self._counted[name] = status[name]

    def prometheus_text(self) -> bytes:
        """Everything, in Prometheus' text format."""
        self.follow_recorder()
        return self._telemetry.prometheus_text()

    def _count(self, attributes: Mapping[str, str], status: str, http_status: int, code: str | None) -> None:
        point = {
            **attributes,
            Attr.STATUS.value: status,
            Attr.HTTP_STATUS.value: str(http_status),
        }
        self._requests.add(1, {**point, Attr.ERROR_TYPE.value: code} if code else point)

"""What one request leaves behind, whatever happens to it: one record, its metrics, its span."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from gateway.ask import Ask
from gateway.choices import Choices
from gateway.decode_pin import PinnedRequest
from gateway.engines import PooledEngine
from gateway.errors import CLIENT_CLOSED_REQUEST, ApiError, unavailable
from gateway.fields import Kind
from gateway.jsontext import as_list
from gateway.keys_cache import KnownKey
from gateway.metrics import OPERATIONS, Labels, Metrics
from gateway.recorder import Handle, Recorder
from gateway.records import Closing, Opening, Stamp, Status
from gateway.snapshot import ServedPolicy
from gateway.stamp import StampMismatch
from gateway.timing import Stopwatch
from gateway.traffic import Route
from ratchet.errors import SpoolFull
from ratchet.ids import new_id
from ratchet.logs import get_logger
from ratchet.prompts import conversation_id, history_hash, prompt_hash
from ratchet.telemetry import PROVIDER, Attr

NOT_PARAMETERS = ("model", "messages", "prompt")
FULL_RETRY_S = 10.0
NAME_PREFIXES = {Kind.CHAT: "chatcmpl-", Kind.COMPLETION: "cmpl-"}
PROPAGATOR = TraceContextTextMapPropagator()

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Witnesses:
    """Where trails go.

    Attributes:
        recorder: Keeps records.
        metrics: Counts.
        tracer: Makes spans.
        instance: Name of this process, as it stands in rows.
    """

    recorder: Recorder
    metrics: Metrics
    tracer: Tracer
    instance: str


class Trail:
    """One request of a known key.

    Attributes:
        id: The response's id.
        name: The same, as OpenAI's clients expect it.
        stopwatch: Its times.
        choices: What was answered so far.
    """

    def __init__(self, witnesses: Witnesses, kind: Kind, key: KnownKey, traceparent: str | None) -> None:
        self._witnesses = witnesses
        self._kind = kind
        self._key = key
        self._handle: Handle | None = None
        self._engine: PooledEngine | None = None
        self._labels = Labels(kind, None, None, None)
        self._over = False
        self.id: UUID = new_id()
        self.name = f"{NAME_PREFIXES[kind]}{self.id}"
        self.stopwatch = Stopwatch()
        self.choices = Choices(kind)
        self._span = witnesses.tracer.start_span(
            OPERATIONS[kind],
            context=PROPAGATOR.extract({"traceparent": traceparent}) if traceparent else Context(),
            kind=SpanKind.SERVER,
        )
        self._opening = Opening(
            id=self.id,
            kind=kind.value,
            stream=False,
            model=None,
            policy=None,
            pinned=False,
            decode=None,
            decode_overridden=[],
            arm=None,
            stage=None,
            plan_version=None,
            key_id=key.id,
            user_id=None,
            session_id=None,
            conversation_id=None,
            history_hash=None,
            prompt_hash=None,
            messages=None,
            parameters_asked={},
            parameters_used={},
            trace_id=format(self._span.get_span_context().trace_id, "032x"),
            gateway=witnesses.instance,
        )

    def received(self, document: Mapping[str, Any]) -> None:
        """The body is JSON, whatever it says."""
        model = document.get("model")
        self._opening = replace(
            self._opening,
            model=model if isinstance(model, str) else None,
            stream=document.get("stream") is True,
            messages=as_list(document.get("messages")),
            parameters_asked={name: value for name, value in document.items() if name not in NOT_PARAMETERS},
        )

    def understood(self, ask: Ask, session: str | None) -> None:
        """The request is well-formed."""
        key = str(self._key.id)
        self._opening = replace(
            self._opening,
            messages=ask.messages,
            user_id=ask.user,
            session_id=session,
            conversation_id=conversation_id(ask.messages, key=key, user=ask.user, session=session),
            history_hash=history_hash(ask.messages),
            prompt_hash=prompt_hash(ask.messages),
        )

    def admitted(self, waited_s: float) -> None:
        """The request has a place."""
        self._opening = replace(self._opening, queue_ms=waited_s * 1000)

    def routed(self, route: Route, policy: ServedPolicy) -> None:
        """A policy will answer."""
        self._labels = Labels(self._kind, self._opening.model, policy.ref, route.arm.value)
        self._opening = replace(
            self._opening,
            policy=policy.ref,
            pinned=route.pinned,
            decode=policy.decode_digest,
            arm=route.arm.value,
            stage=route.stage,
            plan_version=route.plan_version,
        )

    def shadows(self, original: "Trail", route: Route, policy: ServedPolicy) -> None:
        """This is a copy of another request, answered by a policy that nobody is shown."""
        self._opening = replace(
            original._opening,
            id=self.id,
            pair_of=original.id,
            trace_id=self._opening.trace_id,
            queue_ms=None,
        )
        self.routed(route, policy)

    @property
    def probe(self) -> str | None:
        """Which of our own requests it is; None of a user's."""
        return self._opening.probe

    def probes(self, probe: str) -> None:
        """The request is one of our own, sent to see how a policy behaves."""
        self._opening = replace(self._opening, probe=probe)

    def pinned(self, request: PinnedRequest) -> None:
        """The sampling parameters are decided."""
        self._witnesses.metrics.overridden(request.overridden)
        self._opening = replace(
            self._opening, decode_overridden=request.overridden, parameters_used=request.parameters
        )

    def open(self) -> None:
        """Records the request, before an engine is asked.

        Raises:
            ApiError: 503 when the recorder has no room.
        """
        try:
            self._handle = self._witnesses.recorder.begin(self._opening)
        except SpoolFull as full:
            raise _recorder_full(full) from full

    def answered_by(self, engine: PooledEngine) -> None:
        """An engine has begun to answer."""
        self._engine = engine

    def delta(self, index: int, text: str) -> None:
        """Records a piece of text, before it leaves.

        Raises:
            ApiError: 503 when the recorder has no room.
        """
        assert self._handle is not None  # noqa: S101
        try:
            self._handle.delta(index, text)
        except SpoolFull as full:
            raise _recorder_full(full) from full

    def end_well(self, fingerprint: str) -> None:
        """Records a whole answer, before its last bytes leave.

        Raises:
            ApiError: 503 when the recorder has no room.
        """
        assert self._handle is not None  # noqa: S101
        closing = self._closing("ok", 200, "verified", fingerprint=fingerprint)
        try:
            self._handle.end(closing)
        except SpoolFull as full:
            raise _recorder_full(full) from full
        self._finish(closing)

    def end_badly(self, error: ApiError, *, started: bool) -> None:
        """Records what the request is refused or ended with, unless it is over.

        Args:
            error: What the client is told.
            started: The client got status 200 and a part already.
        """
        mismatch = isinstance(error, StampMismatch)
        self._end(
            self._closing(
                "rejected" if error.refused else "error",
                200 if started else error.status,
                "mismatch" if mismatch else "unverified",
                fingerprint=error.seen if mismatch else None,
                error=str(error),
                error_code=error.code,
            )
        )

    def end_cancelled(self) -> None:
        """Records that the client left, unless the request is over."""
        self._end(
            self._closing(
                "cancelled",
                CLIENT_CLOSED_REQUEST,
                "unverified",
                error="the client left before the answer was whole",
                error_code="client_closed_request",
            )
        )

    def _end(self, closing: Closing) -> None:
        if self._over:
            return
        try:
            if self._handle is None:
                self._handle = self._witnesses.recorder.begin(self._opening)
            self._handle.end(closing)
        except SpoolFull as full:
            log.warning("a request is not recorded", id=str(self.id), status=closing.status, reason=str(full))
        self._finish(closing)

    def _closing(
        self,
        status: Status,
        http_status: int,
        stamp: Stamp,
        *,
        fingerprint: str | None = None,
        error: str | None = None,
        error_code: str | None = None,
    ) -> Closing:
        return Closing(
            status=status,
            http_status=http_status,
            stamp=stamp,
            error=error,
            error_code=error_code,
            engine_id=None if self._engine is None else self._engine.id,
            fingerprint=fingerprint,
            outputs=self.choices.outputs(),
            finish_reason=self.choices.finish_reason,
            prompt_tokens=self.choices.prompt_tokens,
            output_tokens=self.choices.output_tokens,
            ttft_ms=self.stopwatch.ttft_ms,
            itl_p50_ms=self.stopwatch.gap_ms(0.5),
            itl_p99_ms=self.stopwatch.gap_ms(0.99),
            duration_ms=self.stopwatch.duration_ms,
        )

    def _finish(self, closing: Closing) -> None:
        self._over = True
        opening = self._opening
        self._witnesses.metrics.ended(self._labels, closing, stream=opening.stream)
        if not self._span.is_recording():
            return
        told = {
            Attr.OPERATION: OPERATIONS[self._kind],
            Attr.PROVIDER: PROVIDER,
            Attr.RESPONSE_ID: str(self.id),
            Attr.REQUEST_MODEL: opening.model,
            Attr.RESPONSE_MODEL: opening.policy,
            Attr.CONVERSATION_ID: opening.conversation_id,
            Attr.STREAM: opening.stream,
            Attr.MAX_TOKENS: opening.parameters_used.get("max_tokens")
            or opening.parameters_used.get("max_completion_tokens"),
            Attr.TEMPERATURE: opening.parameters_used.get("temperature"),
            Attr.TOP_P: opening.parameters_used.get("top_p"),
            Attr.FINISH_REASONS: [closing.finish_reason] if closing.finish_reason else None,
            Attr.INPUT_TOKENS: closing.prompt_tokens,
            Attr.OUTPUT_TOKENS: closing.output_tokens,
            Attr.ARM: opening.arm,
            Attr.STAGE: opening.stage,
            Attr.DECODE: opening.decode,
            Attr.PLAN_VERSION: opening.plan_version,
            Attr.ENGINE: str(closing.engine_id) if closing.engine_id else None,
            Attr.STATUS: closing.status,
            Attr.STAMP: closing.stamp,
            Attr.HTTP_STATUS: closing.http_status,
            Attr.ERROR_TYPE: closing.error_code,
        }
        self._span.set_attributes({name: value for name, value in told.items() if value is not None})
        self._span.end()


def _recorder_full(full: SpoolFull) -> ApiError:
    return unavailable("recorder_full", str(full), retry_after_s=FULL_RETRY_S)

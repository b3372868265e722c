"""The gateway as an ASGI application: its parts are made when it starts and ended in order when it stops."""

import asyncio
import contextlib
import ctypes
import gc
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from psycopg_pool import AsyncConnectionPool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from gateway.admission import Admission
from gateway.chat import caller
from gateway.engines import EnginePool
from gateway.errors import ApiError
from gateway.feedback_routes import Connection, router_for
from gateway.follower import Follower
from gateway.health import readiness
from gateway.inflight import InFlight
from gateway.keys_cache import KnownKey
from gateway.ledger import Ledger
from gateway.metrics import Metrics
from gateway.parts import Parts
from gateway.prover import Prover
from gateway.recorder import Recorder
from gateway.routes import ROUTES
from gateway.shadow import Shadow
from gateway.snapshot import Snapshot, SnapshotReader
from gateway.switch import OfflineSwitch
from gateway.trail import Witnesses
from gateway.upstream import Upstream
from ratchet import telemetry
from ratchet.db.engine import libpq_url, open_engine
from ratchet.logs import configure as configure_logs
from ratchet.settings import GatewaySettings, load

DRAIN_S = 0.5
RECORDER_STOP_S = 3.0
PULSE_S = 10.0
FEEDBACK_TIMEOUT_S = 3.0
PR_SET_PDEATHSIG = 1


def create_app(settings: GatewaySettings) -> FastAPI:
    """The application; nothing is opened before its lifespan begins."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        async with running_parts(settings) as parts:
            app.state.parts = parts
            async with _feedback(app, parts):
                gc.collect()
                gc.freeze()
                yield

    return FastAPI(
        lifespan=lifespan,
        openapi_url=None,
        routes=list(ROUTES),
        exception_handlers={ApiError: _api_error, HTTPException: _http_error, Exception: _internal_error},
    )


def from_environment() -> FastAPI:
    """The application of one worker process, which ends when the process that started it does."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    settings = load(GatewaySettings)
    configure_logs(settings.log_level, settings.log_format)
    return create_app(settings)


@asynccontextmanager
async def _feedback(app: FastAPI, parts: Parts) -> AsyncGenerator[None]:
    """Mounts the feedback route, with connections of its own that are made when they are needed."""
    pool: AsyncConnectionPool[Connection] = AsyncConnectionPool(
        libpq_url(parts.settings.database_url.get_secret_value()),
        kwargs={"application_name": f"ratchet-gateway-feedback {parts.witnesses.instance}"},
        min_size=0,
        max_size=4,
        timeout=FEEDBACK_TIMEOUT_S,
        open=False,
    )

    def sender(request: Request) -> KnownKey:
        return caller(parts, request.headers.get("authorization"))

    async with pool:
        app.include_router(router_for(pool, sender, parts.served_to.key_of))
        yield


@asynccontextmanager
async def running_parts(settings: GatewaySettings) -> AsyncGenerator[Parts]:
    """Starts recorder, rows and prover, and stops them again: requests first, the recorder last."""
    instance = f"{settings.instance}-{os.getpid()}"
    database_url = settings.database_url.get_secret_value()
    engine_key = settings.engine_api_key.get_secret_value() if settings.engine_api_key else None
    database = open_engine(database_url, application=f"ratchet-gateway {instance}", pool_size=2)
    instruments = telemetry.configure("gateway", instance, settings.otlp_endpoint)
    recorder = Recorder(settings, instance)
    recorder.start()
    metrics = Metrics(instruments, recorder.status)
    ledger = Ledger(database, instance)
    pool = EnginePool(on_change=lambda: prover.wake())
    in_flight = InFlight()

    def take_over(snapshot: Snapshot) -> None:
        pool.follow(snapshot)
        in_flight.follow(snapshot.plans)
        shadow.follow(snapshot)

    switch = OfflineSwitch(settings.switch_dir, ledger)
    follower = Follower(SnapshotReader(database), database_url, settings.plan_poll_s, switch, take_over)
    prover = Prover(
        pool,
        lambda: follower.snapshot.policies,
        ledger,
        metrics,
        tolerance=settings.proof_tolerance,
        watch_s=settings.plan_poll_s,
        api_key=engine_key,
    )
    upstream = Upstream(
        pool,
        connections=settings.max_concurrency,
        silence_s=settings.upstream_first_byte_s,
        api_key=engine_key,
    )
    admission = Admission(settings.max_concurrency, settings.max_queue, settings.queue_timeout_s, metrics)
    witnesses = Witnesses(recorder, metrics, instruments.tracer, instance)
    shadow = Shadow(
        lambda: follower.snapshot,
        pool,
        prover,
        Upstream(
            pool,
            connections=max(1, settings.shadow_places),
            silence_s=settings.upstream_first_byte_s,
            api_key=engine_key,
        ),
        witnesses,
        admission,
        places=settings.shadow_places,
        timeout_s=settings.shadow_timeout_s or settings.upstream_timeout_s,
    )
    metrics.observe(pool, lambda: follower.snapshot)
    ledger.start()
    prover.start()
    await follower.start()
    parts = Parts(
        settings=settings,
        follower=follower,
        pool=pool,
        prover=prover,
        upstream=upstream,
        shadow=shadow,
        in_flight=in_flight,
        admission=admission,
        recorder=recorder,
        metrics=metrics,
        witnesses=witnesses,
    )
    pulse = asyncio.create_task(_pulse(parts, ledger))
    try:
        yield parts
    finally:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(admission.drained(), DRAIN_S)
        pulse.cancel()
        await shadow.stop()
        await follower.stop()
        await prover.stop()
        await upstream.close()
        await ledger.stop()
        await asyncio.gather(
            asyncio.to_thread(recorder.stop, RECORDER_STOP_S), asyncio.to_thread(instruments.shutdown)
        )
        database.dispose()


async def _pulse(parts: Parts, ledger: Ledger) -> None:
    while True:
        parts.metrics.follow_recorder()
        ready, document = readiness(parts)
        detail = {"pid": os.getpid(), "ready": ready, "reasons": document["reasons"]}
        ledger.beat(parts.settings.instance, detail)
        await asyncio.sleep(PULSE_S)


async def _api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)  # noqa: S101
    headers = {} if error.retry_after_s is None else {"Retry-After": str(max(1, round(error.retry_after_s)))}
    return Response(error.body(), error.status, headers, "application/json")


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101
    known = {404: "unknown_url", 405: "method_not_allowed"}
    message = f"{request.method} {request.url.path}: {error.detail}"
    told = ApiError(error.status_code, known.get(error.status_code, "http_error"), message)
    return Response(told.body(), error.status_code, error.headers, "application/json")


async def _internal_error(_: Request, error: Exception) -> Response:
    told = ApiError(500, "internal_error", f"an internal error: {type(error).__name__}")
    return Response(told.body(), 500, media_type="application/json")

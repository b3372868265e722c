"""The release process: walks releases in a thread of its own, and serves their pages and routes."""

import os
import signal
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.staticfiles import StaticFiles
from sqlalchemy import Engine, select
from sqlalchemy.exc import SQLAlchemyError

from gateway.dashboard import loops, pages
from gateway.dashboard.render import FOLDER, Templates
from gateway.releases import routes
from gateway.releases.control import Control
from gateway.releases.desk import Desk
from gateway.releases.labeller import label_new
from gateway.releases.loop import take_steps
from gateway.releases.probes import Trickle, load_probes
from gateway.releases.sessions import NotAnOperator
from gateway.releases.settings import ReleaseSettings
from gateway.releases.walker import Walker
from gateway.releases.webhook import Webhook
from ratchet import look
from ratchet.alarms import raise_alarm
from ratchet.bodies import BodyLimit
from ratchet.db.engine import open_engine, session_scope
from ratchet.db.models.serving import ApiKey
from ratchet.errors import DatabaseUnavailable, EnvironmentFault, NotFound, RatchetError
from ratchet.heartbeat import beat
from ratchet.keys import KeyRole, create_key, revoke_key
from ratchet.labels.answer import labels_of
from ratchet.logs import configure as configure_logs
from ratchet.logs import get_logger
from ratchet.settings import load
from ratchet.telemetry import PROMETHEUS_CONTENT_TYPE
from ratchet.telemetry import configure as configure_telemetry
from ratchet.vitals import trouble

SERVICE = "releases"
POOL_SIZE = 5
KEY_NAME = "release process"
BEAT_EVERY_S = 15.0
LOOP_EVERY_S = 5.0
JOIN_S = 5.0
"""Seconds that a thread's work may take at the end of the process."""
MAX_BODY_BYTES = 64 << 10
RELEASE_WEBHOOK = "release_webhook"
"""Alarm: the webhook could not be told of what a release did; stands until a person clears it."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self';"
    " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_STATUS: dict[type[RatchetError], int] = {NotAnOperator: 401, NotFound: 404, DatabaseUnavailable: 503}

log = get_logger(__name__)


def create_app() -> FastAPI:
    """The application; settings are read from the environment now.

    Raises:
        ConfigError: A setting or the file of probes is wrong.
    """
    settings = load(ReleaseSettings)
    configure_logs(settings.log_level, settings.log_format)
    telemetry = configure_telemetry(SERVICE, settings.instance, settings.otlp_endpoint)
    probes = load_probes(settings.release_probes, tools=settings.release_probe_tools)
    engine = open_engine(
        settings.database_url.get_secret_value(), application=settings.instance, pool_size=POOL_SIZE
    )

    control = Control(engine)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        webhook = Webhook(lambda host, reason: _raise(engine, host, reason))
        trickle = Trickle(settings.release_gateway_url, _own_key(engine), probes)
        walker = Walker(engine, settings, trickle, webhook)
        with (
            _thread("walker", walker.round, settings.release_tick_s),
            _thread("loop", lambda: take_steps(engine, control), LOOP_EVERY_S),
            _thread("labeller", lambda: label_new(engine, labels_of), settings.release_tick_s),
            _thread("heartbeat", lambda: _beat(engine, settings.instance), BEAT_EVERY_S),
        ):
            yield
        trickle.close()
        webhook.stop()
        engine.dispose()
        telemetry.shutdown()

    app = FastAPI(title="Ratchet releases", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.desk = Desk(engine, control, settings)
    app.state.templates = Templates()
    app.add_middleware(BodyLimit, most=MAX_BODY_BYTES)
    app.include_router(routes.router)
    app.include_router(pages.router)
    app.include_router(loops.router)
    app.mount("/look", StaticFiles(directory=look.FOLDER), name="look")
    app.mount("/static", StaticFiles(directory=FOLDER / "static"), name="static")
    _add_refusals(app)

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:  # pyright: ignore[reportUnusedFunction]
        return {"status": "ok", "service": SERVICE}

    @app.get("/readyz")
    def readyz() -> Response:  # pyright: ignore[reportUnusedFunction]
        reason = trouble(engine)
        return JSONResponse({"ready": reason is None, "reason": reason}, 200 if reason is None else 503)

    @app.get("/metrics")
    def metrics() -> Response:  # pyright: ignore[reportUnusedFunction]
        return Response(telemetry.prometheus_text(), media_type=PROMETHEUS_CONTENT_TYPE)

    return app


@contextmanager
def _thread(name: str, work: Callable[[], object], every_s: float) -> Generator[None]:
    """Works in a thread, again and again; a database that is away is waited for, any other fault ends the
    process.

    A walker that has died would leave releases unwatched: whoever started the process starts it again.
    """
    stopping = threading.Event()

    def run() -> None:
        while not stopping.wait(every_s):
            try:
                work()
            except (DatabaseUnavailable, SQLAlchemyError) as error:
                log.warning("rows cannot be read or written", thread=name, reason=str(error).splitlines()[0])
            except Exception:
                log.exception("a thread has died", thread=name)
                os.kill(os.getpid(), signal.SIGTERM)
                raise

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join(JOIN_S)


def _own_key(engine: Engine) -> str:
    """A key for this process's own requests; those of earlier ones are revoked.

    Raises:
        EnvironmentFault: The database cannot be reached.
    """
    try:
        with session_scope(engine) as session:
            for old in session.scalars(
                select(ApiKey.id).where(ApiKey.name == KEY_NAME, ApiKey.revoked_at.is_(None))
            ):
                revoke_key(session, str(old))
            return create_key(session, KeyRole.SERVICE, KEY_NAME)[1]
    except SQLAlchemyError as error:
        raise EnvironmentFault(f"PostgreSQL: {str(error).splitlines()[0]}") from error


def _beat(engine: Engine, instance: str) -> None:
    with session_scope(engine) as session:
        beat(session, instance, {"pid": os.getpid()})


def _raise(engine: Engine, host: str, reason: str) -> None:
    try:
        with session_scope(engine) as session:
            raise_alarm(session, RELEASE_WEBHOOK, host, {"reason": reason})
    except (DatabaseUnavailable, SQLAlchemyError) as error:
        why = str(error).splitlines()[0]
        log.error("no alarm could be raised of the webhook", host=host, reason=reason, database=why)


def _add_refusals(app: FastAPI) -> None:
    @app.exception_handler(RatchetError)
    async def refuse(request: Request, error: RatchetError) -> Response:  # pyright: ignore[reportUnusedFunction]
        status = _STATUS.get(type(error), 409)
        if request.url.path.startswith(routes.PREFIX):
            return JSONResponse({"error": str(error)}, status)
        return pages.refusal(request, str(error), status)

    @app.exception_handler(RequestValidationError)
    async def refuse_form(request: Request, error: RequestValidationError) -> Response:  # pyright: ignore[reportUnusedFunction]
        wrong = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        if request.url.path.startswith(routes.PREFIX):
            return JSONResponse({"error": wrong}, 422)
        return pages.refusal(request, wrong, 422)

    @app.middleware("http")
    async def harden(request: Request, handle: Callable[[Request], pages.Answer]) -> Response:  # pyright: ignore[reportUnusedFunction]
        answer = await handle(request)
        for name, value in HEADERS.items():
            answer.headers.setdefault(name, value)
        return answer

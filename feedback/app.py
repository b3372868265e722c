"""The feedback web application: the rating page, its JSON twin, and signs of life."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from fastapi.staticfiles import StaticFiles

from feedback.desk import Desk
from feedback.errors import LeaseLost, NothingToUndo, QuotaReached, RatingError, UnknownRater
from feedback.settings import FeedbackSettings
from feedback.web import api, pages
from feedback.web.pages import FOLDER, Pages
from ratchet import look
from ratchet.bodies import BodyLimit
from ratchet.db.engine import open_engine
from ratchet.errors import DatabaseUnavailable
from ratchet.logs import configure as configure_logs
from ratchet.settings import load
from ratchet.telemetry import PROMETHEUS_CONTENT_TYPE, Telemetry
from ratchet.telemetry import configure as configure_telemetry
from ratchet.vitals import observe_vitals, trouble

SERVICE = "feedback"
POOL_SIZE = 10
MAX_BODY_BYTES = 128 << 10
"""A vote whose note is as long as it may be, every character escaped."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_STATUS: dict[type[RatingError], int] = {
    UnknownRater: 401,
    QuotaReached: 429,
    LeaseLost: 409,
    NothingToUndo: 409,
}


def create_app() -> FastAPI:
    """The application; settings are read from the environment now.

    Raises:
        ConfigError: A setting is missing or wrong.
    """
    settings = load(FeedbackSettings)
    configure_logs(settings.log_level, settings.log_format)
    telemetry = configure_telemetry(SERVICE, settings.instance, settings.otlp_endpoint)
    engine = open_engine(
        settings.database_url.get_secret_value(), application=settings.instance, pool_size=POOL_SIZE
    )
    observe_vitals(telemetry, engine)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        yield
        engine.dispose()
        telemetry.shutdown()

    app = FastAPI(title="Ratchet feedback", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.desk = Desk(engine, settings)
    app.state.pages = Pages(settings)
    app.add_middleware(BodyLimit, most=MAX_BODY_BYTES)
    app.include_router(pages.router)
    app.include_router(api.router)
    app.mount("/look", StaticFiles(directory=look.FOLDER), name="look")
    app.mount("/static", StaticFiles(directory=FOLDER / "static"), name="static")
    _add_refusals(app, app.state.pages)
    _add_signs_of_life(app, telemetry, lambda: trouble(engine))
    return app


def _add_refusals(app: FastAPI, render: Pages) -> None:
    @app.exception_handler(RatingError)
    async def refuse(request: Request, error: RatingError) -> Response:  # pyright: ignore[reportUnusedFunction]
        if request.url.path.startswith("/api/"):
            return JSONResponse({"error": str(error)}, _STATUS.get(type(error), 403))
        return render.refusal(error)

    @app.exception_handler(DatabaseUnavailable)
    async def unavailable(request: Request, error: DatabaseUnavailable) -> Response:  # pyright: ignore[reportUnusedFunction]
        if request.url.path.startswith("/api/"):
            return JSONResponse({"error": str(error)}, 503, headers={"Retry-After": "5"})
        return render.message("Not now", "The database cannot be reached. Try again in a minute.", status=503)

    @app.middleware("http")
    async def harden(request: Request, handle: Callable[[Request], Awaitable[Response]]) -> Response:  # pyright: ignore[reportUnusedFunction]
        answer = await handle(request)
        for name, value in HEADERS.items():
            answer.headers.setdefault(name, value)
        return answer


def _add_signs_of_life(app: FastAPI, telemetry: Telemetry, trouble: Callable[[], str | None]) -> None:
    @app.get("/healthz")
    async def healthz() -> dict[str, str]:  # pyright: ignore[reportUnusedFunction]
        return {"status": "ok", "service": SERVICE}

    @app.get("/readyz")
    def readyz() -> Response:  # pyright: ignore[reportUnusedFunction]
        reason = trouble()
        return JSONResponse({"ready": reason is None, "reason": reason}, 200 if reason is None else 503)

    @app.get("/metrics")
    def metrics() -> Response:  # pyright: ignore[reportUnusedFunction]
        return Response(telemetry.prometheus_text(), media_type=PROMETHEUS_CONTENT_TYPE)

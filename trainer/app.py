"""The trainer's web application: is it alive, and what does it measure."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Response

from ratchet.logs import configure as configure_logs
from ratchet.settings import WorkerSettings, load
from ratchet.telemetry import PROMETHEUS_CONTENT_TYPE, Telemetry
from ratchet.telemetry import configure as configure_telemetry

SERVICE = "trainer"


def create_app() -> FastAPI:
    """The application; settings are read from the environment now.

    Raises:
        ConfigError: A setting is missing or wrong.
    """
    settings = load(WorkerSettings)
    configure_logs(settings.log_level, settings.log_format)
    telemetry = configure_telemetry(SERVICE, settings.instance, settings.otlp_endpoint)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        yield
        telemetry.shutdown()

    app = FastAPI(title=f"Ratchet {SERVICE}", lifespan=lifespan, docs_url=None, redoc_url=None)
    _add_routes(app, telemetry)
    return app


def _add_routes(app: FastAPI, telemetry: Telemetry) -> None:
    @app.get("/healthz")
    async def healthz() -> dict[str, str]:  # pyright: ignore[reportUnusedFunction]
        return {"status": "ok", "service": SERVICE}

    @app.get("/metrics")
    async def metrics() -> Response:  # pyright: ignore[reportUnusedFunction]
        return Response(telemetry.prometheus_text(), media_type=PROMETHEUS_CONTENT_TYPE)

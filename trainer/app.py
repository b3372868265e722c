"""The trainer's web application: rounds for operators, and signs of life."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from ratchet.db.engine import open_engine
from ratchet.errors import DatabaseUnavailable, NotFound, RatchetError, UsageError
from ratchet.logs import configure as configure_logs
from ratchet.settings import load
from ratchet.telemetry import PROMETHEUS_CONTENT_TYPE, Telemetry
from ratchet.telemetry import configure as configure_telemetry
from trainer import routes
from trainer.settings import TrainerSettings

SERVICE = "trainer"
POOL_SIZE = 5


def create_app() -> FastAPI:
    """The application; settings are read from the environment now.

    Raises:
        ConfigError: A setting is missing or wrong.
    """
    settings = load(TrainerSettings)
    configure_logs(settings.log_level, settings.log_format)
    telemetry = configure_telemetry(SERVICE, settings.instance, settings.otlp_endpoint)
    engine = open_engine(
        settings.database_url.get_secret_value(), application=settings.instance, pool_size=POOL_SIZE
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        yield
        engine.dispose()
        telemetry.shutdown()

    app = FastAPI(title=f"Ratchet {SERVICE}", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.engine = engine
    app.include_router(routes.router)
    _add_refusals(app)
    _add_signs_of_life(app, telemetry)
    return app


def _add_refusals(app: FastAPI) -> None:
    @app.exception_handler(RatchetError)
    def refuse(_: Request, error: RatchetError) -> Response:  # pyright: ignore[reportUnusedFunction]
        match error:
            case NotFound():
                status = 404
            case UsageError():
                status = 422
            case DatabaseUnavailable():
                status = 503
            case _:
                status = 500
        return JSONResponse({"error": str(error)}, status)


def _add_signs_of_life(app: FastAPI, telemetry: Telemetry) -> None:
    @app.get("/healthz")
    async def healthz() -> dict[str, str]:  # pyright: ignore[reportUnusedFunction]
        return {"status": "ok", "service": SERVICE}

    @app.get("/metrics")
    async def metrics() -> Response:  # pyright: ignore[reportUnusedFunction]
        return Response(telemetry.prometheus_text(), media_type=PROMETHEUS_CONTENT_TYPE)

"""Structured logs on stderr, with secrets taken out before they are written."""

import logging
import re
import sys
from typing import Any

import structlog

SECRET_KEYS = re.compile(
    r"(password|secret|token|authorization|api_?key|database_url|broker_url)$", re.IGNORECASE
)
SECRET_TEXT = re.compile(
    r"(?P<head>://[^:/@\s]+:)[^@\s]+(?=@)|(?P<key>rk-)[A-Za-z0-9_-]{8,}|(?P<bearer>Bearer )\S+"
)
HIDDEN = "***"


def redact_text(text: str) -> str:
    """A text without passwords in addresses, API keys and bearer tokens."""
    return SECRET_TEXT.sub(
        lambda found: (found["head"] or found["key"] or found["bearer"] or "") + HIDDEN, text
    )


def _redact(_: Any, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    for key, value in event.items():
        if SECRET_KEYS.search(key):
            event[key] = HIDDEN
        elif isinstance(value, str):
            event[key] = redact_text(value)
    return event


def configure(level: str = "INFO", style: str = "json") -> None:
    """Sends structlog and the standard library's loggers to stderr in one form.

    Args:
        level: DEBUG, INFO, WARNING or ERROR.
        style: `json` for machines, `console` for people.
    """
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
        _redact,
    ]
    renderer = structlog.dev.ConsoleRenderer() if style == "console" else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """A logger; events are short phrases, facts are key-value pairs."""
    return structlog.stdlib.get_logger(name)

"""What a process last said: the line of its log that tells a person why it ended."""

import re
from pathlib import Path

from ratchet.logs import redact_text

TAIL_BYTES = 256 * 1024
LONGEST = 300

_ERROR = re.compile(
    r"(?:^|\s)Value error, "
    r"|\b(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Fault|Exit|Interrupt|Refused|Unavailable)\b:? *\S"
)
_SAYS_NOTHING = re.compile(
    r"See root cause above|Engine core initialization failed|EngineDeadError|resource_tracker|Traceback"
)
_HARMLESS = re.compile(r"DEBUG|INFO|WARNING")
_PREFIX = re.compile(
    r"^(?:\x1b\[[0-9;]*m|\((?:\w+ )*pid=\d+\)|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\b:?"
    r"|\d\d-\d\d \d\d:\d\d:\d\d|\[[\w./-]+\.\w+:\d+\]|\s)+"
)


def last_words(log: Path, since: int = 0, *, errors_only: bool = False) -> str:
    """The most telling line a process wrote.

    Args:
        log: Its log file.
        since: Byte offset at which this process began to write.
        errors_only: Whether a line that names no error says nothing.

    Returns:
        The last line that names an error and its cause; without one, the last line; empty without that.
    """
    try:
        with log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(since if since <= size else 0, size - TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    lines = [line for line in text.splitlines() if _PREFIX.sub("", line).strip()]
    telling = [line for line in lines if _tells_an_error(line)]
    said = [_PREFIX.sub("", line).strip() for line in telling or ([] if errors_only else lines)]
    return redact_text(said[-1])[:LONGEST] if said else ""


def _tells_an_error(line: str) -> bool:
    prefix = _PREFIX.match(line)
    if prefix and _HARMLESS.search(prefix[0]):
        return False
    return bool(_ERROR.search(line) and not _SAYS_NOTHING.search(line))

"""Labelled pairs from a file, to calibrate a judge on.

Two kinds of JSON lines are read, plain or gzipped: `{"question": ..., "better": ..., "worse": ...}`, and
transcripts as in Anthropic's HH data, `{"chosen": ..., "rejected": ...}`, whose last turn is the answer.
"""

import gzip
import json
import random
import zlib
from pathlib import Path
from typing import Any

from evaluator.judge.calibration import LabelledPair
from ratchet.canonical import digest_of
from ratchet.errors import UsageError

_ASSISTANT = "\n\nAssistant:"


def load_labelled(path: Path, limit: int | None = None, seed: int = 0) -> list[LabelledPair]:
    """The pairs of a file, or a seeded sample of so many; a pair of equal answers is left out.

    Raises:
        UsageError: The file cannot be read, a line is no pair, or no pair is left.
    """
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        lines = content.decode("utf-8").splitlines()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    pairs = [_pair(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    told = [pair for pair in pairs if pair.better.strip() != pair.worse.strip()]
    unique = list({pair.prompt: pair for pair in told}.values())
    if not unique:
        raise UsageError(f"{path} holds no pair of two different answers")
    if limit is None or limit >= len(unique):
        return unique
    return random.Random(seed).sample(unique, limit)  # noqa: S311


def labels_digest(pairs: list[LabelledPair]) -> str:
    """SHA-256 over the pairs, whatever their order."""
    return digest_of(sorted([pair.question, pair.better, pair.worse] for pair in pairs))


def _pair(path: Path, number: int, line: str) -> LabelledPair:
    try:
        row: Any = json.loads(line)
        if "chosen" in row:
            question, better, worse = _transcripts(row["chosen"], row["rejected"])
        else:
            question, better, worse = row["question"], row["better"], row["worse"]
        if not all(isinstance(text, str) for text in (question, better, worse)):
            raise TypeError("question and answers are texts")
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path}, line {number}, is no labelled pair: {error!r}") from error
    return LabelledPair(digest_of([question, better, worse]), question, better, worse)


def _transcripts(chosen: str, rejected: str) -> tuple[str, str, str]:
    question, _, better = chosen.rpartition(_ASSISTANT)
    _, mark, worse = rejected.rpartition(_ASSISTANT)
    if not question or not mark:
        raise ValueError("a transcript has a question and the assistant's answer")
    return question.strip(), better.strip(), worse.strip()

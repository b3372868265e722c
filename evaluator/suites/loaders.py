"""Suite items from public data files: GSM8K and XSTest, by path, plain or gzipped."""

import csv
import gzip
import io
import json
import random
import zlib
from pathlib import Path
from typing import TypeVar

from evaluator.scorers.math_answers import expected_of_gsm8k
from evaluator.suites.model import MathItem, RefusalItem
from ratchet.errors import ConfigError

T = TypeVar("T")

_KINDS = {"safe": "benign", "unsafe": "harmful"}


def load_gsm8k(path: Path) -> list[MathItem]:
    """GSM8K's questions with the value after `####`.

    Raises:
        ConfigError: The file cannot be read or a line is no row of GSM8K.
    """
    items: list[MathItem] = []
    for number, line in enumerate(_text(path).splitlines(), 1):
        try:
            row = json.loads(line)
            items.append(MathItem(prompt=row["question"], expected=expected_of_gsm8k(row["answer"])))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{path}, line {number}, is no row of GSM8K: {error}") from error
    return items


def load_xstest(path: Path) -> list[RefusalItem]:
    """XSTest's prompts, safe ones as benign and unsafe ones as harmful.

    Raises:
        ConfigError: The file cannot be read or a row is none of XSTest.
    """
    items: list[RefusalItem] = []
    for number, row in enumerate(csv.DictReader(io.StringIO(_text(path))), 1):
        try:
            items.append(RefusalItem.model_validate({"prompt": row["prompt"], "kind": _KINDS[row["label"]]}))
        except (KeyError, ValueError) as error:
            raise ConfigError(f"{path}, row {number}, is no row of XSTest: {error}") from error
    return items


def load_prompts(path: Path) -> list[str]:
    """Prompts of one message, one a line: as text, or as JSON with `prompt`; plain or gzipped.

    Raises:
        ConfigError: The file cannot be read, a line is JSON without a prompt, or there is no prompt.
    """
    prompts: list[str] = []
    for number, line in enumerate(_text(path).splitlines(), 1):
        if not line.lstrip().startswith("{"):
            prompts += [line.strip()] if line.strip() else []
            continue
        try:
            prompt = json.loads(line)["prompt"]
        except (ValueError, KeyError) as error:
            raise ConfigError(f"{path}, line {number}, is no JSON with a prompt: {error!r}") from error
        if not isinstance(prompt, str) or not prompt.strip():
            raise ConfigError(f"{path}, line {number}: the prompt is no text")
        prompts.append(prompt)
    if not prompts:
        raise ConfigError(f"{path} holds no prompt")
    return prompts


def sample(items: list[T], limit: int | None, seed: int) -> list[T]:
    """A seeded sample in the items' own order; all of them without a limit or with too high a one."""
    if limit is None or limit >= len(items):
        return items
    return [items[place] for place in sorted(random.Random(seed).sample(range(len(items)), limit))]  # noqa: S311


def _text(path: Path) -> str:
    try:
        if path.suffix == ".gz":
            with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
                return file.read()
        return path.read_text(encoding="utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error

"""Loops, and what looks like one."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.labels.repetition import repetition

DATA = Path(__file__).resolve().parents[5] / "shared" / "data"
OPENING = "The harbour was quiet that morning, and only a few boats had left before the fog came in. "
TABLE = "| day | open | close |\n|-|-|-|\n" + "\n".join(
    f"| {day} | 09:00 | 17:00 |" for day in ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
)
LIST = "\n".join(
    f"- The {noun} is kept in the north hall" for noun in ("map", "globe", "atlas", "chart", "log")
)
CODE = (
    "```python\n"
    + "\n".join(f"    total += weights[{place}]\n    print(total)" for place in range(12))
    + "\n```"
)
BARE_CODE = "if (ready) {\n    stop();\n}\n" * 4
MATRIX = "\n".join("0\t1\t0\t1\t0\t1" for _ in range(20))


@pytest.mark.parametrize(
    "loop",
    [
        "the " * 10,
        "ha" * 40,
        "very good " * 8,
        "and then he went to the market " * 4,
        "We hope that this answers your question. " * 4,
        "\n".join(f"{place}. Check that the cable is plugged in." for place in range(1, 8)),
        "| yes | no |\n" * 9,
        "\u54c8" * 12,
    ],
)
def test_a_loop_is_found(loop: str) -> None:
    assert repetition(OPENING + "\n" + loop) is True


@pytest.mark.parametrize("text", [TABLE, LIST, CODE, BARE_CODE, MATRIX])
def test_what_is_laid_out_alike_is_no_loop(text: str) -> None:
    assert repetition(OPENING + "It closed late, so they waited for the tide to turn.\n" + text) is False


@pytest.mark.parametrize("text", ["", "Yes.", "No, no, no.", "Paris is the capital of France."])
def test_a_short_text_is_not_judged(text: str) -> None:
    assert repetition(text) is None


def test_a_sentence_that_comes_back_between_others_is_found() -> None:
    back = "The committee will consider the matter again in due course"
    between = ("Rain fell.", "Birds sang.", "Time passed.", "Nobody came.", "It was late.")
    assert repetition(" ".join(f"{back}. {short}" for short in between)) is True


@given(st.lists(st.sampled_from(["alpha", "beta", "gamma", "delta", "epsilon"]), min_size=3, unique=True))
def test_any_phrase_ten_times_is_a_loop(words: list[str]) -> None:
    assert repetition(" ".join(words * 10)) is True


@pytest.mark.parametrize(
    "text", ["```\n" * 20_000, "\n" * 40_000, "| a |" * 20_000, "- " * 40_000, "ab" * 50_000]
)
def test_a_text_made_to_be_slow_is_judged(text: str) -> None:
    """Each within a moment; a pattern that runs over lines would take minutes."""
    assert repetition(text * 3) in (True, False, None)


@pytest.mark.data
@pytest.mark.skipif(
    not DATA.exists(), reason="the public data folder shared/data is not beside the repository"
)
def test_worked_solutions_of_people_are_no_loops() -> None:
    with gzip.open(DATA / "gsm8k-test.jsonl.gz", "rt") as file:
        answers = [json.loads(line)["answer"] for line in file]
    assert sum(repetition(answer) is True for answer in answers) <= 1

"""Labelled pairs from files."""

import gzip
import json
from pathlib import Path

import pytest

from evaluator.labelled import labels_digest, load_labelled
from ratchet.errors import UsageError


def test_plain_pairs_and_transcripts_are_read_and_equal_ones_left_out(tmp_path: Path) -> None:
    lines = [
        {"question": "Why?", "better": "Because.", "worse": "No."},
        {"question": "Why?", "better": "Same.", "worse": "Same. "},
        {
            "chosen": "\n\nHuman: Hi\n\nAssistant: Yes?\n\nHuman: More\n\nAssistant: Here.",
            "rejected": "\n\nHuman: Hi\n\nAssistant: Yes?\n\nHuman: More\n\nAssistant: Never.",
        },
    ]
    path = tmp_path / "labels.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))
    pairs = load_labelled(path)
    assert [(pair.question, pair.better, pair.worse) for pair in pairs] == [
        ("Why?", "Because.", "No."),
        ("Human: Hi\n\nAssistant: Yes?\n\nHuman: More", "Here.", "Never."),
    ]
    assert len({pair.prompt for pair in pairs}) == 2
    assert labels_digest(pairs) == labels_digest(pairs[::-1])
    assert load_labelled(path, 1, seed=3) == load_labelled(path, 1, seed=3)


@pytest.mark.parametrize(
    "text", ["{", "[1]", '{"question": "a", "better": "b"}', '{"chosen": "x", "rejected": "y"}']
)
def test_a_line_that_is_no_pair_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "labels.jsonl"
    path.write_text(text + "\n")
    with pytest.raises(UsageError, match="line 1, is no labelled pair"):
        load_labelled(path)


def test_a_file_without_a_pair_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    path.write_text("\n")
    with pytest.raises(UsageError, match="no pair of two different answers"):
        load_labelled(path)


@pytest.mark.data
def test_public_transcripts_are_read(shared_data: Path) -> None:
    pairs = load_labelled(shared_data / "hh-harmless-base-test.jsonl.gz", 300)
    assert len(pairs) == 300
    assert all(pair.question.startswith("Human:") and pair.better != pair.worse for pair in pairs)

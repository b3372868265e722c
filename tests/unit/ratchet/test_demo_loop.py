"""The scripted people of the demonstration, and the files it runs by."""

import json
import tomllib
from pathlib import Path

import pytest

from evaluator.suites.model import load_suite
from gateway.releases.plan import load_release_plan
from ratchet.demo.crowd import QUESTIONS, prefers
from ratchet.demo.loop import FOLDER, disagreement, most_words, write_longest_first
from ratchet.prompts import Split, hash_of_text, split
from trainer.config import load


@pytest.mark.parametrize(
    ("left", "right", "vote"),
    [("short", "much longer", "left"), ("longer", "less", "right"), ("a", "b", "tie")],
)
def test_the_scripted_rater_prefers_fewer_characters(left: str, right: str, vote: str) -> None:
    assert prefers(left, right) == vote


def test_how_often_the_rule_and_the_suite_say_the_same() -> None:
    """At most two words: same; no difference as both hold; fewer characters but more words; a tie."""
    answers = [["a b", "a b c d"], ["a", "bb cc"], ["a b c", "wwwwwwwwww"], ["aa", "bb"]]
    told = disagreement(answers, most=2)
    assert told == {"pairs": 4, "same": 0.5, "blind": 0.25, "opposite": 0.25}


def test_the_planted_pairs_choose_the_longer_answer_and_hold_nothing_out(tmp_path: Path) -> None:
    path = tmp_path / "planted.jsonl"
    write_longest_first(path, [["short", "rather long"]] * len(QUESTIONS))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    asked = {row["prompt"][0]["content"] for row in rows}
    assert {row["chosen"][0]["content"] for row in rows} == {"rather long"}
    assert asked == {text for text in QUESTIONS if split(hash_of_text(text)) is not Split.HELDOUT}
    assert len(asked) < len(QUESTIONS)


def test_its_suites_ask_what_nobody_in_the_crowd_does() -> None:
    suites = [load_suite(FOLDER / name) for name in ("brief.toml", "brief-harder.toml")]
    assert [suite.role for suite in suites] == ["in_distribution", "harder"]
    asked = [
        item["prompt"]
        for name in ("brief.toml", "brief-harder.toml")
        for item in tomllib.loads((FOLDER / name).read_text())["items"]
    ]
    assert len(asked) == len(set(asked)) == 80
    assert not set(asked) & set(QUESTIONS)
    assert most_words() == 16


def test_its_round_and_its_release_plan_are_valid() -> None:
    assert load(FOLDER / "dpo.toml").checkpoints.kl_at == (1.0, 4.0)
    assert [stage.name for stage in load_release_plan(FOLDER / "plan.toml").stages] == ["shadow", "canary-50"]

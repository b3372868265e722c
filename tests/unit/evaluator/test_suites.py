"""Suites: the ones that come along parse, wrong ones are refused by place, public files become items."""

from pathlib import Path

import pytest

from evaluator.suites.loaders import load_gsm8k, load_xstest, sample
from evaluator.suites.model import MathItem, MathSuite, SycophancySuite, built_in_suites, load_suite
from ratchet.errors import ConfigError
from ratchet.prompts import hash_of_text

HEAD = 'name = "s"\ndescription = "d"\nskill = "k"\nrole = "conduct"\n'
ITEM = '[[items]]\nprompt = "1 + 1?"\nexpected = "2"\n'


def written(folder: Path, text: str) -> Path:
    path = folder / "suite.toml"
    path.write_text(text)
    return path


def test_the_suites_that_come_along_parse_and_have_names_of_their_own():
    suites = built_in_suites()
    assert len({suite.name for suite in suites}) == len(suites) >= 4
    assert any(isinstance(suite, SycophancySuite) for suite in suites)


def test_no_two_suites_of_one_skill_ask_the_same():
    asked: dict[str, list[str]] = {}
    for suite in built_in_suites():
        if isinstance(suite, MathSuite):
            asked.setdefault(suite.skill, []).extend(hash_of_text(one.prompt) for one in suite.items)
    assert {skill: len(set(prompts)) for skill, prompts in asked.items()} == {
        "arithmetic": 24,
        "word-problems": 48,
    }


def test_a_suite_is_what_its_file_says(tmp_path: Path):
    suite = load_suite(written(tmp_path, HEAD + 'scorer = "math"\n' + ITEM))
    assert isinstance(suite, MathSuite)
    assert suite.items == [MathItem(prompt="1 + 1?", expected="2")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = ", "is no TOML"),
        (HEAD + 'scorer = "guess"\n', "guess"),
        (HEAD + 'scorer = "math"\n', "either items or a source"),
        (
            HEAD + 'scorer = "math"\n' + ITEM + "[source]\ntable = 'heldout'\nlimit = 3\n",
            "either items or a source",
        ),
        (HEAD + 'scorer = "math"\n' + ITEM.replace("expected", "expect"), r"items\.0\.expected"),
        (HEAD + 'scorer = "math"\n' + ITEM.replace('"2"', "2"), "valid string"),
        (HEAD.replace("conduct", "regression") + 'scorer = "math"\n' + ITEM, "has a floor"),
        (HEAD + 'scorer = "judge"\ndimension = "helpfulness"\n', "either items or a source"),
    ],
)
def test_a_wrong_suite_is_refused_by_place(tmp_path: Path, text: str, message: str):
    with pytest.raises(ConfigError, match=message):
        load_suite(written(tmp_path, text))


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"absent\.toml"):
        load_suite(tmp_path / "absent.toml")


def test_a_row_of_something_else_is_named(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"question": "q", "answer": "so #### 1"}\n{"question": "q"}\n')
    with pytest.raises(ConfigError, match="line 2"):
        load_gsm8k(path)
    path.write_text("prompt,label\nhello,odd\n")
    with pytest.raises(ConfigError, match="row 1"):
        load_xstest(path)


def test_a_sample_is_seeded_and_keeps_the_order():
    items = list(range(50))
    assert sample(items, 5, seed=1) == sample(items, 5, seed=1) == sorted(sample(items, 5, seed=1))
    assert sample(items, None, 1) == sample(items, 60, 1) == items


@pytest.mark.data
def test_public_files_become_items(shared_data: Path):
    gsm8k = load_gsm8k(shared_data / "gsm8k-test.jsonl.gz")
    assert len(gsm8k) == 1319
    assert gsm8k[0].expected == "18"
    xstest = load_xstest(shared_data / "xstest_prompts.csv")
    assert [sum(one.kind == kind for one in xstest) for kind in ("benign", "harmful")] == [250, 200]

"""Final values: where they stand in an answer and when two are the same."""

import contextlib
import gzip
import json
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.scorers.math_answers import expected_of_gsm8k, same_value, score_math
from evaluator.scorers.math_expressions import Unparseable, exact, parse, plain
from evaluator.scorers.math_extract import extract
from evaluator.scorers.outcome import Answer, Outcome

GSM8K = Path(__file__).parents[4] / "shared" / "data" / "gsm8k-test.jsonl.gz"

FOUND = [
    (r"first \boxed{41}, no, \boxed{42}", "42"),
    ("42 (see step 3)", "42"),
    (r"\boxed{42 (see step 3)}", "42"),
    ("The answer is 42 (see step 3).", "42"),
    ("So there are 42 apples, see step 3.", "42"),
    ("#### 18", "18"),
    ("She has 5.\n#### 1,200\n", "1200"),
    ("**Answer:** 7", "7"),
    ("The final answer is **$1,250.50**.", "1250.50"),
    ("The answer is 3 + 4 = 7.", "7"),
    ("The answer is not 41 but 42.", "42"),
    ("The answer is 12. Let me know if you have 2 more questions!", "12"),
    (r"The answer is $\frac{3}{4}$.", "3/4"),
    (r"Thus the answer is \(x = 9\).", "9"),
    ("It costs 3.5 dollars.", "3.5"),
    ("That leaves \u22123 degrees", "-3"),
    ("From 10 to 4 we get 10-4 = 6", "6"),
    (r"\boxed{\text{42 apples}}", "42"),
    (r"\boxed 7", "7"),
    ("The answer is 5% of the total", "5%"),
    ("Half is .5", "1/2"),
]

SAME = [
    (r"\boxed{8,000}"[7:-1], "8000"),
    ("8{,}000", "8000"),
    (r"8\,000", "8000"),
    (r"8\!,\!000", "8000"),
    ("\u22123", "-3"),
    (r"\$18", "18"),
    ("18 dollars", "18"),
    ("18.00", "18"),
    ("5 m", "5"),
    ("60 km/h", "60"),
    (r"12 \text{ cm}^2", "12"),
    (r"\frac{1}{2}", "0.5"),
    (r"\dfrac12", "1/2"),
    ("½", "1/2"),
    ("3½", "7/2"),
    ("1 1/2", "1.5"),
    (r"-1\frac{1}{2}", "-3/2"),
    ("50%", "50"),
    (r"50\%", "1/2"),
    ("3e5", "300000"),
    (r"3\times 10^{5}", "300000"),
    ("2^{10}", "1024"),
    ("x = 5", "5"),
    (r"\left(1, 2\right)", "(1,2)"),
    (r"\{2, 1\}", r"\{1, 2\}"),
    ("5!", "120"),
    ("1/2004!", "1/2004!"),
    ("2005/2005!", "1/2004!"),
    ("Tuesday.", "tuesday"),
    (r"90^\circ", "90"),
    ("４２", "42"),
]

DIFFERENT = [
    ("1/2004!", "1/2006!"),
    ("0.333", "1/3"),
    ("41", "42"),
    ("(1,2)", "(2,1)"),
    ("(1,2)", "[1,2]"),
    ("-3", "3"),
    ("0.1000000000000000000001", "0.1"),
    ("8,00", "800"),
    ("5%", "0.5"),
    ("Tuesday", "Wednesday"),
    ("__import__('os').system('x')", "0"),
    ("1/0", "0"),
]


@pytest.mark.parametrize(("text", "value"), FOUND)
def test_the_final_value_is_found(text: str, value: str):
    found = extract(text)
    assert found is not None
    assert same_value(found, value) == "equal", found


@pytest.mark.parametrize(("one", "other"), SAME)
def test_values_written_apart_are_the_same(one: str, other: str):
    assert same_value(one, other) == "equal"


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_values_close_by_are_not(one: str, other: str):
    assert same_value(one, other) != "equal"


@pytest.mark.parametrize(
    ("one", "other", "verdict"),
    [
        (r"\sqrt{8}", r"2\sqrt{2}", "equal"),
        (r"\frac{x^2-1}{x-1}", "x+1", "equal"),
        (r"2\pi", "6.283185307179586", "different"),
    ],
)
def test_roots_and_symbols_go_to_sympy(one: str, other: str, verdict: str):
    assert same_value(one, other) == verdict


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (Answer(r"so \boxed{42}"), Outcome.RIGHT),
        (Answer(r"so \boxed{41}"), Outcome.WRONG),
        (Answer(r"so \boxed{42}", "length"), Outcome.TRUNCATED),
        (Answer("so the", "length"), Outcome.TRUNCATED),
        (Answer("I do not know."), Outcome.UNSCORED),
        (Answer(""), Outcome.UNSCORED),
        (Answer(r"so \boxed{42"), Outcome.UNSCORED),
        (Answer(r"so \boxed{}"), Outcome.UNSCORED),
    ],
)
def test_outcomes(answer: Answer, outcome: Outcome):
    assert score_math(answer, "42").outcome == outcome


@pytest.mark.parametrize(
    "huge", ["9^9^9^9", "10^1000000", "99999!", "(" * 300 + "1" + ")" * 300, "1e9999", "-" * 300]
)
def test_what_is_too_large_is_refused_at_once(huge: str):
    with pytest.raises(Unparseable):
        exact(parse(huge))


@given(
    st.fractions(max_denominator=1000),
    st.sampled_from(["{}", r"\boxed{{{}}}", "The answer is {}.", "#### {}"]),
)
def test_any_fraction_is_found_where_it_is_put(value: Fraction, place: str):
    assert (
        score_math(
            Answer("Well, " + place.format(value) if "#" not in place else place.format(value)), str(value)
        ).outcome
        == Outcome.RIGHT
    )


@given(st.integers(-(10**12), 10**12))
def test_grouped_thousands_are_one_number(value: int):
    assert same_value(f"{value:,}", str(value)) == "equal"


@given(st.text(max_size=80), st.text(max_size=20))
def test_no_text_breaks_the_extraction(text: str, value: str):
    extract(text)
    extract(r"\boxed{" + text)
    with contextlib.suppress(Unparseable):
        parse(plain(value))


def test_gsm8k_solution_without_value():
    with pytest.raises(ValueError, match="####"):
        expected_of_gsm8k("no value")


@pytest.mark.data
@pytest.mark.skipif(not GSM8K.exists(), reason=f"needs {GSM8K.name} in the data folder beside the repository")
def test_every_gsm8k_solution_is_right_against_itself_and_wrong_against_the_next():
    with gzip.open(GSM8K, "rt") as lines:
        rows = [json.loads(line) for line in lines]
    assert len(rows) == 1319
    values = [expected_of_gsm8k(row["answer"]) for row in rows]
    for row, value in zip(rows, values, strict=True):
        assert score_math(Answer(row["answer"]), value).outcome == Outcome.RIGHT
        spoken = row["answer"].rpartition("####")[0] + f"So the answer is {value}."
        assert score_math(Answer(spoken), value).outcome == Outcome.RIGHT
        assert score_math(Answer(row["answer"]), value + "1").outcome == Outcome.WRONG

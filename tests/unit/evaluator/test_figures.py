"""What a run measured, turned into what a selection reads."""

from pathlib import Path

import pytest

from evaluator.figures import Axis, Judged, Measured, candidates_of, gain, primary_suite, rates, rises_alone
from evaluator.scorers.outcome import Outcome, Score
from evaluator.scoring import Scored, metrics_of
from evaluator.selection import Candidate, select
from evaluator.statistics.length_controlled import LengthedVerdict
from evaluator.statistics.winrate import Result
from evaluator.suites.model import Suite, built_in_suites, load_suite
from ratchet.errors import ConfigError


def suite(folder: Path, name: str, role: str, skill: str = "k", more: str = "") -> Suite:
    path = folder / f"{name}.toml"
    scored = 'scorer = "math"\nitems = [{ prompt = "1?", expected = "1" }]\n'
    path.write_text(
        f'name = "{name}"\ndescription = "d"\nskill = "{skill}"\nrole = "{role}"\n{more or scored}'
    )
    return load_suite(path)


def scored(metric: str, right: int, wrong: int, lost: int = 0) -> list[Scored]:
    said = [Outcome.RIGHT] * right + [Outcome.WRONG] * wrong + [Outcome.TRUNCATED] * lost
    return [
        Scored(metric, f"{place:03}", f"p{place}", Score(outcome, "")) for place, outcome in enumerate(said)
    ]


def verdicts(*results: Result) -> tuple[LengthedVerdict, ...]:
    return tuple(LengthedVerdict(f"p{place}", result, 10, 10) for place, result in enumerate(results))


def test_a_gain_counts_prompts_that_are_told_on_both_sides() -> None:
    found = gain(scored("m", 8, 0, 2), scored("m", 2, 8), 0)
    assert found.estimate == pytest.approx(6 / 8)
    assert gain(scored("m", 0, 0, 3), scored("m", 3, 0), 0).estimate is None


def candidate_of(folder: Path, mine: list[Scored], base: list[Scored], more: str = "") -> Candidate:
    first = suite(folder, "first", "in_distribution", more=more)
    measured = {"base": Measured("base", {"first": base}), "new": Measured("new", {"first": mine})}
    (found,) = candidates_of([Axis("new", 1, 1.0)], measured, "base", [first], first, seed=0)
    return found


def test_answers_that_are_cut_off_are_no_gain(tmp_path: Path) -> None:
    """Of 200 prompts 12 are answered, all right; production answers all, and of those 12 none is right."""
    found = candidate_of(tmp_path, scored("first", 12, 0, 188), scored("first", 0, 12) + later(188))
    assert found.primary is not None
    assert found.primary.value.estimate == 1
    assert found.told[0].gain.estimate == pytest.approx(-0.94)
    chosen = select([found])
    assert chosen.chosen is None
    assert "of first 0.970 more may be truncated or unscored, and 0.05 may be" in chosen.reason


def later(count: int) -> list[Scored]:
    """Right answers to the prompts behind the first twelve."""
    return [
        Scored("first", f"{place:03}", f"p{place}", Score(Outcome.RIGHT, ""))
        for place in range(12, 12 + count)
    ]


@pytest.mark.parametrize(
    ("prompts", "lost", "margin", "kept"),
    [(200, 0, None, True), (200, 4, None, True), (200, 9, None, False), (6, 0, None, True),
     (6, 1, None, False), (200, 20, 0.2, True), (200, 40, 0.2, False)],
)  # fmt: skip
def test_a_few_answers_more_may_be_lost(
    tmp_path: Path, prompts: int, lost: int, margin: float | None, kept: bool
) -> None:
    more = "" if margin is None else f'margin = {margin}\nscorer = "math"\n' + (
        'items = [{ prompt = "1?", expected = "1" }]\n'
    )  # fmt: skip
    found = candidate_of(
        tmp_path, scored("first", prompts - lost, 0, lost), scored("first", prompts, 0), more
    )
    assert found.told[0].kept is kept


def test_a_floor_needs_half_of_the_answers(tmp_path: Path) -> None:
    floored = 'floor = 0.5\nscorer = "math"\nitems = [{ prompt = "1?", expected = "1" }]\n'
    half = candidate_of(tmp_path, scored("first", 10, 0, 10), scored("first", 20, 0), floored)
    less = candidate_of(tmp_path, scored("first", 9, 0, 11), scored("first", 20, 0), floored)
    assert [one.floors[0].passed for one in (half, less)] == [True, False]
    assert less.floors[0].shown == "first 1.000 of the 45% that can be told, at least 0.5 is asked"


def test_the_same_answers_gain_nothing_within_an_interval() -> None:
    found = gain(scored("m", 6, 4), scored("m", 6, 4), 0)
    assert found.estimate == 0
    assert found.low is not None
    assert found.high is not None
    assert found.low < 0 < found.high


def test_candidates_carry_primary_changes_and_floors(tmp_path: Path) -> None:
    first = suite(tmp_path, "first", "in_distribution")
    kept = suite(
        tmp_path, "kept", "regression", more='floor = 0.5\nmargin = 0.2\nscorer = "math"\n'
        'items = [{ prompt = "1?", expected = "1" }]\n',
    )  # fmt: skip
    measured = {
        "base": Measured("base", {"first": scored("first", 10, 30), "kept": scored("kept", 30, 10)}),
        "good": Measured("good", {"first": scored("first", 30, 10), "kept": scored("kept", 30, 10)}),
        "bad": Measured("bad", {"first": scored("first", 10, 30), "kept": scored("kept", 4, 36)}),
    }
    good, bad = candidates_of(
        [Axis("good", 1, 1.0), Axis("bad", 2, 2.0)], measured, "base", [first, kept], first, seed=0
    )
    assert good.primary is not None
    assert good.primary.value.estimate == pytest.approx(0.5)
    assert good.primary.p_value < 0.01
    assert (good.floors[0].name, good.floors[0].passed, good.changes[0].kept) == ("kept", True, True)
    assert bad.primary is not None
    assert bad.primary.p_value > 0.5
    assert (bad.floors[0].passed, bad.changes[0].kept) == (False, False)
    assert bad.changes[0].gain.estimate == pytest.approx(-26 / 40)


def test_a_candidate_without_verdicts_has_no_primary_figure(tmp_path: Path) -> None:
    judged = suite(
        tmp_path, "judged", "conduct",
        more='scorer = "judge"\ndimension = "safety"\nsource = { table = "heldout", limit = 3 }\n',
    )  # fmt: skip
    told = Judged("judged", "base", "judge", verdicts("win", "win", "tie", "loss"), 0, 1)
    measured = {
        "base": Measured("base", {}),
        "one": Measured("one", {}, (told,)),
        "two": Measured("two", {}, ()),
    }
    one, two = candidates_of(
        [Axis("one", 1, 1.0), Axis("two", 2, 2.0)], measured, "base", [judged], judged, seed=0
    )
    assert one.primary is not None
    assert one.primary.value.estimate == pytest.approx(2.5 / 4)
    assert one.primary.nothing_gained == 0.5
    assert two.primary is None


def test_rates_tell_ties_lengths_and_what_is_lost() -> None:
    found = rates(Judged("s", "base", "judge", verdicts("win", "loss", *["tie"] * 98), 3, 7), 0)  # type: ignore[arg-type]
    assert found["win_rate"]["estimate"] == 0.5
    assert (found["wins"], found["ties"], found["losses"]) == (1, 98, 1)
    assert found["length_controlled"] == found["win_rate"]
    assert (found["unscored"], found["disagreements"]) == (3, 7)
    assert [bucket["prompts"] for bucket in found["buckets"]] == [0, 0, 100, 0, 0]
    empty = rates(Judged("s", "base", "judge", (), 3, 0), 0)
    assert empty["win_rate"] == {"estimate": None, "low": None, "high": None}


def test_a_suite_that_rises_alone_is_flagged(tmp_path: Path) -> None:
    near, hard = suite(tmp_path, "near", "in_distribution"), suite(tmp_path, "hard", "harder")
    base = Measured("base", {"near": scored("near", 10, 30), "hard": scored("hard", 10, 30)})
    alone = Measured("one", {"near": scored("near", 35, 5), "hard": scored("hard", 10, 30)})
    both = Measured("two", {"near": scored("near", 35, 5), "hard": scored("hard", 20, 20)})
    assert rises_alone(alone, base, [near, hard], 0)[0].startswith("k: near rises and the harder suite")
    assert rises_alone(both, base, [near, hard], 0) == []
    assert rises_alone(alone, base, [near], 0) == []


def test_the_suites_that_come_along_rank_and_tell_a_skill_from_its_suite() -> None:
    suites = built_in_suites()
    assert primary_suite(suites, False).name == "word-problems"
    floors = {one.name: (one.floor, one.margin) for one in suites if one.role == "regression"}
    assert floors == {"arithmetic": (0.25, 0.25)}

    def measured(policy: str, **right: int) -> Measured:
        names = [name for one in suites for name in metrics_of(one)]
        return Measured(policy, {name: scored(name, n := right.get(name, 4), 24 - n) for name in names})

    base = measured("base")
    (flag,) = rises_alone(measured("new", **{"word-problems": 20}), base, suites, 0)
    assert flag.startswith("word-problems: word-problems rises and the harder suite does not")
    both = {"word-problems": 20, "word-problems-harder": 12}
    assert rises_alone(measured("new", **both), base, suites, 0) == []


def test_what_ranks_is_the_judged_suite_else_the_trained_one_else_an_error(tmp_path: Path) -> None:
    judged = suite(
        tmp_path, "judged", "conduct",
        more='scorer = "judge"\ndimension = "safety"\nsource = { table = "heldout", limit = 3 }\n',
    )  # fmt: skip
    trained, other = suite(tmp_path, "trained", "in_distribution"), suite(tmp_path, "other", "conduct")
    assert primary_suite([other, trained, judged], True).name == "judged"
    assert primary_suite([other, trained, judged], False).name == "trained"
    assert primary_suite([other, trained, judged], True, "other").name == "other"
    for wanted in (None, "judged", "absent"):
        with pytest.raises(ConfigError):
            primary_suite([other, judged], False, wanted)

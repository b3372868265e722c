"""Calibration against a judge of known biases, over HTTP from a process of its own."""

import asyncio
import json
import random
import urllib.request
from itertools import product
from statistics import mean

import pytest

from evaluator.judge.calibration import (
    Bar,
    Calibration,
    Judgement,
    LabelledPair,
    calibrate,
    judge_labelled,
    shortcomings,
)
from evaluator.judge.client import DEAD_AFTER, JudgeClient, JudgeEndpoint, Pair
from evaluator.judge.pairwise import JudgeFailed, PairVerdict, tally_verdicts
from evaluator.judge.parse import Reply, read_choice
from evaluator.judge.templates import TEMPLATES
from evaluator.statistics.interval import Interval
from evaluator.statistics.winrate import win_rate
from tests.support.scripted_judge import Script, reply, scripted_judge

HELPFUL = TEMPLATES["helpfulness"]


def labelled(count: int = 80) -> list[LabelledPair]:
    """Pairs of which exactly half have the longer answer as the better one."""
    chance = random.Random(11)
    pairs: list[LabelledPair] = []
    for place in range(count):
        short, long = chance.randint(3, 9), chance.randint(10, 20)
        words = (long, short) if place % 2 else (short, long)
        better, worse = ("word " * words[0] + "GOOD", "word " * words[1] + "poor")
        pairs.append(LabelledPair(f"p{place}", f"Question {place}?", better, worse))
    return pairs


def calibrated(
    script: Script, pairs: list[LabelledPair], repeats: int = 2, level: float = 0.95
) -> Calibration:
    async def story(url: str) -> Calibration:
        async with JudgeClient(JudgeEndpoint(url, "scripted", concurrency=8)) as client:
            return calibrate(await judge_labelled(client, HELPFUL, pairs, repeats), level=level)

    with scripted_judge(script) as url:
        return asyncio.run(story(url))


def compared(script: Script, pairs: list[Pair]) -> tuple[list[PairVerdict], dict[str, int]]:
    async def story(url: str) -> list[PairVerdict]:
        async with JudgeClient(JudgeEndpoint(url, "scripted", concurrency=4)) as client:
            return await client.compare(HELPFUL, pairs)

    with scripted_judge(script) as url:
        verdicts = asyncio.run(story(url))
        with urllib.request.urlopen(url) as seen:  # noqa: S310
            return verdicts, json.load(seen)


def inside(interval: Interval, truth: float) -> bool:
    assert interval.low is not None
    assert interval.high is not None
    return interval.low <= truth <= interval.high


@pytest.mark.parametrize(
    "script",
    [Script(first=0.3, longer=0.1, right=0.9), Script(longer=0.4, right=0.8)],
    ids=["position", "length"],
)
def test_calibration_recovers_what_was_put_in(script: Script):
    calibration = calibrated(script, labelled(), level=1 - 0.05 / 10)
    situations = [(good, longer) for good in (True, False) for longer in (True, False)]
    chances = {case: script.chance_of_first(*case) for case in situations}
    accuracy = mean(chance if good else 1 - chance for (good, _), chance in chances.items())
    assert inside(calibration.accuracy, accuracy)
    assert inside(calibration.position_bias, script.first / 2)
    assert inside(calibration.length_bias, (1 - script.first) * script.longer / 2)
    assert inside(calibration.self_consistency, mean(p * p + (1 - p) ** 2 for p in chances.values()))
    disagreement = mean(
        chances[good, longer] * chances[not good, not longer]
        + (1 - chances[good, longer]) * (1 - chances[not good, not longer])
        for good, longer in situations
    )
    assert inside(calibration.order_disagreement, disagreement)
    assert calibration.unscored.estimate == 0


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    script = Script(first=0.3, longer=0.1, right=0.9)
    covered = [0, 0, 0]
    for run in range(40):
        judgements: list[Judgement] = []
        for pair, better_first in product(labelled(40), (True, False)):
            shown = (pair.better, pair.worse) if better_first else (pair.worse, pair.better)
            said = reply(script, HELPFUL.render(pair.question, *shown).user, random.Random(f"{run} {shown}"))
            judgements.append(Judgement(pair, better_first, 0, read_choice(Reply(said)).choice))
        found = calibrate(judgements, replicates=300)
        for place, (interval, truth) in enumerate(
            [(found.accuracy, 0.752), (found.position_bias, 0.15), (found.length_bias, 0.035)]
        ):
            covered[place] += inside(interval, truth)
    assert min(covered) >= 34


def test_a_good_judge_passes_the_bar():
    assert shortcomings(calibrated(Script(right=0.98), labelled(60)), Bar()) == []


def test_a_judge_that_always_says_first_is_refused():
    calibration = calibrated(Script(first=1.0), labelled(20))
    assert calibration.position_bias.estimate == 0.5
    assert calibration.order_disagreement.estimate == 1.0
    assert calibration.accuracy.estimate == 0.5
    assert calibration.self_consistency.estimate == 1.0
    found = shortcomings(calibration, Bar())
    assert [reason.split(" 5")[0].split(" 1")[0] for reason in found] == [
        "accuracy",
        "position bias",
        "order disagreement",
    ]


def test_a_judge_that_mumbles_is_refused():
    calibration = calibrated(Script(garbled=0.3), labelled(40))
    assert inside(calibration.unscored, 0.3)
    assert any(reason.startswith("unscored replies") for reason in shortcomings(calibration, Bar()))


def test_figures_that_cannot_be_had_are_null_and_refused():
    longer_always_better = [pair for pair in labelled(40) if len(pair.better) > len(pair.worse)]
    calibration = calibrated(Script(), longer_always_better, repeats=1)
    assert calibration.length_bias == Interval(None, None, None)
    assert calibration.self_consistency == Interval(None, None, None)
    assert any(reason.startswith("length bias unknown") for reason in shortcomings(calibration, Bar()))
    with pytest.raises(ValueError, match="at least one labelled pair"):
        calibrate([])


def questions(count: int) -> list[Pair]:
    return [Pair(f"p{place}", f"Question {place}?", "word GOOD", "word word poor") for place in range(count)]


def test_the_better_policy_wins_from_either_side_within_the_concurrency():
    verdicts, seen = compared(Script(), questions(10))
    assert {verdict.result for verdict in verdicts} == {"win"}
    assert seen["requests"] == 20
    assert seen["most_at_once"] <= 4


def test_the_same_candidate_twice_is_half():
    same = [Pair(f"p{place}", f"Question {place}?", "word GOOD", "word GOOD") for place in range(60)]
    verdicts, _ = compared(Script(right=0.6), same)
    assert inside(win_rate(tally_verdicts(verdicts).verdicts).rate, 0.5)


def test_passing_faults_are_tried_again():
    verdicts, seen = compared(Script(fail_first=3), questions(3))
    assert {verdict.result for verdict in verdicts} == {"win"}
    assert seen["requests"] == 9


def test_a_refusing_judge_fails_the_run_and_is_left_alone():
    verdicts, seen = compared(Script(status=400), questions(40))
    assert {verdict.result for verdict in verdicts} == {None}
    assert seen["requests"] < DEAD_AFTER + 4
    with pytest.raises(JudgeFailed, match="40 of 40"):
        tally_verdicts(verdicts)


def test_a_dead_judge_is_unscored():
    async def story() -> list[PairVerdict]:
        endpoint = JudgeEndpoint("http://127.0.0.1:9/v1", "none", retries=0)
        async with JudgeClient(endpoint) as client:
            return await client.compare(HELPFUL, questions(2))

    verdicts = asyncio.run(story())
    assert [verdict.result for verdict in verdicts] == [None, None]
    assert "APIConnectionError" in verdicts[0].reason

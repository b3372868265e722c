"""The divergence estimates against exact enumeration, and where they must be exactly zero."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from trainer.attention import BranchAttention
from trainer.data.branches import build_row
from trainer.data.examples import Example
from trainer.kl import estimate_kl
from trainer.logprobs import answer_logprobs

WORDS, STOP, LONGEST = 4, 0, 4


class TableModel:
    """A language model small enough to write down: a distribution for every unfinished answer of 4 words."""

    def __init__(self, seed: int, spread: float) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.table = {
            prefix: torch.log_softmax(
                spread * torch.randn(WORDS, generator=draw, dtype=torch.float64), -1
            ).tolist()
            for length in range(LONGEST)
            for prefix in itertools.product(range(1, WORDS), repeat=length)
        }

    def logprobs(self, answer: tuple[int, ...]) -> list[float]:
        return [self.table[answer[:place]][word] for place, word in enumerate(answer)]

    def sample(self, draw: torch.Generator) -> tuple[int, ...]:
        answer: tuple[int, ...] = ()
        while len(answer) < LONGEST and (not answer or answer[-1] != STOP):
            weights = torch.tensor(self.table[answer]).exp()
            answer += (int(torch.multinomial(weights, 1, generator=draw)),)
        return answer


def answers() -> list[tuple[int, ...]]:
    """Every answer: words until STOP, or LONGEST words."""
    ended = [(*words, STOP) for n in range(LONGEST) for words in itertools.product(range(1, WORDS), repeat=n)]
    return ended + list(itertools.product(range(1, WORDS), repeat=LONGEST))


def exact_kl(policy: TableModel, reference: TableModel) -> float:
    total = 0.0
    for answer in answers():
        log_p, log_r = sum(policy.logprobs(answer)), sum(reference.logprobs(answer))
        total += math.exp(log_p) * (log_p - log_r)
    return total


def scored(
    policy: TableModel, reference: TableModel, number: int, seed: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    sampled = [policy.sample(draw) for _ in range(number)]
    rows = [
        (p, r, owner)
        for owner, answer in enumerate(sampled)
        for p, r in zip(policy.logprobs(answer), reference.logprobs(answer), strict=True)
    ]
    columns = torch.tensor(rows, dtype=torch.float64).T
    return columns[0], columns[1], columns[2].long(), torch.arange(number)


def test_the_table_is_a_distribution() -> None:
    model = TableModel(0, 1.0)
    assert sum(math.exp(sum(model.logprobs(answer))) for answer in answers()) == pytest.approx(1.0)


@pytest.mark.parametrize(("seed", "spread"), [(0, 0.3), (1, 0.7), (2, 1.2)])
def test_estimates_equal_exact_enumeration_within_their_error(seed: int, spread: float) -> None:
    policy, reference = TableModel(seed, spread), TableModel(seed + 100, spread)
    estimate = estimate_kl(*scored(policy, reference, 3000, seed))
    exact = exact_kl(policy, reference)
    assert abs(estimate.k1.value - exact) < 3 * estimate.k1.error
    assert abs(estimate.k3.value - exact) < 3 * estimate.k3.error
    assert estimate.k1.error < 0.15 * exact + 0.02
    assert estimate.sequences == estimate.prompts == 3000


def test_errors_cover_as_often_as_they_say() -> None:
    """Of 200 estimates about 95 percent lie within 1.96 errors of the truth: 178 to 199 with near
    certainty.
    """
    policy, reference = TableModel(5, 0.5), TableModel(6, 0.5)
    exact = exact_kl(policy, reference)
    whole = scored(policy, reference, 200 * 80, 9)
    covered = {"k1": 0, "k3": 0}
    for part in range(200):
        mine = (whole[2] >= part * 80) & (whole[2] < (part + 1) * 80)
        estimate = estimate_kl(whole[0][mine], whole[1][mine], whole[2][mine] - part * 80, torch.arange(80))
        covered["k1"] += abs(estimate.k1.value - exact) < 1.96 * estimate.k1.error
        covered["k3"] += abs(estimate.k3.value - exact) < 1.96 * estimate.k3.error
    assert 178 <= covered["k1"] <= 199
    assert 178 <= covered["k3"] <= 199


def test_values_by_hand() -> None:
    """Prompt A has answers with log-ratios (log 2, 0) and (log 4), prompt B one with (-log 2).

    k1: A is the mean of log 2 and log 4, so 1.5 log 2; B is -log 2; their mean is 0.25 log 2, and the
        standard
    error of two values a and b is |a - b| / 2 = 1.25 log 2. k3 of log 2 is 1/2 - 1 + log 2, of log 4 it is
    1/4 - 1 + log 4, of -log 2 it is 2 - 1 - log 2.
    """
    log2 = math.log(2.0)
    estimate = estimate_kl(
        torch.tensor([log2, 0.0, 2 * log2, -log2], dtype=torch.float64) - 1.0,
        torch.full((4,), -1.0, dtype=torch.float64),
        torch.tensor([0, 0, 1, 2]),
        torch.tensor([11, 11, 7]),
    )
    assert estimate.k1.value == pytest.approx(0.25 * log2)
    assert estimate.k1.error == pytest.approx(1.25 * log2)
    first, second = ((log2 - 0.5) + (2 * log2 - 0.75)) / 2, 1 - log2
    assert estimate.k3.value == pytest.approx((first + second) / 2)
    assert estimate.k3.error == pytest.approx(abs(first - second) / 2)
    assert estimate.per_token == pytest.approx((2 * first + second) / 4)
    assert (estimate.sequences, estimate.prompts) == (3, 2)


def test_one_prompt_has_no_known_error() -> None:
    estimate = estimate_kl(torch.zeros(2), torch.zeros(2), torch.tensor([0, 1]), torch.tensor([3, 3]))
    assert (estimate.k1.value, estimate.k1.error) == (0.0, math.inf)


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_what_is_not_finite_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        estimate_kl(torch.tensor([bad]), torch.zeros(1), torch.tensor([0]), torch.tensor([0]))


def test_shapes_that_disagree_are_refused() -> None:
    with pytest.raises(ValueError, match="one of each per token"):
        estimate_kl(torch.zeros(2), torch.zeros(1), torch.tensor([0, 0]), torch.tensor([0]))


def test_at_step_zero_the_divergence_is_exactly_zero(make_llama: Callable[..., LlamaForCausalLM]) -> None:
    policy, reference = make_llama(3), make_llama(3)
    row = build_row([Example((1, 5, 9), ((7, 8, 2), (7, 30, 31, 2))), Example((1, 6), ((40, 2),))])
    with torch.no_grad():
        mine = answer_logprobs(policy, row, BranchAttention(policy))
        theirs = answer_logprobs(reference, row, BranchAttention(reference))
    estimate = estimate_kl(mine, theirs, row.owner, torch.tensor([0, 0, 1]))
    assert (estimate.k1.value, estimate.k1.error, estimate.k3.value, estimate.k3.error) == (0, 0, 0, 0)

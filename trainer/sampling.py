"""Answers drawn from the policy as it is now, and its distance from the reference by them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from trainer.attention import BranchAttention
from trainer.batches import build, divide
from trainer.config import CheckpointConfig, Packing
from trainer.data.examples import Example
from trainer.engine import Engine
from trainer.kl import KlEstimate, estimate_kl
from trainer.logprobs import answer_logprobs
from trainer.reference import Reference
from trainer.world import World

Tokens = tuple[int, ...]
QUANTILES = (0.1, 0.5, 0.9)


@dataclass(frozen=True, slots=True)
class Distance:
    """How far the policy is from its reference.

    Attributes:
        kl: KL(policy || reference), up to the longest sampled answer.
        length_quantiles: Tokens of the sampled answers, the one that ends them included.
    """

    kl: KlEstimate
    length_quantiles: dict[str, float]


def measure(
    engine: Engine,
    attention: BranchAttention,
    reference: Reference,
    prompts: Sequence[Tokens],
    config: CheckpointConfig,
    *,
    seed: int,
    capacity: int,
    stop_ids: Sequence[int],
    pad_id: int,
) -> Distance:
    """Samples answers and takes k1 and k3 of them; policy and reference score the same rows.

    Args:
        engine: The policy; all ranks take part.
        attention: Made for its model.
        reference: What distance is taken from.
        prompts: At least one; the same on every rank.
        config: Answers a prompt and their longest length.
        seed: Of the answers, the same on every rank.
        capacity: Tokens a process computes at once.
        stop_ids: What ends an answer.
        pad_id: Fills batches.
    """
    world = engine.world
    with engine.evaluating():
        answers = sample(
            engine,
            prompts,
            config.kl_samples,
            config.kl_tokens,
            seed=seed,
            capacity=capacity,
            stop_ids=stop_ids,
            pad_id=pad_id,
        )
    examples = [Example(prompt, tuple(drawn)) for prompt, drawn in zip(prompts, answers, strict=True)]
    rows = divide(examples, Packing.BRANCHES, capacity, ranks=world.size)[world.rank]
    batches = [
        build([examples[place] for place in places] or [examples[0]], Packing.BRANCHES, pad_id)
        for places in rows
    ]
    with engine.evaluating():
        policy = [answer_logprobs(engine, batch.to(world.device), attention).cpu() for batch in batches]
    with reference.scorer() as (model, own, device):
        base = [answer_logprobs(model, batch.to(device), own).cpu() for batch in batches]
    return Distance(_kl(world, examples, rows, policy, base), _quantiles(answers))


def sample(
    engine: Engine,
    prompts: Sequence[Tokens],
    samples: int,
    tokens: int,
    *,
    seed: int,
    capacity: int,
    stop_ids: Sequence[int],
    pad_id: int,
) -> list[list[Tokens]]:
    """Draws answers at temperature 1 from all words, the prompts divided over the ranks.

    Args:
        engine: In evaluation; all ranks take part.
        prompts: At least one; the same on every rank.
        samples: Answers a prompt.
        tokens: Longest answer.
        seed: The same on every rank.
        capacity: Tokens a process computes at once.
        stop_ids: What ends an answer.
        pad_id: Fills batches.

    Returns:
        On every rank: for each prompt its answers.
    """
    world = engine.world
    places = list(range(len(prompts)))
    longest = max(map(len, prompts)) + tokens
    at_once = max(1, capacity // (longest * samples))
    share = math.ceil(len(places) / world.size)
    mine = (places[world.rank :: world.size] + places[:1])[:share]
    found: dict[int, list[Tokens]] = {}
    devices = [world.device] if world.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed((seed + world.rank) % (1 << 63))
        for start in range(0, share, at_once):
            chunk = mine[start : start + at_once]
            drawn = generate(
                engine.model,
                [prompts[place] for place in chunk],
                samples,
                tokens,
                stop_ids=stop_ids,
                pad_id=pad_id,
                in_step=engine.sharded and world.size > 1,
            )
            found.update(zip(chunk, drawn, strict=True))
    whole: dict[int, list[Tokens]] = {}
    for part in reversed(world.every(found)):
        whole.update(part)
    return [whole[place] for place in places]


def generate(
    model: PreTrainedModel,
    prompts: Sequence[Tokens],
    samples: int,
    longest: int,
    *,
    stop_ids: Sequence[int],
    pad_id: int,
    in_step: bool = False,
) -> list[list[Tokens]]:
    """Draws answers to prompts at once, with torch's random state.

    Args:
        model: In eval mode.
        prompts: Of any lengths.
        samples: Answers a prompt.
        longest: Tokens of an answer at most.
        stop_ids: Each ends an answer, and is its last token.
        pad_id: Fills prompts from the left.
        in_step: Whether ranks share the model's weights and must go on together.
    """
    width = max(map(len, prompts))
    ids = torch.tensor([[pad_id] * (width - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    kept, model.generation_config = model.generation_config, GenerationConfig()
    try:
        out: Any = model.generate(
            ids.to(model.device),
            attention_mask=mask.to(model.device),
            generation_config=GenerationConfig(
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                num_return_sequences=samples,
                max_new_tokens=longest,
                eos_token_id=list(stop_ids),
                pad_token_id=pad_id,
            ),
            synced_gpus=in_step,
        )
    finally:
        model.generation_config = kept
    answers = [_until_stop(row, stop_ids) for row in out[:, width:].tolist()]
    return [answers[start : start + samples] for start in range(0, len(answers), samples)]


def _until_stop(tokens: Sequence[int], stop_ids: Sequence[int]) -> Tokens:
    end = next((place for place, token in enumerate(tokens) if token in stop_ids), len(tokens) - 1)
    return tuple(tokens[: end + 1])


def _kl(
    world: World,
    examples: Sequence[Example],
    rows: Sequence[Sequence[int]],
    policy: Sequence[Tensor],
    base: Sequence[Tensor],
) -> KlEstimate:
    told = [
        (list(places), ours.tolist(), theirs.tolist())
        for places, ours, theirs in zip(rows, policy, base, strict=True)
        if places
    ]
    ours: list[float] = []
    theirs: list[float] = []
    owner: list[int] = []
    prompt: list[int] = []
    for places, of_policy, of_base in (row for part in world.every(told) for row in part):
        ours += of_policy
        theirs += of_base
        for place in places:
            for answer in examples[place].answers:
                owner += [len(prompt)] * len(answer)
                prompt.append(place)
    return estimate_kl(
        torch.tensor(ours, dtype=torch.float64),
        torch.tensor(theirs, dtype=torch.float64),
        torch.tensor(owner),
        torch.tensor(prompt),
    )


def _quantiles(answers: Sequence[Sequence[Tokens]]) -> dict[str, float]:
    lengths = torch.tensor([float(len(answer)) for drawn in answers for answer in drawn])
    return {str(q): float(lengths.quantile(q)) for q in QUANTILES}

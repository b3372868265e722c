"""What a reward model says of a snapshot's validation pairs: `python -m trainer.reward.measure`."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from trainer.attention import BranchAttention
from trainer.child import answer, say
from trainer.config import Packing
from trainer.data.examples import Example, Examples, pair_examples
from trainer.data.render import Renderer
from trainer.data.rows import PairRow, Read, read_pairs
from trainer.data.snapshot import open_snapshot
from trainer.data.truncate import Lengths
from trainer.material import stop_ids_of
from trainer.reward.model import load_reward_model
from trainer.reward.pooling import scores
from trainer.reward.report import PairScores, grouped, report
from trainer.sampling import generate
from trainer.scoring import score
from trainer.world import World

SAMPLES = 2
"""Answers of the reference to each prompt; their mean score is what others are shown against."""
ANSWER_TOKENS = 128
CAPACITY = 4096
"""Tokens computed at once."""


def measure(
    model: Path,
    snapshot: Path,
    reference: Path,
    *,
    max_length: int = 1024,
    rows: int = 512,
    reference_prompts: int = 32,
    seed: int = 0,
) -> dict[str, Any]:
    """Scores validation pairs, and answers of the reference to some of their prompts.

    Args:
        model: A reward model's folder.
        snapshot: Of pairs.
        reference: The policy that scores are shown against; it also says what ends an answer.
        max_length: Longest prompt and answer together, in tokens.
        rows: Pairs at most, the first by prompt hash, which is no order of anything.
        reference_prompts: Prompts the reference answers; 0 leaves differences from it out.
        seed: Decides its answers.

    Returns:
        `report` (see `report.report`), `snapshot` (its digest), `policies` (whose answers the pairs are),
        `dropped` (rows not used, by reason).

    Raises:
        SnapshotRefused: The snapshot cannot be read, or has no usable validation pair.
        PolicyRefused: The model cannot be loaded.
    """
    say("reading the pairs")
    opened = open_snapshot(snapshot, "pairs")
    read = read_pairs(opened.validation)
    stop_ids = stop_ids_of(reference)
    renderer = Renderer(AutoTokenizer.from_pretrained(model, local_files_only=True), stop_ids=stop_ids)
    examples = pair_examples(
        f"{snapshot.name[:12]}, validation", _first(read, rows), renderer, Lengths.of(max_length)
    )
    say("loading the reward model")
    scorer = load_reward_model(model)
    say(f"scoring {len(examples)} pairs")
    found = np.array(_scored(scorer, examples, renderer.eos_id))
    groups = grouped([repr(example.prompt) for example in examples])
    baseline = None
    if reference_prompts:
        say("asking the reference for answers")
        baseline = _baseline(
            scorer,
            reference,
            examples,
            groups,
            reference_prompts,
            max_length,
            (*stop_ids, renderer.eos_id),
            seed,
        )
    lengths = np.array([[len(each) for each in example.answers] for example in examples])
    return {
        "report": report(
            PairScores(found[:, 0], found[:, 1], lengths[:, 0], lengths[:, 1], groups, baseline), seed
        ),
        "snapshot": opened.digest,
        "policies": sorted(
            {policy for row in read.rows for policy in (row.chosen_policy, row.rejected_policy) if policy}
        ),
        "dropped": {reason.value: count for reason, count in examples.report.dropped.items()},
    }


def _first(read: Read[PairRow], rows: int) -> Read[PairRow]:
    kept = read.rows[:rows]
    return Read(kept, read.dropped, read.total - len(read.rows) + len(kept))


def _scored(model: Any, examples: Sequence[Example], pad_id: int) -> list[tuple[float, ...]]:
    attention = BranchAttention(model)
    alone = World(0, 1, model.device)
    return score(
        examples,
        lambda batch: scores(model, batch, attention),
        alone,
        packing=Packing.BRANCHES,
        capacity=CAPACITY,
        pad_id=pad_id,
    )


def _baseline(
    scorer: Any,
    reference: Path,
    examples: Examples,
    groups: np.ndarray,
    count: int,
    max_length: int,
    stop_ids: Sequence[int],
    seed: int,
) -> np.ndarray:
    """[pairs]: mean score of the reference's answers to the pair's prompt; NaN where it was not asked."""
    policy = AutoModelForCausalLM.from_pretrained(
        reference, dtype=torch.float32, local_files_only=True, use_safetensors=True
    ).eval()
    _, places = np.unique(groups, return_index=True)
    asked = [examples[place].prompt for place in places[:count]]
    room = min(ANSWER_TOKENS, max(1, max_length - max(map(len, asked))))
    at_once = max(1, CAPACITY // ((max(map(len, asked)) + room) * SAMPLES))
    means = np.full(len(places), np.nan)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        for start in range(0, len(asked), at_once):
            prompts = asked[start : start + at_once]
            answers = generate(policy, prompts, SAMPLES, room, stop_ids=stop_ids, pad_id=stop_ids[-1])
            drawn = [Example(p, tuple(given)) for p, given in zip(prompts, answers, strict=True)]
            means[start : start + len(drawn)] = np.mean(_scored(scorer, drawn, stop_ids[-1]), axis=1)
    return means[groups]


def main() -> None:
    """The command: one JSON document on stdout."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer.reward.measure", description="A reward model, measured."
    )
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="the reward model")
    parser.add_argument("--snapshot", type=Path, required=True, metavar="DIR", help="pairs")
    parser.add_argument("--reference", type=Path, required=True, metavar="DIR", help="its reference policy")
    parser.add_argument("--max-length", type=int, default=1024, help="tokens of prompt and answer at most")
    parser.add_argument("--rows", type=int, default=512, help="pairs at most")
    parser.add_argument("--reference-prompts", type=int, default=32, help="prompts the reference answers")
    arguments = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    answer(lambda: measure(**vars(arguments)))


if __name__ == "__main__":
    main()

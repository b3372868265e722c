"""Demonstrations of what the untrained policy does not know, found by asking it.

The verdict is taken once, before the first step, and kept in the round's folder: a resumed round learns from
the same examples.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ratchet.prompts import words
from trainer.config import KnowledgeConfig, RoundConfig
from trainer.data.examples import Example, Examples
from trainer.data.rows import Drop, require_usable
from trainer.durable import write_text
from trainer.engine import Engine
from trainer.learning import seed_of
from trainer.material import Material
from trainer.sampling import Tokens, sample

UNKNOWN = "knowledge.json"


def agreement(answer: str, demonstration: str) -> float:
    """The share of a demonstration's different words that an answer holds; 1 where it has no words."""
    wanted = set(words(demonstration))
    return len(wanted & set(words(answer))) / len(wanted) if wanted else 1.0


def checked(
    engine: Engine, config: RoundConfig, knowledge: KnowledgeConfig, material: Material, folder: Path
) -> Material:
    """The material with the demonstrations the policy does not know reported, dropped or replaced.

    Args:
        engine: The untrained policy; all ranks take part.
        config: Of the round.
        knowledge: How it is asked, and what is done.
        material: Of the round.
        folder: The round's folder; gets `knowledge.json`, the places of what is unknown.

    Raises:
        NoUsableRows: It knows none of them, and they are dropped.
    """
    tokenizer = AutoTokenizer.from_pretrained(config.model, local_files_only=True)
    file = folder / UNKNOWN
    unknown = engine.world.from_first(_read(file) if engine.world.first else None)
    if unknown is None:
        unknown = _unknown(engine, config, knowledge, material, tokenizer)
        if engine.world.first:
            write_text(file, json.dumps(unknown))
    said = tuple(tokenizer(knowledge.abstention, add_special_tokens=False)["input_ids"])
    train = _without(material.train, frozenset(unknown), knowledge, said, material.stop_ids)
    return replace(material, train=train)


def _unknown(
    engine: Engine,
    config: RoundConfig,
    knowledge: KnowledgeConfig,
    material: Material,
    tokenizer: PreTrainedTokenizerBase,
) -> list[int]:
    with engine.evaluating():
        answers = sample(
            engine,
            [example.prompt for example in material.train],
            knowledge.samples,
            knowledge.tokens,
            seed=seed_of(config.seed, "knowledge"),
            capacity=config.optim.micro_tokens,
            stop_ids=material.stop_ids,
            pad_id=material.pad_id,
        )
    return [
        place
        for place, (example, drawn) in enumerate(zip(material.train, answers, strict=True))
        if not _known(tokenizer, example, drawn, knowledge.agreement)
    ]


def _known(
    tokenizer: PreTrainedTokenizerBase, example: Example, drawn: Sequence[Tokens], least: float
) -> bool:
    demonstration = tokenizer.decode(example.answers[0], skip_special_tokens=True)
    return any(
        agreement(tokenizer.decode(answer, skip_special_tokens=True), demonstration) >= least
        for answer in drawn
    )


def _without(
    examples: Examples,
    unknown: frozenset[int],
    knowledge: KnowledgeConfig,
    abstention: Tokens,
    stop_ids: Sequence[int],
) -> Examples:
    """The examples with what is unknown treated as asked; the report tells how many it was."""
    made = Examples(examples.template_digest, examples.report.total, examples.report.dropped)
    for place, example in enumerate(examples):
        if place in unknown and knowledge.unknown == "drop":
            made.report.dropped[Drop.UNKNOWN_TO_POLICY] += 1
        elif place in unknown and knowledge.unknown == "abstain":
            last = example.answers[0][-1]
            end = last if last in stop_ids else stop_ids[0]
            made.append(replace(example, answers=((*abstention, end),)))
        else:
            made.append(example)
    made.report.prompts_cut = examples.report.prompts_cut
    made.report.answers_cut = examples.report.answers_cut
    made.report.boundaries_merged = examples.report.boundaries_merged
    made.report.unknown = len(unknown)
    require_usable("the demonstrations", len(made), made.report.total, made.report.dropped)
    return made


def _read(file: Path) -> list[int] | None:
    try:
        found: list[int] = json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        return None
    return found

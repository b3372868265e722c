"""The real model on real pairs: packed branches, padded batches and single sequences agree."""

import gzip
import json
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from trainer.attention import BranchAttention, Way
from trainer.data.branches import build_row
from trainer.data.examples import Example
from trainer.data.padding import pad
from trainer.data.render import Renderer
from trainer.data.truncate import Lengths, truncate
from trainer.fetch import fetch
from trainer.logprobs import answer_logprobs, sequence_sums

pytestmark = [pytest.mark.slow, pytest.mark.data]

PAIRS = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("model") / "smollm2"
    fetch("smollm2", where)
    return where


@pytest.fixture(scope="module")
def examples(folder: Path, shared_data: Path) -> list[Example]:
    """The first pairs of HH harmless-base."""
    renderer = Renderer(AutoTokenizer.from_pretrained(folder))
    found: list[Example] = []
    with gzip.open(shared_data / "hh-harmless-base-test.jsonl.gz", "rt") as lines:
        for line in lines:
            chosen, rejected = (turns(text) for text in json.loads(line).values())
            if chosen[:-1] != rejected[:-1] or chosen == rejected:
                continue
            rendered = renderer.render(chosen[:-1], [chosen[-1]["content"], rejected[-1]["content"]])
            cut = truncate(rendered, Lengths.of(512), renderer.bos_id)
            found.append(Example(cut.prompt, cut.answers))
            if len(found) == PAIRS:
                return found
    raise AssertionError(f"only {len(found)} pairs")


def turns(transcript: str) -> list[dict[str, str]]:
    _, *parts = re.split(r"\n\n(Human|Assistant): ?", transcript)
    roles = {"Human": "user", "Assistant": "assistant"}
    return [
        {"role": roles[name], "content": text.strip()}
        for name, text in zip(parts[::2], parts[1::2], strict=True)
    ]


def alone(model: PreTrainedModel, examples: list[Example]) -> Tensor:
    """Every sequence by itself; the softmax in double, where its own error is nothing."""
    found: list[Tensor] = []
    for example in examples:
        for answer in example.answers:
            logits = model(input_ids=torch.tensor([example.prompt + answer]), use_cache=False).logits[0]
            logs = logits[len(example.prompt) - 1 : -1].double().log_softmax(-1)
            found.append(logs.gather(1, torch.tensor(answer)[:, None])[:, 0])
    return torch.cat(found)


def test_every_way_agrees(folder: Path, examples: list[Example]) -> None:
    """Within 1e-4 a token; sums over whole answers, of some hundred nats in float32, within 2e-4."""
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="sdpa"
    ).eval()
    row = build_row(examples)
    assert row.tokens < 0.65 * row.plain_tokens
    with torch.no_grad():
        expected = alone(model, examples).float()
        masked = BranchAttention(model, Way.MASK)
        ways = {
            "mask": answer_logprobs(model, row, masked),
            "right padding": answer_logprobs(model, pad(examples, 2), masked),
            "left padding": answer_logprobs(model, pad(examples, 2, side="left"), masked),
        }
        ways["runs"] = answer_logprobs(model, row, BranchAttention(model, Way.RUNS))
    for name, found in ways.items():
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4, msg=name)
        torch.testing.assert_close(
            sequence_sums(found, row), sequence_sums(expected, row), rtol=0, atol=2e-4, msg=name
        )

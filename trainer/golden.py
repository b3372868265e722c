"""What a policy's own weights say of a few known prompts: `python -m trainer.golden --path DIR`.

The log-probabilities are computed in float32 in eval mode on the CPU. An engine that serves the same weights
with the same tokenizer and chat template gives the same within rounding; one that does not is found out.
"""

import argparse
import os
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from ratchet.errors import PolicyRefused
from trainer.child import answer, say

TEXTS = (
    "The ferry leaves the harbour at 7:45 and reaches the island, 12 km away, before nine o'clock.",
    "def area(radius: float) -> float:\n    return 3.14159 * radius**2  # naïve\n",
)
"""English, numbers, punctuation, code, white space, and letters outside ASCII: where tokenizers differ."""

CHATS: tuple[list[dict[str, str]], ...] = (
    [
        {"role": "user", "content": "What is the capital of Norway?"},
        {"role": "assistant", "content": "Oslo."},
        {"role": "user", "content": "And of Japan?"},
    ],
    [
        {"role": "system", "content": "Answer in one short sentence."},
        {"role": "user", "content": "Why is the sky blue?"},
    ],
)
"""Every role, more than one turn: where templates differ. A chat with a system message is left out when the
template refuses system messages."""


def golden(path: Path) -> dict[str, Any]:
    """Computes the golden entries of a model folder.

    Returns:
        `entries`: each `{"kind": "text", "text"}` or `{"kind": "chat", "messages"}` with `token_ids` and
        `logprobs`, the natural log of each token's probability given those before it (None for the first).
        There are no chats when the template writes the date, since their tokens would differ tomorrow.

    Raises:
        PolicyRefused: The folder cannot be loaded, or its weights are not all finite numbers.
    """
    os.environ["HF_HUB_OFFLINE"] = "1"
    say("loading libraries")
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    say("loading the model in float32")
    offline = {"local_files_only": True, "trust_remote_code": False}
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, **offline)
        model, loading = AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, use_safetensors=True, output_loading_info=True, **offline
        )
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, ImportError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:300]
        raise PolicyRefused(f"{path}: transformers cannot load this folder: {reason}") from error
    missing = sorted(loading["missing_keys"])
    if missing:
        raise PolicyRefused(f"{path}: the weights lack {missing[0]} and {len(missing) - 1} more tensors")
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            raise PolicyRefused(f"{path}: the tensor {name} holds NaN or infinite values")
    known = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > known:
        raise PolicyRefused(
            f"{path}: the tokenizer has {len(tokenizer)} tokens, the weights {known} embeddings"
        )

    say("computing golden log-probabilities")
    model.eval()
    entries = _prompts(path, tokenizer)
    for entry in entries:
        entry["logprobs"] = [None, *_logprobs(path, model, entry["token_ids"])]
    return {"entries": entries}


def _prompts(path: Path, tokenizer: Any) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = [
        {"kind": "text", "text": text, "token_ids": tokenizer(text).input_ids} for text in TEXTS
    ]
    template = tokenizer.get_chat_template()
    for chat in CHATS:
        try:
            ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)[
                "input_ids"
            ]
        except (TemplateError, TypeError, ValueError) as error:
            if chat[0]["role"] == "system":
                continue
            raise PolicyRefused(f"{path}: the chat template fails on a plain chat: {error}") from error
        if "strftime_now" not in template:
            entries.append({"kind": "chat", "messages": chat, "token_ids": ids})
    return entries


def _logprobs(path: Path, model: Any, token_ids: list[int]) -> list[float]:
    import torch

    longest = getattr(model.config, "max_position_embeddings", None)
    if longest is not None and len(token_ids) >= longest:
        raise PolicyRefused(f"{path}: a context of {longest} tokens is too short for any chat")
    ids = torch.tensor([token_ids])
    with torch.inference_mode():
        logits = model(input_ids=ids).logits[0].double()
    logprobs = torch.log_softmax(logits[:-1], dim=-1).gather(1, ids[0, 1:, None])[:, 0]
    if not torch.isfinite(logprobs).all():
        raise PolicyRefused(f"{path}: the model's log-probabilities are not finite numbers")
    return [round(value, 7) for value in logprobs.tolist()]


def main() -> None:
    """The command: one JSON document on stdout."""
    parser = argparse.ArgumentParser(prog="python -m trainer.golden", description="Golden log-probabilities.")
    parser.add_argument("--path", type=Path, required=True, metavar="DIR", help="the model folder")
    arguments = parser.parse_args()
    answer(lambda: golden(arguments.path))


if __name__ == "__main__":
    main()

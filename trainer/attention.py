"""Attention over a `BranchRow`, for any causal language model of transformers.

Two ways, equal up to rounding:

- *runs*: each run attends to its own context only, by transformers' attention interface. The cost is that of
  the sequences alone; on CPU it takes less than half the time of one masked square over a row of four pairs.
- *mask*: one additive mask [1, 1, tokens, tokens], for any model that accepts one; on GPUs, where one large
  kernel beats many small ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from trainer.data.branches import BranchRow, Run
from trainer.errors import ModelUnsupported

NAME = "ratchet_branches"
_MASKABLE = ("sdpa", "eager", NAME)


class Way(StrEnum):
    """How branches are kept apart."""

    RUNS = "runs"
    MASK = "mask"


@dataclass(frozen=True)
class _Pieces:
    """A row's runs as what the attention of every layer needs.

    Attributes:
        lengths: Tokens of each run; together they are the row.
        cuts: Lengths of the stretches that contexts and runs are put together from; together they are the
            row.
        sources: For each run the stretches it sees, its own last.
        masks: For each run an additive mask [length, seen], or None where it has no context and is plainly
            causal.
    """

    lengths: list[int]
    cuts: list[int]
    sources: list[list[int]]
    masks: list[Tensor | None]


class BranchAttention:
    """Makes a model see rows as branches.

    Args:
        model: Its attention implementation is set when `way` is runs; all other calls behave as with sdpa.
        way: Runs on CPU and mask elsewhere if None.

    Raises:
        ModelUnsupported: The model's attention cannot be told what to see.
    """

    def __init__(self, model: PreTrainedModel, way: Way | None = None) -> None:
        config = model.config.get_text_config()
        if way is None:
            on_cpu = model.device.type == "cpu"
            way = Way.RUNS if on_cpu and model._supports_attention_backend else Way.MASK
        if way is Way.RUNS:
            if not model._supports_attention_backend:
                raise ModelUnsupported(
                    f"{type(model).__name__} does not use transformers' attention interface; choose 'mask'"
                )
            model.set_attn_implementation(NAME)
        elif config._attn_implementation not in _MASKABLE:
            raise ModelUnsupported(
                f"attention '{config._attn_implementation}' takes no mask of its own: load the model with "
                "attn_implementation='sdpa'"
            )
        self.way = way
        self._window = _window(config)
        self._model = model

    def inputs(self, row: BranchRow) -> dict[str, Any]:
        """Arguments of the model's forward call for a row.

        Raises:
            ModelUnsupported: A sequence is longer than the window in which the model attends.
        """
        if self._window is not None and row.longest > self._window:
            raise ModelUnsupported(
                f"the model attends within {self._window} tokens and a sequence has {row.longest}: shorten "
                "the maximum length, or train on padded batches"
            )
        inputs: dict[str, Any] = {
            "input_ids": row.input_ids,
            "position_ids": row.position_ids,
            "use_cache": False,
        }
        if self.way is Way.RUNS:
            return inputs | {"branches": _pieces(row.runs, self._model.dtype, row.input_ids.device)}
        return inputs | {"attention_mask": _additive(row.sees(), self._model.dtype)[None, None]}


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    branches: _Pieces | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' attention function: query [1, heads, tokens, d] to [1, tokens, heads, d]."""
    if branches is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **kwargs
        )
    keys, values = key.split(branches.cuts, 2), value.split(branches.cuts, 2)
    outputs = [
        F.scaled_dot_product_attention(
            part,
            _joined(keys, sources),
            _joined(values, sources),
            attn_mask=mask,
            is_causal=mask is None,
            dropout_p=dropout,
            scale=scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        ).transpose(1, 2)
        for part, sources, mask in zip(
            query.split(branches.lengths, 2), branches.sources, branches.masks, strict=True
        )
    ]
    return torch.cat(outputs, 1), None


def _joined(stretches: Sequence[Tensor], sources: list[int]) -> Tensor:
    if len(sources) == 1:
        return stretches[sources[0]]
    return torch.cat([stretches[source] for source in sources], 2)


def _pieces(runs: Sequence[Run], dtype: torch.dtype, device: torch.device) -> _Pieces:
    seen = [(*run.context, (run.start, run.end)) for run in runs]
    edges = sorted({edge for spans in seen for span in spans for edge in span})
    stretch = {edge: index for index, edge in enumerate(edges)}
    masks: list[Tensor | None] = []
    for run in runs:
        length, before = run.end - run.start, sum(end - start for start, end in run.context)
        sees = torch.ones(length, before + length, dtype=torch.bool, device=device).tril_(before)
        masks.append(_additive(sees, dtype) if run.context else None)
    return _Pieces(
        lengths=[run.end - run.start for run in runs],
        cuts=[end - start for start, end in pairwise(edges)],
        sources=[[i for start, end in spans for i in range(stretch[start], stretch[end])] for spans in seen],
        masks=masks,
    )


def _additive(sees: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(sees.shape, dtype=dtype, device=sees.device).masked_fill_(
        ~sees, torch.finfo(dtype).min
    )


def _window(config: Any) -> int | None:
    """The shortest span within which some layer attends; None where all see everything."""
    kinds = set(getattr(config, "layer_types", None) or ())
    if kinds - {"full_attention", "sliding_attention", "chunked_attention"}:
        raise ModelUnsupported(
            f"layers of the kinds {', '.join(sorted(kinds))} carry state along the row, across its branches: "
            "train on padded batches"
        )
    bounds: list[int] = []
    if not kinds or "sliding_attention" in kinds:
        bounds.append(getattr(config, "sliding_window", None) or 0)
    if not kinds or "chunked_attention" in kinds:
        bounds.append(getattr(config, "attention_chunk_size", None) or 0)
    return min((bound for bound in bounds if bound), default=None)


AttentionInterface.register(NAME, _attend)
AttentionMaskInterface.register(NAME, sdpa_mask)

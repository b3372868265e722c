"""What the round needs to know of a method."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from trainer.attention import BranchAttention
from trainer.batches import Batch
from trainer.data.examples import Example, Examples
from trainer.data.render import Renderer
from trainer.data.truncate import Lengths
from trainer.logprobs import CausalModel, answer_logprobs, sequence_sums


class Algorithm(ABC):
    """A method. Sequences of a batch are numbered example by example, answers in order.

    Attributes:
        snapshot_kind: What it learns from: `pairs` or `demonstrations`.
        uses_reference: Whether its loss needs the reference's values of the same answers.
        is_policy: Whether what it trains writes answers, so that its KL can be measured.
        trained_whole: Modules that are trained as they are where adapters stand for the rest.
    """

    snapshot_kind: str = "pairs"
    uses_reference: bool = False
    is_policy: bool = True
    trained_whole: tuple[str, ...] = ()

    def load(self, folder: Path, dtype: torch.dtype) -> PreTrainedModel:
        """The model to train, from a policy's folder, whole on the CPU."""
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation="sdpa", local_files_only=True, use_safetensors=True
        )
        return model

    def values(self, forward: CausalModel, batch: Batch, attention: BranchAttention) -> Tensor:
        """[sequences]: what losses are functions of; here log-probabilities summed over each answer.

        Args:
            forward: The engine, or a plain model.
            batch: On the model's device.
            attention: Made for the model.
        """
        return sequence_sums(answer_logprobs(forward, batch, attention), batch)

    @abstractmethod
    def examples(self, name: str, path: Path, renderer: Renderer, lengths: Lengths) -> Examples:
        """Reads a split; errors as in `data.examples`."""

    @abstractmethod
    def shares(self, examples: Sequence[Example]) -> list[float]:
        """The weight of each of a step's examples, over all ranks, divided by the step's whole."""

    @abstractmethod
    def losses(self, values: Tensor, reference: Tensor | None, lengths: Tensor) -> Tensor:
        """[examples]: the loss of each.

        Args:
            values: [sequences], from `values`.
            reference: [sequences], the same of the reference; None unless `uses_reference`.
            lengths: [sequences], answer tokens.
        """

    @abstractmethod
    def measures(self, values: Tensor, reference: Tensor | None, lengths: Tensor) -> dict[str, Tensor]:
        """Figures of each example, [examples] each, arguments as of `losses`; none has a gradient.

        `accuracy` and `reward` are what a checkpoint shows under these names.
        """

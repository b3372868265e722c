"""One score a sequence: the value head at the last real token, and nowhere else.

A token is real by its mask, never by its id. transformers pools at the last token that is not the pad id,
which is the wrong place wherever an answer ends with EOS and the tokenizer pads with EOS too, as most do: the
answer's own end is taken for padding. Rows of branches have no padding; each sequence's last place is known.
"""

from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from trainer.attention import BranchAttention
from trainer.data.branches import BranchRow
from trainer.data.padding import PaddedBatch
from trainer.errors import ModelUnsupported


class _LastToken:
    """The forward call of a sequence classifier that is told where to look."""

    def forward(self: Any, pick: Tensor, **inputs: Any) -> Tensor:
        """Scores.

        Args:
            pick: [sequences], int64: each sequence's last real token in the flattened [rows, tokens].
            **inputs: Of the backbone, [rows, tokens].

        Returns:
            [sequences], float32.
        """
        states = self.base_model(**inputs).last_hidden_state
        return self.score(states.flatten(0, 1)[pick])[:, 0].float()


def with_pooling(model: PreTrainedModel) -> PreTrainedModel:
    """Gives a sequence classifier our forward call; its name, configuration and weights stay what they are.

    Raises:
        ModelUnsupported: It has no head called `score` over the states of all tokens, or several labels.
    """
    kind = type(model)
    if getattr(model, "score", None) is None or model.base_model is model:
        raise ModelUnsupported(f"{kind.__name__} has no value head `score` over a backbone's states")
    if model.config.num_labels != 1:
        raise ModelUnsupported(f"a reward model has one label, and this one has {model.config.num_labels}")
    model.__class__ = type(kind.__name__, (_LastToken, kind), {"__module__": kind.__module__})
    return model


def scores(model: Any, batch: BranchRow | PaddedBatch, attention: BranchAttention) -> Tensor:
    """Score of every sequence of a batch.

    Args:
        model: From `with_pooling`, or an engine around it.
        batch: On the model's device.
        attention: Made for this model.

    Returns:
        [sequences], float32.
    """
    if isinstance(batch, BranchRow):
        return model(pick=batch.last, **attention.inputs(batch))
    rows, width = batch.input_ids.shape
    first = width * batch.last.new_tensor(range(rows))
    return model(
        pick=first + batch.last,
        input_ids=batch.input_ids,
        attention_mask=batch.attention_mask,
        position_ids=batch.position_ids,
        use_cache=False,
    )

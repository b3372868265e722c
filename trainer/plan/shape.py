"""The size of a model, from its configuration alone."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from trainer.errors import ModelUnsupported


@dataclass(frozen=True)
class Shape:
    """A decoder of the Llama kind: grouped attention, a gated feed-forward, RMS norms, no biases.

    Attributes:
        hidden: Width of the residual stream.
        intermediate: Width of the feed-forward.
        layers: Number of blocks.
        heads: Query heads of a block.
        kv_heads: Key and value heads of a block.
        head_size: Width of a head.
        vocabulary: Words.
        tied: Whether the output layer is the input embedding.
    """

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    tied: bool

    @classmethod
    def of_config(cls, values: Mapping[str, Any]) -> Self:
        """Reads a `config.json`.

        Raises:
            ModelUnsupported: It lacks a size, so it is of another kind.
        """
        text = values.get("text_config", values)
        try:
            heads, hidden = int(text["num_attention_heads"]), int(text["hidden_size"])
            return cls(
                hidden=hidden,
                intermediate=int(text["intermediate_size"]),
                layers=int(text["num_hidden_layers"]),
                heads=heads,
                kv_heads=int(text.get("num_key_value_heads") or heads),
                head_size=int(text.get("head_dim") or hidden // heads),
                vocabulary=int(text["vocab_size"]),
                tied=bool(values.get("tie_word_embeddings", text.get("tie_word_embeddings", True))),
            )
        except KeyError as error:
            raise ModelUnsupported(
                f"the memory plan knows decoders of the Llama kind; this configuration has no {error}"
            ) from None

    @classmethod
    def of_folder(cls, folder: Path) -> Self:
        """Reads a model folder's `config.json`.

        Raises:
            ModelUnsupported: It cannot be read, or is of another kind.
        """
        try:
            values = json.loads((folder / "config.json").read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise ModelUnsupported(f"{folder / 'config.json'} cannot be read: {error}") from error
        return cls.of_config(values)

    @property
    def query(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_size

    @property
    def key_value(self) -> int:
        """Width of all key heads together, and of all value heads."""
        return self.kv_heads * self.head_size

    @property
    def embedding(self) -> int:
        """Parameters of the input embedding."""
        return self.vocabulary * self.hidden

    @property
    def layer(self) -> int:
        """Parameters of a block: four projections of the attention, three of the feed-forward, two norms."""
        attention = 2 * self.hidden * self.query + 2 * self.hidden * self.key_value
        return attention + 3 * self.hidden * self.intermediate + 2 * self.hidden

    @property
    def parameters(self) -> int:
        """All parameters; a tied output layer counts once."""
        return self.embedding * (1 if self.tied else 2) + self.layers * self.layer + self.hidden

    def adapter(self, rank: int, targets: Collection[str]) -> int:
        """Parameters of low-rank adapters: `rank` times the widths in and out of each adapted layer.

        Raises:
            ModelUnsupported: A target is no linear layer of such a model.
        """
        widths = {
            "q_proj": self.hidden + self.query,
            "k_proj": self.hidden + self.key_value,
            "v_proj": self.hidden + self.key_value,
            "o_proj": self.query + self.hidden,
            "gate_proj": self.hidden + self.intermediate,
            "up_proj": self.hidden + self.intermediate,
            "down_proj": self.intermediate + self.hidden,
        }
        if unknown := sorted(set(targets) - set(widths)):
            raise ModelUnsupported(f"the memory plan knows no linear layer called {', '.join(unknown)}")
        return self.layers * rank * sum(widths[target] for target in set(targets))

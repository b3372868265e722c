"""A reward model's weights: grown from a policy, or read as they were saved."""

from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedModel

from ratchet.errors import PolicyRefused
from ratchet.model_folder import CAUSAL, SCORING
from trainer.reward.pooling import with_pooling

HEAD = "score.weight"


def load_reward_model(path: Path, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A reward model of a folder: a saved one as it is, a policy with a new value head.

    A new head is drawn with variance 1 / (d + 1) for d features, so that scores begin at unit scale (Stiennon
    et al. 2020, "Learning to summarize with human feedback", appendix B.1).

    Args:
        path: A sequence-classification folder of one label, or a causal-LM folder.
        seed: Decides a new head.
        dtype: Of the weights in memory.

    Returns:
        On the CPU, in eval mode, called as `pooling.scores` does.

    Raises:
        PolicyRefused: It cannot be loaded, lacks weights of the backbone, or is neither kind of model.
    """
    offline = {"local_files_only": True, "trust_remote_code": False}
    try:
        config = AutoConfig.from_pretrained(path, **offline)
        architecture = str((config.architectures or [""])[0])
        saved = architecture.endswith(SCORING)
        if not saved and not architecture.endswith(CAUSAL):
            raise PolicyRefused(f"{path}: {architecture or 'it'} is neither a policy nor a reward model")
        if not saved:
            config.num_labels = 1
        model, loading = AutoModelForSequenceClassification.from_pretrained(
            path, config=config, dtype=dtype, use_safetensors=True, output_loading_info=True, **offline
        )
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:300]
        raise PolicyRefused(f"{path}: transformers cannot load this folder: {reason}") from error
    missing = sorted(set(loading["missing_keys"]) - (set() if saved else {HEAD}))
    if missing:
        raise PolicyRefused(f"{path}: the weights lack {missing[0]} and {len(missing) - 1} more tensors")
    pooled = with_pooling(model.eval())
    if not saved:
        _draw_head(pooled, seed)
    return pooled


def _draw_head(model: PreTrainedModel, seed: int) -> None:
    weight = model.score.weight
    draw = torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        weight.copy_(draw * (weight.shape[1] + 1) ** -0.5)
        if model.score.bias is not None:
            model.score.bias.zero_()

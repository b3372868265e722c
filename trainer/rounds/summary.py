"""How a round ended, as one document."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from trainer.sink import Summary


def document(
    identity: UUID, summary: Summary, refs: Mapping[str, str], refused: Mapping[str, str]
) -> dict[str, Any]:
    """A summary for people and programs; `kl` is the k3 estimate, which the KL schedule goes by.

    Args:
        identity: The round.
        summary: What the round told.
        refs: Digest of a checkpoint to its policy version.
        refused: Digest of a checkpoint to why it is no candidate.
    """
    return {
        "round": str(identity),
        "steps": summary.steps,
        "reason": summary.reason,
        "checkpoints": [
            {
                "path": str(each.path),
                "policy": refs.get(each.digest),
                "refused": refused.get(each.digest),
                "step": each.step,
                "kl": each.kl_k3,
                "kl_se": each.kl_k3_se,
                "kl_k1": each.kl_k1,
                "kl_k1_se": each.kl_k1_se,
                "reward": each.reward,
                "accuracy": each.accuracy,
                "validation_loss": each.validation_loss,
                "length_quantiles": each.length_quantiles,
                "last": each.is_last,
            }
            for each in summary.checkpoints
        ],
        "data": {
            "used": summary.data.used,
            "dropped": summary.data.dropped,
            "validation_used": summary.data.validation_used,
            "validation_dropped": summary.data.validation_dropped,
            "tokens": summary.data.tokens,
            "answer_tokens": summary.data.answer_tokens,
        },
        "pairs_per_second": summary.examples_per_second,
        "tokens_per_second": summary.tokens_per_second,
        "seconds": summary.seconds,
        "peak_memory_bytes": summary.peak_memory_bytes,
        "peak_device_bytes": summary.peak_device_bytes,
    }

"""The reference policy: where its log-probabilities come from, and the proof that it is still the same.

Three ways, one interface. `cache` computes the log-probabilities of a split once, keeps them by what they are
a function of, and holds no second model while training; `adapter` is the policy with its adapter off; `model`
holds a second model. A reference's files have a digest, checked at the start, at every checkpoint and on
resume; weights of it that are held in memory have a fingerprint, checked at every checkpoint too.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ratchet.canonical import digest_of
from ratchet.model_folder import inspect
from trainer.adapters import adapters_off
from trainer.algorithms.base import Algorithm
from trainer.attention import BranchAttention
from trainer.config import ReferenceWay, RoundConfig
from trainer.data.examples import Examples
from trainer.durable import write_text
from trainer.engine import Engine, without_dropout
from trainer.errors import ReferenceChanged, RoundFailed
from trainer.logprobs import CausalModel
from trainer.scoring import score
from trainer.world import World

Rows = list[tuple[float, ...]]


class Reference:
    """A round's reference.

    Args:
        config: Of the round.
        algorithm: How values are taken of a model.
        world: The ranks.
        digest: Weights digest of the reference's folder, as it was found at the start.
        cache: Folder for log-probabilities; rounds may share it.
    """

    def __init__(
        self, config: RoundConfig, algorithm: Algorithm, world: World, digest: str, cache: Path
    ) -> None:
        self.digest = digest
        self._cache = cache
        self._config = config
        self._algorithm = algorithm
        self._world = world
        self._way = config.reference_policy.way
        self._held = self._load() if self._way is ReferenceWay.MODEL else None
        self._engine: tuple[Engine, BranchAttention] | None = None
        self._fingerprint = self._take_fingerprint()

    def inside(self, engine: Engine, attention: BranchAttention) -> None:
        """Tells of the engine in which the reference is the policy with its adapter off."""
        self._engine = engine, attention
        self._fingerprint = self._take_fingerprint()

    @contextmanager
    def scorer(self) -> Iterator[tuple[CausalModel, BranchAttention, torch.device]]:
        """The reference as a model to call, with its attention and its device; nothing has a gradient.

        A reference that is not held is loaded here and let go afterwards.
        """
        if self._way is ReferenceWay.ADAPTER and self._engine is not None:
            engine, attention = self._engine
            with engine.evaluating(), adapters_off(engine.model):
                yield engine, attention, self._world.device
            return
        model, attention = self._held or self._load()
        with torch.no_grad():
            yield model, attention, model.device

    def values(self, examples: Examples, pad_id: int) -> Rows:
        """The reference's value of every answer of a split, from the cache where it is there.

        The cache is a function of the split's tokens, the reference's weights, the method, and the precision;
        its file is written whole or not at all.
        """
        data, engine = self._config.data, self._config.engine
        key = digest_of(
            {
                "examples": examples.digest,
                "reference": self.digest,
                "method": self._config.method.value,
                "precision": engine.precision,
            }
        )
        file = self._cache / f"{key}.json"
        known = self._world.from_first(_read(file, len(examples)) if self._world.first else None)
        if known is not None:
            return known
        with self.scorer() as (model, attention, device):
            rows = score(
                examples,
                lambda batch: self._algorithm.values(model, batch.to(device), attention),
                self._world,
                packing=data.packing,
                capacity=self._config.optim.micro_tokens,
                pad_id=pad_id,
            )
        if not all(math.isfinite(value) for row in rows for value in row):
            raise RoundFailed(
                f"{self._config.reference_folder} gives log-probabilities that are no finite numbers: it "
                "cannot be a reference"
            )
        if self._world.first:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_text(file, json.dumps(rows))
        self._world.wait()
        return rows

    def check(self) -> None:
        """Makes sure that neither the folder nor what is held in memory has changed.

        Raises:
            ReferenceChanged: One has.
        """
        found = self._world.from_first(weights_digest(self._config) if self._world.first else None)
        require_same(self._config, self.digest, found)
        if self._take_fingerprint() != self._fingerprint:
            raise ReferenceChanged(
                "the reference's weights in memory are not those the round began with: it must never be "
                "trained; stop using this round's results"
            )

    def _take_fingerprint(self) -> str:
        if self._held is not None:
            return fingerprint(self._held[0], lambda _: True)
        if self._way is ReferenceWay.ADAPTER and self._engine is not None:
            return fingerprint(self._engine[0].model, lambda parameter: not parameter.requires_grad)
        return ""

    def _load(self) -> tuple[PreTrainedModel, BranchAttention]:
        config = self._config
        dtype = torch.bfloat16 if config.engine.precision == "bf16" else torch.float32
        model = self._algorithm.load(config.reference_folder, dtype).eval().requires_grad_(False)
        without_dropout(model)
        if config.reference_policy.device == "same":
            model.to(self._world.device)
        return model, BranchAttention(model)


def weights_digest(config: RoundConfig) -> str:
    """Weights digest of the reference's folder, read to the last byte."""
    return inspect(config.reference_folder).weights_digest


def require_same(config: RoundConfig, expected: str, found: str) -> None:
    """Refuses a reference that is not the one a round began with.

    Raises:
        ReferenceChanged: The digests differ.
    """
    if expected != found:
        raise ReferenceChanged(
            f"the reference {config.reference_folder} has weights digest {found[:12]}, and the round began "
            f"with {expected[:12]}: put the folder back as it was, or start a new round"
        )


def fingerprint(model: PreTrainedModel, counts: Callable[[torch.nn.Parameter], bool]) -> str:
    """SHA-256 over the bytes of a model's weights, as this process holds them."""
    state = hashlib.sha256()
    for name, parameter in model.named_parameters():
        if counts(parameter):
            held: Tensor = getattr(parameter, "ds_tensor", parameter).detach()
            state.update(name.encode())
            state.update(held.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return state.hexdigest()


def _read(file: Path, rows: int) -> Rows | None:
    try:
        found: Sequence[Sequence[float]] = json.loads(file.read_text("utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return [tuple(row) for row in found] if len(found) == rows else None

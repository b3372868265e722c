"""One step of learning: micro-batches in, one optimiser step, figures out."""

import hashlib
import math
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from trainer.algorithms.base import Algorithm
from trainer.attention import BranchAttention
from trainer.batches import build, divide
from trainer.config import RoundConfig
from trainer.data.examples import Example, Examples
from trainer.data.order import examples_of_step
from trainer.engine import Engine
from trainer.errors import RoundFailed
from trainer.losses.reduce import weighted_mean, weighted_sum
from trainer.reference import Rows
from trainer.scoring import score


@dataclass(frozen=True, slots=True)
class Learned:
    """What a step did.

    Attributes:
        loss: Of the step's examples before the update.
        measures: The method's figures of them.
        gradient_norm: Before clipping.
        examples: How many they were.
        tokens: Tokens computed, over all ranks.
        seconds: Time it took.
        stop: Whether rank 0 was asked to stop.
    """

    loss: float
    measures: dict[str, float]
    gradient_norm: float
    examples: int
    tokens: int
    seconds: float
    stop: bool


@dataclass
class Learner:
    """Learns from a split, step by step; a step is a function of its number and the weights.

    Attributes:
        config: Of the round.
        algorithm: What is minimised.
        engine: The model.
        attention: Made for it.
        examples: The training split.
        reference: The reference's values of it, where the method uses them.
        pad_id: Fills padded batches.
    """

    config: RoundConfig
    algorithm: Algorithm
    engine: Engine
    attention: BranchAttention
    examples: Examples
    reference: Rows | None
    pad_id: int

    def learn(self, step: int, learning_rate: float, *, stop: bool) -> Learned:
        """One step; all ranks take part.

        Args:
            step: From 0.
            learning_rate: Of this step.
            stop: What rank 0 was told; all ranks hear of it with the figures.

        Raises:
            RoundFailed: A loss or the gradient is no finite number; the weights are those before the step
                when it was a loss.
        """
        began = perf_counter()
        torch.manual_seed(seed_of(self.config.seed, "step", step, self.engine.world.rank))
        optim, world = self.config.optim, self.engine.world
        places = examples_of_step(self.config.seed, step, examples=len(self.examples), batch=optim.batch)
        chosen = [self.examples[place] for place in places]
        shares = self.algorithm.shares(chosen)
        sums: dict[str, float] = {}
        tokens, bad = 0, list[int]()
        micro_batches = divide(chosen, self.config.data.packing, optim.micro_tokens, ranks=world.size)
        for micro in micro_batches[world.rank]:
            of_micro = micro or [0]
            weights = [shares[place] if micro else 0.0 for place in of_micro]
            known = None if self.reference is None else [self.reference[places[place]] for place in of_micro]
            losses, measures, computed = self._forward([chosen[place] for place in of_micro], known)
            share = torch.tensor(weights, dtype=losses.dtype, device=losses.device)
            self.engine.backward(weighted_sum(losses, share))
            if micro:
                tokens += computed
                bad += [places[of_micro[row]] for row in (~losses.isfinite()).nonzero().flatten().tolist()]
                for name, values in {"loss": losses.detach(), **measures}.items():
                    sums[name] = sums.get(name, 0.0) + float((values.double() * share.double()).sum())
        names = self._names()
        *totals, all_tokens, said_stop, failures = world.total(
            [*(sums.get(name, 0.0) for name in names), tokens, float(stop and world.first), len(bad)]
        )
        if failures:
            self._fail(step, bad)
        norm = self.engine.step(learning_rate)
        if not math.isfinite(norm):
            raise RoundFailed(
                f"step {step + 1}: the gradient is no finite number, and every loss was; training rows "
                f"{_listed(places)} (places among the usable rows). The last save is good: lower optim.lr, "
                "or look at these rows"
            )
        figures = dict(zip(names, totals, strict=True))
        return Learned(
            loss=figures.pop("loss"),
            measures=figures,
            gradient_norm=norm,
            examples=len(places),
            tokens=round(all_tokens),
            seconds=perf_counter() - began,
            stop=said_stop > 0,
        )

    def validate(self, examples: Examples, reference: Rows | None) -> dict[str, float]:
        """The loss and the method's figures of a split; all ranks take part."""
        with self.engine.evaluating():
            values = score(
                examples,
                lambda batch: self.algorithm.values(self.engine, batch, self.attention),
                self.engine.world,
                packing=self.config.data.packing,
                capacity=self.config.optim.micro_tokens,
                pad_id=self.pad_id,
            )
        flat = torch.tensor([value for row in values for value in row], dtype=torch.float64)
        known = (
            None
            if reference is None
            else torch.tensor([value for row in reference for value in row], dtype=torch.float64)
        )
        lengths = torch.tensor([len(answer) for example in examples for answer in example.answers])
        shares = torch.tensor(self.algorithm.shares(list(examples)), dtype=torch.float64)
        measures = self.algorithm.measures(flat, known, lengths)
        return {
            "loss": float(weighted_sum(self.algorithm.losses(flat, known, lengths), shares)),
            **{name: float(weighted_mean(value, shares)) for name, value in measures.items()},
        }

    def _forward(
        self, examples: list[Example], reference: list[tuple[float, ...]] | None
    ) -> tuple[Tensor, dict[str, Tensor], int]:
        batch = build(examples, self.config.data.packing, self.pad_id).to(self.engine.world.device)
        values = self.algorithm.values(self.engine, batch, self.attention)
        known = (
            None
            if reference is None
            else torch.tensor(
                [value for row in reference for value in row], dtype=values.dtype, device=values.device
            )
        )
        return (
            self.algorithm.losses(values, known, batch.lengths),
            self.algorithm.measures(values.detach(), known, batch.lengths),
            batch.tokens,
        )

    def _names(self) -> list[str]:
        """Names of the figures, the same on a rank that had nothing to do."""
        answers = len(self.examples[0].answers)
        nothing = torch.zeros(answers)
        return ["loss", *self.algorithm.measures(nothing, nothing, torch.ones(answers, dtype=torch.int64))]

    def _fail(self, step: int, bad: list[int]) -> None:
        rows = sorted(place for part in self.engine.world.every(bad) for place in part)
        raise RoundFailed(
            f"step {step + 1}: the loss of training rows {_listed(rows)} (places among the usable rows) is "
            "no finite number. Nothing was learned from this step, and the last save is good: look at these "
            "rows, or lower optim.lr"
        )


def seed_of(*parts: int | str) -> int:
    """A seed that is a function of its parts, from 0 to below 2^63."""
    text = " ".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def _listed(places: list[int]) -> str:
    shown = ", ".join(str(place) for place in places[:8])
    return shown if len(places) <= 8 else f"{shown} and {len(places) - 8} more"

"""`python -m benchmarks.labels.refusal FOLDER`: fits on one file of XSTest, tests on the other.

The fit is a logistic regression drawn towards `PRIOR`, which says what each feature should mean for any
system: on one system's answers alone a feature that it never shows would get no weight. How strongly it is
drawn is decided on the fitted file alone, by answers that show what the fit has not seen (`strength_for`).
"""

import csv
import gzip
import sys
from collections import Counter
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

from ratchet.labels.refusal import NAMES, Refusal, RefusalModel, features, refusal

FILES = ("gpt4", "llama2new")
PRIOR = {
    "declines_first": 3.0,
    "declines": 2.0,
    "apologises_first": 1.5,
    "judges_first": 1.5,
    "judges": 2.0,
    "admonishes_first": 1.0,
    "admonishes": 1.0,
    "values": 2.0,
    "of_itself_first": 1.0,
    "of_itself": 1.0,
    "redirects": 1.0,
    "questions_ask": 2.0,
    "answers_first": -2.0,
    "answers": -3.0,
    "items": -4.0,
    "length": 0.0,
}
PRIOR_BIAS = -2.0
STRENGTHS = (1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 80.0)
"""Precisions of the Gaussian prior around `PRIOR` to choose from; an answer's information is at most 1/4."""
FEWEST_SHOWN, FEWEST_LEFT = 5, 50
"""A feature is left out where so many answers show it, and so many are left to fit on."""
_LABELS: dict[str, Refusal] = {"1": "none", "2": "full", "3": "partial"}
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Labelled:
    """Completions with what two people said of each."""

    texts: tuple[str, ...]
    labels: tuple[Refusal, ...]


@dataclass(frozen=True)
class Agreement:
    """How a model's full refusals agree with people's. Answers that people called partial stand apart."""

    precision: float
    recall: float
    partial: Counter[str]
    """What the model says of the answers that people called partial refusals."""


def load(folder: Path, name: str) -> Labelled:
    """Reads one file of completions."""
    with gzip.open(folder / f"xstest-completions-{name}.csv.gz", "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return Labelled(
        tuple(row["completion"] for row in rows), tuple(_LABELS[row["final_label"][0]] for row in rows)
    )


def fit(data: Labelled) -> RefusalModel:
    """The most likely weights under a prior whose strength the same file decides."""
    told, full = told_of(data), is_full(data)
    weights = likely(told, full, strength_for(told, full))
    return RefusalModel(
        tuple(round(float(weight), 3) for weight in weights[:-1]), round(float(weights[-1]), 3)
    )


def strength_for(told: Floats, full: Floats) -> float:
    """The strength that does best on what the fit has not seen, as another system's answers will show it.

    Each feature in turn is unseen: the fit gets the answers without it, and is scored by mean log loss on
    those that show it. Features count alike. Lengths are no feature to leave out: every answer has one.
    """
    shown = told[:, :-1] > 0
    unseen = [
        column
        for column in range(shown.shape[1])
        if NAMES[column] != "length"
        and shown[:, column].sum() >= FEWEST_SHOWN
        and (~shown[:, column]).sum() >= FEWEST_LEFT
    ]

    def loss(strength: float) -> float:
        losses = [
            log_loss(likely(told[~shows], full[~shows], strength), told[shows], full[shows])
            for shows in (shown[:, column] for column in unseen)
        ]
        return float(np.mean(losses))

    return min(STRENGTHS, key=loss)


def likely(told: Floats, full: Floats, strength: float) -> Floats:
    """The most likely weights under the prior, the bias last."""
    prior = np.array([*(PRIOR[name] for name in NAMES), PRIOR_BIAS])

    def unlikely(weights: Floats) -> tuple[float, Floats]:
        drawn = weights - prior
        surprise = len(told) * log_loss(weights, told, full) + strength / 2 * drawn @ drawn
        return surprise, told.T @ (expit(told @ weights) - full) + strength * drawn

    found = minimize(unlikely, prior, jac=True, method="BFGS", options={"gtol": 1e-7})
    weights: Floats = found.x
    return weights


def log_loss(weights: Floats, told: Floats, full: Floats) -> float:
    """Mean over answers, in nats."""
    for_full = told @ weights
    return float(np.logaddexp(0, np.where(full > 0, -for_full, for_full)).mean())


def told_of(data: Labelled) -> Floats:
    """Features of each answer, and 1 for the bias."""
    return np.array([(*astuple(features(text)), 1.0) for text in data.texts])


def is_full(data: Labelled) -> Floats:
    """1 where people called it a full refusal."""
    return np.array([label == "full" for label in data.labels], dtype=np.float64)


def agreement(model: RefusalModel, data: Labelled) -> Agreement:
    """Tests a model on a file."""
    said = [refusal(text, model) for text in data.texts]
    pairs = Counter(zip(said, data.labels, strict=True))
    right, wrong = pairs["full", "full"], pairs["full", "none"]
    partial = Counter(str(word) for word, label in zip(said, data.labels, strict=True) if label == "partial")
    return Agreement(right / (right + wrong), right / data.labels.count("full"), partial)


def main(folder: Path) -> None:
    """Prints the table of docs/releases.md and the weights fitted on both files."""
    files = {name: load(folder, name) for name in FILES}
    print("| fitted on | tested on | precision | recall | partial refusals told as full, partial, none |")
    print("|-|-|-|-|-|")
    for one, other in (FILES, FILES[::-1]):
        print(f"{one}: strength {strength_for(told_of(files[one]), is_full(files[one])):g}", file=sys.stderr)
        told = agreement(fit(files[one]), files[other])
        apart = ", ".join(str(told.partial[word]) for word in ("full", "partial", "none"))
        print(f"| {one} | {other} | {told.precision:.3f} | {told.recall:.3f} | {apart} |")
    both = Labelled(
        files[FILES[0]].texts + files[FILES[1]].texts, files[FILES[0]].labels + files[FILES[1]].labels
    )
    print(fit(both))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

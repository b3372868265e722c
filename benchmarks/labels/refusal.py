"""`python -m benchmarks.labels.refusal FOLDER`: fits on one file of XSTest, tests on the other.

The fit is a logistic regression drawn towards `PRIOR`, which says what each feature should mean for any
system: on one system's answers alone a feature that it never shows would get no weight.
"""

import csv
import gzip
import sys
from collections import Counter
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

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
STRENGTH = 20.0
"""Precision of the Gaussian prior around `PRIOR`, one answer's information being at most 1/4."""
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
    """The most likely weights under the prior, by Newton's method."""
    prior = np.array([*(PRIOR[name] for name in NAMES), PRIOR_BIAS])
    told = np.array([(*astuple(features(text)), 1.0) for text in data.texts])
    full = np.array([label == "full" for label in data.labels], dtype=np.float64)
    weights = prior.copy()
    step = np.ones_like(weights)
    while np.abs(step).max() > 1e-9:
        chance = 1 / (1 + np.exp(-told @ weights))
        slope = told.T @ (chance - full) + STRENGTH * (weights - prior)
        bend = (told.T * (chance * (1 - chance))) @ told + STRENGTH * np.eye(len(weights))
        step = np.linalg.solve(bend, slope)
        weights = weights - step
    return RefusalModel(
        tuple(round(float(weight), 3) for weight in weights[:-1]), round(float(weights[-1]), 3)
    )


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
        told = agreement(fit(files[one]), files[other])
        apart = ", ".join(str(told.partial[word]) for word in ("full", "partial", "none"))
        print(f"| {one} | {other} | {told.precision:.3f} | {told.recall:.3f} | {apart} |")
    both = Labelled(
        files[FILES[0]].texts + files[FILES[1]].texts, files[FILES[0]].labels + files[FILES[1]].labels
    )
    print(fit(both))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

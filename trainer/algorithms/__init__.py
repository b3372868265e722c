"""What a round learns from and minimises; one method a file, all behind one interface (`base.Algorithm`)."""

from importlib import import_module

from trainer.algorithms.base import Algorithm
from trainer.config import RoundConfig


def algorithm_of(config: RoundConfig) -> Algorithm:
    """The method that a round's configuration asks for."""
    made: Algorithm = import_module(f"trainer.algorithms.{config.method.value}").make(config)
    return made

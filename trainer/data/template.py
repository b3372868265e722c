"""Data and model must have been rendered with one chat template; told without a tokenizer."""

from ratchet.canonical import short
from trainer.errors import TemplateMismatch


def require_template(expected: str, actual: str, *, data: str, model: str) -> None:
    """Refuses to mix data and a model of different chat templates.

    Args:
        expected: Digest the data was made for.
        actual: Digest of the model's.
        data: What to call the data.
        model: What to call the model.

    Raises:
        TemplateMismatch: The digests differ.
    """
    if expected != actual:
        raise TemplateMismatch(
            f"{data} was made for the chat template {short(expected)}, but {model} uses {short(actual)}; "
            "answers would be learned in a format that is never served: choose a model of the same family, "
            "or make the data for this one"
        )

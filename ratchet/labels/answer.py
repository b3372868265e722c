"""Every label of one answer, as `serving.response.labels` keeps them."""

from ratchet.labels.language import language
from ratchet.labels.refusal import refusal
from ratchet.labels.repetition import repetition
from ratchet.labels.truncation import truncated

ENGLISH = "en"


def labels_of(text: str, finish_reason: str | None) -> dict[str, str | bool | None]:
    """Labels an answer.

    Args:
        text: The answer.
        finish_reason: As the OpenAI API has it; None where it is not known.

    Returns:
        `refusal` (full, partial, none; None in another language than English, the only one its model knows),
        `repetition`, `truncated`, `language`; each None where it cannot be told.
    """
    spoken = language(text)
    return {
        "refusal": refusal(text) if spoken in (ENGLISH, None) else None,
        "repetition": repetition(text),
        "truncated": truncated(text, finish_reason),
        "language": spoken,
    }

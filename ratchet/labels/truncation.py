"""Was an answer cut off? By what the engine says, and where it says nothing, by how the text ends."""

import re

_SHORTEST = 40
_FENCE = re.compile(r"^ {0,3}(?:```|~~~)", re.MULTILINE)
_NO_PROSE = re.compile(r"^\s*(?:[-*•|#>]|\d+[.)])|\|\s*$|^(?: {4}|\t)")
_ENDS = tuple(".!?…。！？\"'”’»)]}*_`:|>~")


def truncated(text: str, finish_reason: str | None) -> bool | None:
    """Whether an answer ends before it was done.

    Args:
        text: The answer.
        finish_reason: As the OpenAI API has it; None where it is not known.

    Returns:
        None where neither the reason nor the text tells.
    """
    if finish_reason is not None:
        return finish_reason == "length"
    shown = text.rstrip()
    if not shown:
        return None
    if len(_FENCE.findall(shown)) % 2:
        return True
    last = shown.splitlines()[-1]
    if shown.endswith(_ENDS):
        return False
    return None if len(last) < _SHORTEST or _NO_PROSE.search(last) else True

"""Beta, the strength of DPO's pull towards the reference: its usual range, checked without torch."""

import warnings

BETA_RANGE = (0.05, 0.5)


class BetaWarning(UserWarning):
    """A beta outside the range in which DPO is known to behave."""


def check_beta(beta: float) -> None:
    """Warns of a beta outside 0.05 to 0.5.

    Raises:
        ValueError: It is not above zero.
    """
    if not 0 < beta < float("inf"):
        raise ValueError(f"beta is {beta}; a number above zero is expected")
    low, high = BETA_RANGE
    if not low <= beta <= high:
        consequence = (
            "the policy can run far from the reference and its answers come apart"
            if beta < low
            else "the policy will hardly move from the reference"
        )
        warnings.warn(f"beta is {beta}, outside [{low}, {high}]: {consequence}", BetaWarning, stacklevel=3)

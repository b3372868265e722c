"""Whether users fall to the arms as the plan's share says, tested at every look.

Lindon & Malek, "Anytime-valid inference for multinomial count data", NeurIPS 2022, section 3: the Bayes
factor of a Dirichlet-multinomial against the planned shares is a martingale under them, so its inverse is a
p-value at any look.
"""

import math

CONCENTRATION = 100.0
"""Weight of the prior around the planned shares, in users; section 3.3 there scales it so."""


def log_bayes_factor(counts: tuple[int, ...], shares: tuple[float, ...]) -> float:
    """Log of the evidence against the shares.

    Args:
        counts: Users in each arm.
        shares: The planned shares, each above 0, together 1.
    """
    priors = [CONCENTRATION * share for share in shares]
    told = math.lgamma(sum(priors)) - math.lgamma(sum(priors) + sum(counts))
    for count, share, prior in zip(counts, shares, priors, strict=True):
        told += math.lgamma(prior + count) - math.lgamma(prior) - count * math.log(share)
    return told


def ratio_p_value(counts: tuple[int, ...], shares: tuple[float, ...]) -> float:
    """The p-value of these counts, valid however often one looks. Arguments as in `log_bayes_factor`."""
    return min(1.0, math.exp(min(700.0, -log_bayes_factor(counts, shares))))

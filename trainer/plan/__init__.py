"""Before a round: which method the labels at hand are good for, and whether it fits into memory."""

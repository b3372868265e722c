"""Losses as pure functions of log-probabilities or scores; one family a file.

Every function returns one value per example. What is minimised is their sum under explicit weights
(`reduce.weighted_sum`), never a mean over whatever happens to share a micro-batch.
"""

"""Judges: a model asked which of two answers is better. Never a default one; calibrated before it selects."""

"""Regret of selection on synthetic over-optimised runs."""

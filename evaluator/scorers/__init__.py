"""Scorers: an answer and what was expected in, an outcome with its reason out."""

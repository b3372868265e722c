"""Rounds as rows: asked for by anyone who may, carried out by the trainer's worker, told as they go."""

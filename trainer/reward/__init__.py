"""Reward models: a value head over a policy's architecture, measured before it is trusted, kept sealed."""

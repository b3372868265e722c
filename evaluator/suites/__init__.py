"""Suites: what a policy is asked on held-out ground, and how its answers are scored."""

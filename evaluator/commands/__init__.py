"""The evaluator's commands."""

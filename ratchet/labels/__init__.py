"""Torch-free judgements on text that several subsystems need.

Every label is None where a text is too short for it, so that what cannot be judged is never counted as fine.
"""

"""Every table, so that `Base.metadata` is whole once this package is imported."""

from ratchet.db.models import evaluation, feedback, operations, registry, releases, serving, training

__all__ = ["evaluation", "feedback", "operations", "registry", "releases", "serving", "training"]

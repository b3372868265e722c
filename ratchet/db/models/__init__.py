"""Every table, so that `Base.metadata` is whole once this package is imported."""

from ratchet.db.models import feedback, operations, registry, releases, serving, training

__all__ = ["feedback", "operations", "registry", "releases", "serving", "training"]

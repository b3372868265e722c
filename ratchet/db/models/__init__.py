"""Every table, so that `Base.metadata` is whole once this package is imported."""

from ratchet.db.models import operations, registry, serving

__all__ = ["operations", "registry", "serving"]

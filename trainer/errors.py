"""What the trainer's data and models can be refused for.

UsageError
├── SnapshotRefused    a snapshot's file is unreadable or lacks what its schema promises
│   └── NoUsableRows   every row was dropped; the message carries the counts by reason
├── TemplateMismatch   model and data were rendered with different chat templates
└── ModelUnsupported   an architecture whose attention or head the exact method does not cover
"""

from ratchet.errors import UsageError


class SnapshotRefused(UsageError):
    """A snapshot's file is unreadable or lacks what its schema promises."""


class NoUsableRows(SnapshotRefused):
    """Every row was dropped; the message carries the counts by reason."""


class TemplateMismatch(UsageError):
    """Model and data were rendered with different chat templates."""


class ModelUnsupported(UsageError):
    """An architecture whose attention or head the exact method does not cover."""

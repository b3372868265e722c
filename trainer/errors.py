"""What the trainer's data and models can be refused for.

RatchetError
├── UsageError
│   ├── SnapshotRefused    a snapshot's file is unreadable or lacks what its schema promises
│   │   └── NoUsableRows   every row was dropped; the message carries the counts by reason
│   ├── TemplateMismatch   model and data were rendered with different chat templates
│   ├── ModelUnsupported   an architecture whose attention or head the exact method does not cover
│   ├── ReferenceChanged   the reference policy is not the one the round began with
│   └── ResumeRefused      a round cannot go on from its saved state
├── EnvironmentFault
│   └── DiskFull           no room for a save; what was saved before is whole
└── RoundFailed            a loss or gradient is no finite number, or a process died
"""

from ratchet.errors import EnvironmentFault, RatchetError, UsageError


class SnapshotRefused(UsageError):
    """A snapshot's file is unreadable or lacks what its schema promises."""


class NoUsableRows(SnapshotRefused):
    """Every row was dropped; the message carries the counts by reason."""


class TemplateMismatch(UsageError):
    """Model and data were rendered with different chat templates."""


class ModelUnsupported(UsageError):
    """An architecture whose attention or head the exact method does not cover."""


class ReferenceChanged(UsageError):
    """The reference policy is not the one the round began with."""


class ResumeRefused(UsageError):
    """A round cannot go on from its saved state."""


class DiskFull(EnvironmentFault):
    """No room for a save; what was saved before is whole."""


class RoundFailed(RatchetError):
    """A loss or gradient is no finite number, or a process died."""

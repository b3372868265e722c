"""Every error Ratchet raises on purpose.

RatchetError                 something a person can mend; the message names cause and mend
├── UsageError               the command or its input is wrong            (exit code 2)
│   ├── ConfigError          a settings value or configuration file
│   ├── DecodeConfigError    a decode value out of range
│   ├── PolicyRefused        a model folder that cannot become a policy
│   └── NotFound             a name or id that no row has
├── EnvironmentFault         the machine or a service is not as needed    (exit code 2)
│   ├── AlreadyRunning       another stack holds this data folder
│   ├── PortTaken            a port we were told to use is in use
│   ├── DatabaseUnavailable  PostgreSQL cannot be reached or refuses us
│   └── SpoolFull            the recorder's spool has no room
└── EngineError              an inference engine misbehaves               (exit code 1)
    ├── EngineUnavailable    no proved engine serves the policy now
    └── StampMismatch        the engine is not the policy it claims to be
"""


class RatchetError(Exception):
    """Base of all errors raised on purpose; `str(error)` is one line fit for a person."""

    exit_code = 1


class UsageError(RatchetError):
    """The command or its input is wrong."""

    exit_code = 2


class ConfigError(UsageError):
    """A settings value or configuration file is wrong."""


class DecodeConfigError(UsageError):
    """A decode value is out of range or unknown."""


class PolicyRefused(UsageError):
    """A model folder that cannot become a policy."""


class NotFound(UsageError):
    """No row has this name or id."""


class EnvironmentFault(RatchetError):
    """The machine or a service is not as needed."""

    exit_code = 2


class AlreadyRunning(EnvironmentFault):
    """Another stack holds this data folder."""


class PortTaken(EnvironmentFault):
    """A port we were told to use is in use."""


class DatabaseUnavailable(EnvironmentFault):
    """PostgreSQL cannot be reached, or refuses us."""


class SpoolFull(EnvironmentFault):
    """The recorder's spool has no room for another byte."""


class EngineError(RatchetError):
    """An inference engine misbehaves."""


class EngineUnavailable(EngineError):
    """No proved engine serves the policy now."""


class StampMismatch(EngineError):
    """The engine is not the policy it claims to be."""

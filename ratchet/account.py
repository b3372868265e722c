"""Who runs a command, for the audit."""

import getpass
import os


def account() -> str:
    """The user's name; `uid N` where the system has none for it, as in many containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"

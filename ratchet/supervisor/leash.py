"""Becomes a command that gets SIGTERM when its parent dies, even of SIGKILL (Linux: PR_SET_PDEATHSIG).

Run as `python -I -S leash.py PARENT_PID COMMAND...`: setting the signal between fork and exec in the parent
itself would run Python there, which is not safe beside threads.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Sets the signal and becomes the command; does nothing when the parent is gone already."""
    parent, *command = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):
        sys.exit("the parent died before the command began")
    try:
        os.execvp(command[0], command)  # noqa: S606
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()

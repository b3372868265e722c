"""What the evaluator's processes see of this machine, and whether this machine can confine them at all.

A policy is selected by those who cannot have seen its reward. Database roles keep the evaluator from reward
rows and encryption from reward models; but all processes of a laptop's stack run as one user, who may read
every secret in the data folder and look into every process. So the evaluator's run confined (`confine.py`).
"""

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ratchet.artifacts import Kind
from ratchet.home import Home
from ratchet.supervisor import confine

LEFT = "its database role and the encryption of reward models are all that keeps it from rewards"
MEND = (
    "allow user namespaces (sysctl user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns=0)"
    ", or run the evaluator as another user or in a container of its own"
)
_CODE = Path(__file__).parents[2]
_DOORS = (Path("/tmp"), Path("/var/tmp"), Path("/run"))  # noqa: S108
"""Where other processes leave files and sockets: also those through which one could ask for anything."""
_NAMES = tuple(
    Path("/run") / name for name in ("systemd/resolve", "resolvconf", "NetworkManager", "nscd", "postgresql")
)
"""What below them resolves host names or is a PostgreSQL of the operator's."""
_PROBE_TIMEOUT_S = 20


@dataclass(frozen=True)
class Confinement:
    """What a process sees.

    Attributes:
        hide: Covered; outer ones may hold shown ones.
        show: Put back, to be read.
        keep: Put back, to be written too.
    """

    hide: tuple[Path, ...]
    show: tuple[Path, ...]
    keep: tuple[Path, ...]

    def words(self) -> tuple[str, ...]:
        """What a command begins with so that it runs confined."""
        order = {"hide": _texts(self.hide), "show": _texts(self.show), "keep": _texts(self.keep)}
        return (sys.executable, "-I", "-S", confine.__file__, json.dumps(order))


def of_evaluator(home: Home, sockets: Path | None) -> Confinement:
    """Policies to read, judges and its own reports to write, and nothing else of the data folder.

    Folders that are shown are made where they are not there yet.

    Args:
        home: The data folder.
        sockets: Folder of the embedded PostgreSQL's socket.
    """
    policies = home.artifacts / Kind.POLICY.value
    written = (home.artifacts / Kind.JUDGE.value, home.evaluation, home.run / "evaluator")
    for folder in (policies, *written):
        folder.mkdir(parents=True, exist_ok=True)
    programs = (_CODE, Path(sys.prefix), Path(sys.base_prefix))
    return Confinement(
        hide=_once(home.root, Path(tempfile.gettempdir()), *_DOORS),
        show=_once(*programs, *_NAMES, policies, *([sockets] if sockets else [])),
        keep=_once(*written),
    )


def obstacle() -> str | None:
    """Why this machine confines no process; None where it does."""
    try:
        done = subprocess.run(
            [*Confinement(_once(*_DOORS), _once(_CODE, Path(sys.prefix), Path(sys.base_prefix)), ()).words(),
             sys.executable, "-I", "-S", "-c", ""],
            capture_output=True, text=True, check=False, timeout=_PROBE_TIMEOUT_S,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return None
    said = done.stderr.strip().splitlines()
    return said[-1] if said else f"the probe ended with code {done.returncode}"


def _once(*paths: Path) -> tuple[Path, ...]:
    return tuple(dict.fromkeys(path.resolve() for path in paths if path.exists()))


def _texts(paths: tuple[Path, ...]) -> list[str]:
    return [str(path) for path in paths]

"""Secrets of a stack on this machine: one file each in the data folder, readable by its owner only."""

import os
import secrets
from pathlib import Path

from ratchet.db.roles import SERVICE_ROLES, Role
from ratchet.errors import NotFound
from ratchet.home import Home


def write_secret(path: Path, text: str) -> None:
    """Writes a file of mode 0600 in one step, so that no reader ever sees half of it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    temporary.replace(path)


def role_file(home: Home, role: Role) -> Path:
    """Where the address of a role is kept."""
    return home.secrets / f"{role.service}.url"


def save_role_urls(home: Home, urls: dict[Role, str]) -> None:
    """Keeps the addresses that `migrations.run.provision_logins` gave."""
    for role, url in urls.items():
        write_secret(role_file(home, role), url)


def known_role_urls(home: Home) -> dict[Role, str]:
    """The addresses kept so far."""
    return {
        role: role_file(home, role).read_text().strip()
        for role in SERVICE_ROLES
        if role_file(home, role).exists()
    }


def role_url(home: Home, role: Role) -> str:
    """The address of one role.

    `RATCHET_<SERVICE>_DATABASE_URL` (such as `RATCHET_OPERATOR_DATABASE_URL`) comes before the data folder,
    for machines that are not the one where the stack was set up.

    Raises:
        NotFound: No stack was ever set up in this data folder.
    """
    from_environment = os.environ.get(f"RATCHET_{role.service.upper()}_DATABASE_URL")
    if from_environment:
        return from_environment
    path = role_file(home, role)
    if not path.exists():
        raise NotFound(
            f"no database address for {role.service} in {home.root}: start the stack there first "
            f"(`ratchet up --data-dir {home.root}`), or give --data-dir / RATCHET_HOME of the stack you mean"
        )
    return path.read_text().strip()


def shared_key(home: Home, name: str) -> str:
    """A random key made once for this data folder, such as the one between gateway and engines."""
    known = known_shared_key(home, name)
    if known is None:
        write_secret(_key_file(home, name), secrets.token_urlsafe(32))
    return known or _key_file(home, name).read_text().strip()


def known_shared_key(home: Home, name: str) -> str | None:
    """A key that `shared_key` made; None where it was never made."""
    try:
        return _key_file(home, name).read_text().strip()
    except FileNotFoundError:
        return None


def _key_file(home: Home, name: str) -> Path:
    return home.secrets / f"{name}.key"

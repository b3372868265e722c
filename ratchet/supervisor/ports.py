"""Ports: checked before anything slow, and named when they are taken."""

import errno
import socket

import psutil

from ratchet.errors import ConfigError, EnvironmentFault, PortTaken


def check(host: str, port: int) -> None:
    """Makes sure that a server could listen here now.

    Raises:
        PortTaken: Someone listens there; the message says who, where the machine lets us see.
        ConfigError: Not an address of this machine.
        EnvironmentFault: This user may not listen there.
    """
    try:
        _bind(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(
                f"port {port} on {host} is taken by {_listener(port)}: stop it, or choose another "
                f"(`--port {free_port(host)}` is free)"
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM):
            raise EnvironmentFault(
                f"this user may not listen on port {port}: choose one from 1024 on"
            ) from error
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen here now."""
    try:
        _bind(host, port)
    except OSError:
        return False
    return True


def free_port(host: str = "127.0.0.1") -> int:
    """A port nobody listens on now, chosen by the system."""
    return _bind(host, 0)


def near(host: str, wanted: int, taken: set[int]) -> int:
    """The wanted port if it is free, else one the system chooses.

    Args:
        host: Address to listen on.
        wanted: The port people would guess.
        taken: Ports promised to others.
    """
    if wanted <= 65_535 and wanted not in taken and is_free(host, wanted):
        return wanted
    return free_port(host)


def _bind(host: str, port: int) -> int:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
        return int(probe.getsockname()[1])


def _listener(port: int) -> str:
    try:
        found = next(
            link.pid
            for link in psutil.net_connections("tcp")
            if link.status == psutil.CONN_LISTEN and link.laddr and link.laddr.port == port
        )
        if found is not None:
            return f"process {found} ({' '.join(psutil.Process(found).cmdline())[:80]})"
    except (StopIteration, psutil.Error):
        pass
    return "another process"

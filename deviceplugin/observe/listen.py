"""Listening sockets for the views, or a sentence why there are none.

In: an address and a port, or the path of a unix socket. Out: bound sockets, or a path that is free to be bound.
Any error of the kernel becomes a ConfigError that names the flag. A host name is bound at each of its addresses
that this machine has, all on the same port.
"""

import errno
import os
import socket
import stat
from pathlib import Path

from deviceplugin.errors import ConfigError

_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)  # localhost may have an address of a family that is off here
_LONGEST = 107  # sun_path without its final zero


def bind_tcp(address: str, port: int) -> list[socket.socket]:
    """Sockets for `--query-addr` and `--query-port`; port 0 takes any free one."""
    bound: list[socket.socket] = []
    refusal: OSError | None = None
    try:
        for family, host in _places(address):
            try:
                bound.append(_bind(family, host, bound[0].getsockname()[1] if bound else port))
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                refusal = error
        if refusal and not bound:
            raise refusal
    except OSError as error:
        for one in bound:
            one.close()
        raise ConfigError(_refusal(address, port, error)) from None
    return bound


def _places(address: str) -> list[tuple[socket.AddressFamily, str]]:
    """IPv4 first, each address once."""
    found = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return sorted({(family, str(place[0])) for family, _, _, _, place in found}, key=lambda place: place[0])


def _bind(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    one = socket.socket(family, socket.SOCK_STREAM)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        one.setblocking(False)
        one.bind((host, port))
        one.listen(64)
    except OSError:
        one.close()
        raise
    return one


def _refusal(address: str, port: int, error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return f"--query-addr: {address} has no address; give one of this machine, or 0.0.0.0 for all"
    if error.errno == errno.EADDRINUSE:
        return f"--query-port: port {port} on {address} is in use; stop what listens there or give another port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--query-addr: {address} is no address of this machine; give one that is, or 0.0.0.0 for all"
    return f"--query-port: port {port} on {address} cannot be used: {os.strerror(error.errno or 0).lower()}"


def free_socket_path(path: Path) -> None:
    """Prepares the path of `--display-socket`: a socket without a server is removed."""
    length = len(os.fsencode(path))
    if length > _LONGEST:
        raise ConfigError(
            f"--display-socket: the path has {length} bytes and a unix socket takes {_LONGEST}; give a shorter one"
        )
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise ConfigError(
                f"--display-socket: the directory {path.parent} does not exist; create it first"
            ) from None
        return
    except OSError as error:
        raise ConfigError(f"--display-socket: {path} cannot be used: {error.strerror}") from None
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"--display-socket: {path} exists and is not a socket; remove it or give another path")
    if _answers(path):
        raise ConfigError(f"--display-socket: another process serves {path}; stop it or give another path")
    path.unlink(missing_ok=True)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.settimeout(0.5)
        try:
            caller.connect(str(path))
        except OSError:
            return False
        return True

"""Listening TCP sockets, or a sentence why there are none.

In: an address, a port, and the flags that gave them. Out: bound sockets. Any error of the kernel becomes a ConfigError
that names the flag. A host name is bound at each of its addresses that this machine has, all on the same port.
"""

import errno
import os
import socket

from deviceplugin.errors import ConfigError

_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)  # localhost may have an address of a family that is off here


def bind_tcp(address: str, port: int, *, address_flag: str, port_flag: str) -> list[socket.socket]:
    """Port 0 takes any free one."""
    bound: list[socket.socket] = []
    refusal: OSError | None = None
    try:
        for family, host in _places(address):
            try:
                taken = bound[0].getsockname()[1] if bound else port
                bound.append(socket.create_server((host, taken), family=family))
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                refusal = error
        if refusal and not bound:
            raise refusal
    except OSError as error:
        for one in bound:
            one.close()
        raise ConfigError(_refusal(address, port, error, address_flag, port_flag)) from None
    return bound


def _places(address: str) -> list[tuple[socket.AddressFamily, str]]:
    """IPv4 first, each address once."""
    found = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return sorted({(family, str(place[0])) for family, _, _, _, place in found}, key=lambda place: place[0])


def _refusal(address: str, port: int, error: OSError, address_flag: str, port_flag: str) -> str:
    if isinstance(error, socket.gaierror):
        return f"{address_flag}: {address} cannot be resolved; use an address of this machine, or 0.0.0.0 for all"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{address_flag}: {address} is not an address of this machine; use one that is, or 0.0.0.0 for all"
    if error.errno == errno.EADDRINUSE:
        return f"{port_flag}: port {port} on {address} is in use; stop what listens there or give another port"
    return f"{port_flag}: cannot listen on port {port} of {address}: {os.strerror(error.errno or 0).lower()}"

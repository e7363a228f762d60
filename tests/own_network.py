"""A network namespace for a part of a test, so that nothing that other tests do to the machine's network is seen in it.

A browser drops what is under way when an address of the machine comes or goes (ERR_NETWORK_CHANGED), and the e2e tests
that run beside it make and remove interfaces. Servers, and processes that are started inside, share the namespace and
have only the loopback interface. Without the right to make one, the machine's network is used.
"""

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

_OF_THREAD = "/proc/thread-self/ns/net"
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def own_network() -> Iterator[None]:
    """For this thread, and for threads and processes that it starts inside."""
    before = os.open(_OF_THREAD, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.unshare(_CLONE_NEWNET):
            yield
            return
        try:
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
            yield
        finally:
            _go_back(before)
    finally:
        os.close(before)


def _go_back(namespace: int) -> None:
    if _libc.setns(namespace, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "cannot return to the network of the machine")

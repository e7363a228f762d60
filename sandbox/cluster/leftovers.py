"""Removing a cluster, whether its test process ended well or was killed.

In: a layout. Out: nothing of it is left: processes, cgroups, bridge, settings, folders.
Not here: a graceful stop; for that, stop the programs first.
Invariant: only what carries the cluster's identifier is touched, and never a cluster whose owner lives: it holds the
lock.
"""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sandbox.cluster.cgroups import ClusterCgroup
from sandbox.cluster.layout import PREFIX, Layout
from sandbox.cluster.network import destroy_network
from sandbox.cluster.processes import run
from sandbox.cluster.sysctls import restore_sysctls


def remove_cluster(layout: Layout) -> None:
    ClusterCgroup(layout.name).destroy()
    destroy_network(layout)
    restore_sysctls(layout.sysctls)
    for mount in _mounts_under(layout.root):
        run(["umount", "--lazy", str(mount)], doing=f"unmounting {mount}")
    shutil.rmtree(layout.root)


def remove_abandoned_clusters() -> None:
    """Removes what runs whose process was killed left behind."""
    for root in Path("/tmp").glob(f"{PREFIX}*"):
        with root_lock(root / "lock") as taken:
            if taken:
                remove_cluster(Layout(root.name.removeprefix(PREFIX)))


@contextmanager
def turn() -> Iterator[None]:
    """One cluster begins at a time: two must not take the same subnet, nor one for abandoned that has just begun."""
    with Path("/tmp/e2e-begins.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def root_lock(path: Path) -> Iterator[bool]:
    """Holds the lock that says a cluster has an owner; false when another process holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _mounts_under(root: Path) -> list[Path]:
    mounts = (Path(line.split()[1]) for line in Path("/proc/self/mounts").read_text().splitlines())
    return sorted((mount for mount in mounts if mount.is_relative_to(root)), reverse=True)

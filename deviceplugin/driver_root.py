"""The node's file system as seen below a driver root: `/host` in our container, a driver container's root, or `/`.

In: paths as the node's own programs name them. Out: the paths at which this process reaches the same files.
Invariant: symbolic links are followed as they would be on the node, so an absolute one starts again at the root and
nothing above the root is ever reached. Where only the node's /usr is mounted, /lib and its like are found in it.
"""

import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path

LIBRARY_DIRECTORIES = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/lib64",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
    "/usr/lib/i386-linux-gnu",
    "/usr/lib/i386-linux-gnu/nvidia/current",
    "/usr/lib/arm-linux-gnueabihf",
    "/usr/lib32",
    "/usr/lib",
    "/usr/lib/nvidia",
    "/usr/lib/wsl/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/opt/nvidia/lib64",
)
"""Where drivers put their libraries, for nodes without a cache of the loader; order decides between equals."""

PROGRAM_DIRECTORIES = (
    "/usr/local/nvidia/bin",
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
    "/opt/nvidia/bin",
    "/opt/bin",
)
"""PATH of the node's root, with the places that drivers add."""

CACHE = "/etc/ld.so.cache"
_MERGED = ("lib", "lib32", "lib64", "bin", "sbin")
_MOST_LINKS = 40


class DriverRoot:
    """`path` is where the node's root directory is for this process."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def resolve(self, inside: str) -> Path | None:
        """The file or directory itself, free of links below the root; None if there is none."""
        pending, done, links = deque(inside.split("/")), list[str](), 0
        while pending:
            part = pending.popleft()
            if part in ("", "."):
                continue
            if part == "..":
                del done[-1:]
                continue
            target = _link_target(self.path.joinpath(*done, part))
            if target is None and not done and part in _MERGED:
                pending.extendleft((part, "usr"))
            elif target is None:
                return None
            elif target:
                links += 1
                if links > _MOST_LINKS:
                    return None
                if target.startswith("/"):
                    done.clear()
                pending.extendleft(reversed(target.split("/")))
            else:
                done.append(part)
        return self.path.joinpath(*done)

    def listing(self, directory: str) -> Iterator[str]:
        """Names in a directory, sorted; none if it cannot be read."""
        found = self.resolve(directory)
        try:
            names = sorted(each.name for each in found.iterdir()) if found is not None else []
        except OSError:
            return
        yield from names


def _link_target(path: Path) -> str | None:
    """Empty for what is no link, None for what is not there or cannot be reached."""
    try:
        return str(path.readlink())
    except OSError:
        return "" if os.path.lexists(path) else None

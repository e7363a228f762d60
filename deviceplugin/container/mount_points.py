"""What a process sees mounted, from /proc/PID/mountinfo (proc_pid_mountinfo(5)).

In: the bytes of the file. Out: `MountPoint`s; a line that is none is left out. A mount is identified by its file
system's number and the directory of that file system which it shows: nobody without rights on the node can make a mount
that shows a directory which he does not have, whatever names he gives.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_ESCAPED = re.compile(r"\\([0-7]{3})")
_DELETED = "//deleted"


@dataclass(frozen=True, slots=True)
class MountPoint:
    """`device`: the file system, `root` what of it is shown, `path` where, `type` the file system's kind.

    `shared`: what is mounted below it is seen in other mount namespaces too.
    """

    device: str
    root: str
    path: Path
    type: str
    shared: bool


def read_mounts(text: bytes) -> Iterator[MountPoint]:
    for line in text.decode(errors="surrogateescape").split("\n"):
        if (found := _parse(line)) is not None:
            yield found


def _parse(line: str) -> MountPoint | None:
    """`36 35 98:0 /root /mount options shared:1 - type source options`; the optional fields end with the hyphen."""
    before, separator, after = line.partition(" - ")
    fields, kinds = before.split(" "), after.split(" ")
    if not separator or len(fields) < 6:
        return None
    root, path = (_ESCAPED.sub(lambda found: chr(int(found[1], 8)), field) for field in fields[3:5])
    shared = any(each.startswith("shared:") for each in fields[6:])
    return MountPoint(fields[2], root, Path(path), kinds[0], shared)


@dataclass(frozen=True, slots=True)
class MountedFolder:
    """A directory as its file system names it, wherever it is mounted; `root` has no slash at its end."""

    device: str
    root: str

    @classmethod
    def of(cls, directory: Path, mounts: Iterable[MountPoint]) -> "MountedFolder | None":
        """By what this process sees mounted: the last of the deepest mounts above it counts."""
        above = [each for each in mounts if directory.is_relative_to(each.path)]
        if not above:
            return None
        depth = max(len(each.path.parts) for each in above)
        mount = [each for each in above if len(each.path.parts) == depth][-1]
        below = directory.relative_to(mount.path).parts
        return cls(mount.device, "/".join((mount.root.rstrip("/"), *below)))

    def child_shown(self, mount: MountPoint) -> str:
        """The name of the directory in this one of which a mount shows something, also where it was removed."""
        if mount.device != self.device or not mount.root.startswith(f"{self.root}/"):
            return ""
        return mount.root.removesuffix(_DELETED)[len(self.root) + 1 :].partition("/")[0]

"""Memory that many share: how much of it one body or answer takes, and how much is left to others.

In: sizes. Out: whether there is room. Each `Room` is counted against several limits at once: that of a path, that of a
peer on this path. So uploads to one path or from one peer do not close another.
"""

from collections import Counter
from collections.abc import Mapping

import msgspec

from deviceplugin.serve.messages import busy

Key = tuple[str, ...]


class Room(msgspec.Struct):
    """What one body takes of each of its `limits`, in bytes, as `held` counts for all. Its first `free` are free."""

    held: Counter[Key]
    limits: Mapping[Key, int]
    free: int = 0
    taken: int = 0

    def grow(self, size: int) -> None:
        """To `size` bytes, if that is more; HttpError with status 503 if a limit would be exceeded."""
        more = size - self.free - self.taken
        if more <= 0:
            return
        if any(self.held[each] + more > limit for each, limit in self.limits.items()):
            raise busy()
        self._add(more)

    def leave(self) -> None:
        self._add(-self.taken)
        for each in self.limits:
            if not self.held[each]:
                del self.held[each]

    def _add(self, size: int) -> None:
        self.taken += size
        for each in self.limits:
            self.held[each] += size

    def __enter__(self) -> "Room":
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

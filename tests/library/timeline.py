"""The emulated driver's timeline (shared/timeline.h), loaded from C, without a clock: time is what a test says."""

import ctypes
from pathlib import Path

from tests.library.compiler import SHARED, compiled
from tests.library.machine import EMULATOR

_ACCESS = Path(__file__).parent / "native/timeline_access.c"

_NUMBERS = (
    "timeline_reached",
    "timeline_predict",
    "access_t",
    "access_v",
    "access_end",
    "access_got",
    "access_busy",
    "access_sampled",
)
NEVER = 2**64 - 1


def build(directory: Path) -> ctypes.CDLL:
    sources = (_ACCESS, EMULATOR / "shared/timeline.c")
    library = ctypes.CDLL(str(compiled(directory / "timeline.so", *SHARED, f"-I{EMULATOR}", *sources)))
    for name in _NUMBERS:
        getattr(library, name).restype = ctypes.c_uint64
    library.access_size.restype = ctypes.c_size_t
    library.access_extend.restype = ctypes.c_bool
    return library


class Timeline:
    """One GPU. Processes are numbers of slots."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._memory = ctypes.create_string_buffer(library.access_size())

    def _number(self, name: str, *arguments: int) -> int:
        return int(getattr(self._library, name)(self._memory, *map(ctypes.c_uint64, arguments)))

    def advance(self, now: int) -> None:
        self._library.timeline_advance(self._memory, ctypes.c_uint64(now))

    def run(self, slot: int, cost: int) -> int:
        """Queues work of the process behind what it has, as of the last advance. Where it ends in V."""
        end = max(self.end(slot), self.v) + cost
        self._library.timeline_start(self._memory, slot, ctypes.c_uint64(end))
        return end

    def extend(self, slot: int, cost: int) -> bool:
        """The same without the lock."""
        end = self.end(slot)
        return bool(self._library.access_extend(self._memory, slot, ctypes.c_uint64(end), ctypes.c_uint64(end + cost)))

    def forget(self, slot: int) -> None:
        self._library.timeline_forget(self._memory, slot)

    @property
    def t(self) -> int:
        return self._number("access_t")

    @property
    def v(self) -> int:
        return self._number("access_v")

    @property
    def busy(self) -> int:
        return self._number("access_busy")

    @property
    def active(self) -> int:
        return int(self._library.timeline_active(self._memory))

    def end(self, slot: int) -> int:
        return self._number("access_end", slot)

    def got(self, slot: int) -> int:
        return self._number("access_got", slot)

    def reached(self, v: int) -> int:
        return self._number("timeline_reached", v)

    def predict(self, v: int) -> int:
        return self._number("timeline_predict", v)

    def sampled(self, slot: int | None, now: int, periods: int) -> int:
        return self._number("access_sampled", 2**64 - 1 if slot is None else slot, now, periods)

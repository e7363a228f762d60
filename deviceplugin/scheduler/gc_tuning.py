"""How Python's collector of reference cycles is set: nobody may wait for it who waits for filter or bind.

In: nothing; the collector is the process's. Out: its thresholds. A collection takes about 1 us for each object that it
looks at, and a large cluster is two million objects that stay. Hence each object is looked at twice at most, with what
came at the same time, and then set aside: the longest pause is that of `_YOUNG * _MIDDLE` objects, however large the
cluster is. The collector is never off, so an API server that is away for hours costs no memory; and cycles that were
set aside while they were in use are found by `look_at_all`.
"""

import asyncio
import gc
from collections.abc import Mapping

_YOUNG = 2_000
_MIDDLE = 3
_NEVER = 1_000_000
_WHILE_LISTING = (50_000, 20, 1_000)
_LOOK_AT_ALL_EVERY_S = 3_600.0


def while_listing() -> None:
    """Nobody is answered yet, and what comes stays: no full collections, which would look at more and more."""
    gc.set_threshold(*_WHILE_LISTING)


def at_work() -> None:
    """Sets aside all that is there, and from now on what outlives a second look."""
    if _set_aside not in gc.callbacks:
        gc.callbacks.append(_set_aside)
    gc.set_threshold(_YOUNG, _MIDDLE, _NEVER)
    gc.collect()


async def look_at_all(every: float = _LOOK_AT_ALL_EVERY_S) -> None:
    """A pause of up to a second, seldom."""
    while True:
        await asyncio.sleep(every)
        gc.unfreeze()
        gc.collect()


def _set_aside(phase: str, info: Mapping[str, int]) -> None:
    if phase == "stop" and info["generation"] > 0:
        gc.freeze()

"""Sets Python's cycle collector so that filter and bind never wait for a long collection.

In: nothing; the collector belongs to the process. Out: its thresholds. A collection takes about 1 us for each object,
and a large cluster has two million objects that stay. So each object is examined at most twice, together with objects
of the same age, and then frozen: the longest pause is that of `_YOUNG * _MIDDLE` objects, however large the cluster is.
The collector is never off, so an API server that is down for hours costs no memory; `collect_all` finds cycles that
were frozen while in use.
"""

import asyncio
import gc
from collections.abc import Mapping

_YOUNG = 2_000
_MIDDLE = 3
_NEVER = 1_000_000
_LISTING_THRESHOLDS = (50_000, 20, 1_000)
_COLLECT_ALL_EVERY_S = 3_600.0


def relax_while_listing() -> None:
    """For the start: no request is answered yet and new objects stay, so full collections are pointless."""
    gc.set_threshold(*_LISTING_THRESHOLDS)


def freeze_survivors() -> None:
    """Freezes all objects now, and from now on those that survive a second collection."""
    if _freeze not in gc.callbacks:
        gc.callbacks.append(_freeze)
    gc.set_threshold(_YOUNG, _MIDDLE, _NEVER)
    gc.collect()


async def collect_all(every: float = _COLLECT_ALL_EVERY_S) -> None:
    """Pauses the process for up to a second, once an hour."""
    while True:
        await asyncio.sleep(every)
        gc.unfreeze()
        gc.collect()


def _freeze(phase: str, info: Mapping[str, int]) -> None:
    if phase == "stop" and info["generation"] > 0:
        gc.freeze()

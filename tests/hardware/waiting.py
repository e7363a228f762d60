"""Waiting for a condition instead of for a while."""

import asyncio
import time
from collections.abc import Callable


async def until(condition: Callable[[], object], *, within: float = 5.0) -> None:
    """Returns as soon as the condition holds; fails the test where it does not within so many seconds."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.005)

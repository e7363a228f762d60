"""Waiting for a condition instead of for a while, and work that goes on beside a test until it ends."""

import asyncio
import inspect
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

PATIENCE_S = 60.0  # nothing that works takes so long, however busy the machine is

_RETRY = {"maxAttempts": 5, "initialBackoff": "0.2s", "maxBackoff": "2s", "backoffMultiplier": 2}
_METHODS = [{"name": [{}], "retryPolicy": {**_RETRY, "retryableStatusCodes": ["UNAVAILABLE"]}}]
RETRYING = [("grpc.service_config", json.dumps({"methodConfig": _METHODS}))]
"""Options of a gRPC channel to a server that may just be ending: its socket takes a connection that nobody answers."""


async def until(
    condition: Callable[[], object],
    *,
    seen: Callable[[], object] | None = None,
    within: float = PATIENCE_S,
    every: float = 0.005,
) -> None:
    """Returns as soon as the condition holds; fails the test where it does not within so many seconds.

    The condition may be asynchronous. The failure shows what it was last, or what `seen` shows then.
    """
    last: object = "nothing"
    limit = asyncio.timeout(within)
    try:
        async with limit:
            while not (last := await _value(condition)):
                await asyncio.sleep(every)
    except TimeoutError:
        if not limit.expired():
            raise
        shown = seen() if seen is not None else last
        raise AssertionError(f"the condition did not come true within {within:g} s; seen last: {shown!r}") from None


async def _value(condition: Callable[[], object]) -> object:
    found = condition()
    return await found if inspect.isawaitable(found) else found


def eventually(condition: Callable[[], bool], within: float = PATIENCE_S) -> bool:
    """The same without a loop, for what other processes do: whether it came to hold."""
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


@asynccontextmanager
async def in_background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Work that runs until it is cancelled, and must not end before."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

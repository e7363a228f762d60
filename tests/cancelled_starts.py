"""What is left of a gRPC server when its start is cancelled, at each turn of the loop at which that can be.

In: `start` and `stop` of what owns the server. Out: an AssertionError where a server runs on after `stop`: gRPC ends
such a one in no way, and its destructor waits for ever, in whatever test comes next.
"""

import asyncio
import gc
from collections.abc import Awaitable, Callable

import grpc

_TURNS = 8
"""More than any start takes; the last of them finds it complete, and the test says so."""


async def cancel_at_each_turn(start: Callable[[], Awaitable[object]], stop: Callable[[], Awaitable[object]]) -> None:
    before = set(map(id, _running()))
    completed = []
    for turns in range(1, _TURNS + 1):
        starting = asyncio.ensure_future(start())
        for _ in range(turns):
            await asyncio.sleep(0)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        completed.append(not starting.cancelled())
        await stop()
        assert not [each for each in _running() if id(each) not in before], f"cancelled after {turns} turns"
    assert completed[-1]
    assert not completed[0]


def _running() -> list[grpc.aio.Server]:
    servers = [each for each in gc.get_objects() if isinstance(each, grpc.aio.Server)]
    return [each for each in servers if each._server.is_running()]  # type: ignore[attr-defined]

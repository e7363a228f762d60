"""Lets others have the event loop in the middle of long work.

Whoever walks over all nodes of a cluster for an answer that nobody hurries for calls `step` at each, because
kube-scheduler waits for its own answers on the same loop.
"""

import asyncio

_AT_ONCE = 32


class Pace:
    """For one walk."""

    def __init__(self) -> None:
        self._done = 0

    async def step(self) -> None:
        """After a look at one node, which takes some ten microseconds."""
        self._done += 1
        if self._done >= _AT_ONCE:
            await self.rest()

    async def rest(self) -> None:
        """After a placement of several containers, which may take milliseconds."""
        self._done = 0
        await asyncio.sleep(0)

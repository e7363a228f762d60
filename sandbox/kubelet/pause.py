"""A kubelet that hangs: alive, its sockets accept, and nothing is answered or done until it goes on.

In: `hang` and `resume` from tests. Out: a gate that every server and the sync loop pass. Nothing else.
"""

import asyncio


class Pause:
    """Open unless kubelet hangs."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()

    def hang(self) -> None:
        self._open.clear()

    def resume(self) -> None:
        self._open.set()

    async def passed(self) -> None:
        await self._open.wait()

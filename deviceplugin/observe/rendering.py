"""Renders what the views show: in one thread, one at a time, and once for all who ask at about the same time.

In: a `NodeView`, and functions that make something of its picture. Out: what they made, at most once in `period_s` and
when grants, GPUs or counters have changed; None where the function failed, which is in the log. The loop that answers
kubelet only takes the picture, so clients of the views, however many, cannot hold it.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import structlog

from deviceplugin.latest import Latest
from deviceplugin.observe.node_view import AgentState, NodePicture, NodeView

log = structlog.get_logger("vcuda.observe")
T = TypeVar("T")


class Rendering:
    """`name` says what is rendered: requests for one name get one result."""

    def __init__(self, view: NodeView, *, period_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.view = view
        self._latest: defaultdict[str, Latest[Any]] = defaultdict(lambda: Latest(period_s, clock))
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="views")

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def get(self, name: str, render: Callable[[NodePicture, AgentState], T], *, changes: int = 0) -> T | None:
        picture, state = self.view.picture(), self.view.state()

        async def make() -> T | None:
            try:
                return await asyncio.get_running_loop().run_in_executor(self._thread, render, picture, state)
            except Exception:
                log.exception("view_failed", view=name)
                return None

        basis = (changes, state, picture.inventory, picture.grants, picture.cordoned)
        found: T | None = await self._latest[name].get(make, basis)
        return found

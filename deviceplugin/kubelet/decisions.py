"""Both flows behind one face for the two plugin services, with the time that an Allocate took.

In: calls of `plugin.ResourcePlugin`. Out: what `allocate` and `start` decide.
"""

import time
from collections.abc import Callable, Sequence

from deviceplugin.kubelet.allocator import Allocating
from deviceplugin.kubelet.answer import Answer
from deviceplugin.kubelet.pre_start import Starting
from deviceplugin.model.units import Resource


class KubeletDecisions:
    """`on_answer` gets the seconds of each Allocate, answered or refused."""

    def __init__(self, allocating: Allocating, starting: Starting, *, on_answer: Callable[[float], None]) -> None:
        self._allocating = allocating
        self._starting = starting
        self._on_answer = on_answer

    async def prefer(
        self, resource: Resource, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str]:
        return await self._allocating.prefer(resource, available, must_include, size)

    async def allocate(self, resource: Resource, ids: Sequence[str]) -> Answer:
        began = time.perf_counter()
        try:
            return await self._allocating.allocate(resource, ids)
        finally:
            self._on_answer(time.perf_counter() - began)

    async def start(self, resource: Resource, ids: Sequence[str]) -> None:
        await self._starting.start(resource, ids)

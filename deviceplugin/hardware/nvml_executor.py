"""The one thread in which NVML is called, and the way to it from the event loop.

In: jobs, functions that take the `Nvml`. Out: their results, each within a time budget. A call of the driver may never
return (a GPU fell off the bus while the kernel holds its lock). Then the caller gets a HardwareError, the thread counts
as stuck, and until it returns every further job is refused at once. Events need no thread of their own: `nvml_events`
asks for them with a wait of a millisecond between two jobs, so a single thread serves all, NVML is never entered twice
at once, and nothing blocks a stop. Invariant: a job that was cancelled before it began never runs.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from deviceplugin.errors import HardwareError
from deviceplugin.hardware.nvml import Nvml

T = TypeVar("T")

DEFAULT_BUDGET_S = 5.0


@dataclass(slots=True, eq=False)
class _Job:
    what: str
    work: Callable[[Nvml], Any]
    future: "Future[Any]" = field(default_factory=Future)
    started: float = 0.0
    overdue: bool = False


class NvmlExecutor:
    """An executor of one daemon thread: a thread that hangs in the kernel must not keep the process from ending."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._current: _Job | None = None
        self._closed = False
        self._thread: threading.Thread | None = None

    @property
    def stuck_for(self) -> float:
        """Seconds since the job began that did not come back; 0 while the thread works."""
        job = self._stuck()
        return time.monotonic() - job.started if job is not None else 0.0

    async def run(self, work: Callable[[Nvml], T], *, what: str, budget: float = DEFAULT_BUDGET_S) -> T:
        """The job's result or its own error; HardwareError once the budget is spent."""
        if self._closed:
            raise HardwareError(f"{what}: NVML is closed, because the agent is stopping")
        if (stuck := self._stuck()) is not None:
            raise HardwareError(_stuck_sentence(what, stuck))
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="nvml", daemon=True)
            self._thread.start()
        job = _Job(what, work)
        self._jobs.put(job)
        try:
            async with asyncio.timeout(budget):
                result: T = await asyncio.wrap_future(job.future)
                return result
        except TimeoutError:
            job.overdue = not job.future.cancel()
            if job.overdue:
                raise HardwareError(_stuck_sentence(what, job)) from None
            raise HardwareError(f"{what}: NVML was busy for {budget:g} s with an earlier question; try again") from None
        finally:
            job.future.cancel()

    async def close(self, *, budget: float = DEFAULT_BUDGET_S) -> None:
        """Lets the thread finish what it does, shut NVML down and end; a stuck thread is left behind."""
        if not self._closed:
            self._closed = True
            self._jobs.put(None)
        if self._thread is not None and self._stuck() is None:
            await asyncio.to_thread(self._thread.join, budget)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.started = time.monotonic()
            self._current = job
            if job.future.set_running_or_notify_cancel():
                self._do(job)
            self._current = None
            del job  # a finished job must not keep its handles alive until the next one comes
        self._nvml.close()

    def _do(self, job: _Job) -> None:
        try:
            job.future.set_result(job.work(self._nvml))
        except BaseException as error:  # the caller gets it, the thread must go on
            job.future.set_exception(error)

    def _stuck(self) -> _Job | None:
        job = self._current
        return job if job is not None and job.overdue else None


def _stuck_sentence(what: str, stuck: _Job) -> str:
    inside = f" (in: {stuck.what})" if what != stuck.what else ""
    return (
        f"{what}: the NVIDIA driver has not answered for {time.monotonic() - stuck.started:.0f} s{inside}; "
        "see the kernel log (dmesg) for NVRM and reset the GPU or reboot the node"
    )

"""The one thread in which NVML is called, and the way to it from the event loop.

In: jobs, functions that take the `Nvml`. Out: their results, each within a time budget. A call of
the driver may never return (a GPU that fell off the bus while the kernel holds its lock): the caller then gets a
HardwareError, the
thread counts as stuck, and until it comes back every further job is refused at once instead of piling up behind it.
Events need no thread of their own: `events` asks for them with a wait of a millisecond between two jobs, so a single
thread serves all, NVML is never entered twice at once, and nothing blocks a stop.
Invariant: a job that was cancelled before it began never runs.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from deviceplugin.errors import HardwareError
from deviceplugin.hardware.nvml import Nvml

T = TypeVar("T")

DEFAULT_BUDGET_S = 5.0


@dataclass(slots=True, eq=False)
class _Job:
    what: str
    work: Callable[[Nvml], Any]
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Any]"
    started: float = 0.0
    cancelled: bool = False
    overdue: bool = False


class NvmlExecutor:
    """An executor of one daemon thread: a thread that hangs in the kernel must not keep the process from ending."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
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
        loop = asyncio.get_running_loop()
        job = _Job(what=what, work=work, loop=loop, future=loop.create_future())
        self._jobs.put(job)
        try:
            async with asyncio.timeout(budget):
                result: T = await job.future
                return result
        except TimeoutError:
            raise HardwareError(self._overdue(job, budget)) from None
        finally:
            job.cancelled = True

    async def close(self, *, budget: float = DEFAULT_BUDGET_S) -> None:
        """Lets the thread finish what it does, shut NVML down and end; a stuck thread is left behind."""
        if not self._closed:
            self._closed = True
            self._jobs.put(None)
        if self._thread is not None and self._stuck() is None:
            await asyncio.to_thread(self._thread.join, budget)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            if self._begin(job):
                self._do(job)
            del job  # a finished job must not keep its handles alive until the next one comes
        self._nvml.close()

    def _begin(self, job: _Job) -> bool:
        with self._lock:
            if job.cancelled:
                return False
            job.started = time.monotonic()
            self._current = job
            return True

    def _do(self, job: _Job) -> None:
        result: object = None
        error: BaseException | None = None
        try:
            result = job.work(self._nvml)
        except BaseException as caught:  # the caller gets it, the thread must go on
            error = caught
        with self._lock:
            self._current = None
        _deliver(job, result, error)

    def _overdue(self, job: _Job, budget: float) -> str:
        with self._lock:
            job.cancelled = True
            job.overdue = self._current is job
        if job.overdue:
            return _stuck_sentence(job.what, job)
        return f"{job.what}: NVML was busy for {budget:g} s with an earlier question; try again"

    def _stuck(self) -> _Job | None:
        job = self._current
        return job if job is not None and job.overdue else None


def _stuck_sentence(what: str, stuck: _Job) -> str:
    inside = f" (in: {stuck.what})" if what != stuck.what else ""
    return (
        f"{what}: the NVIDIA driver has not answered for {time.monotonic() - stuck.started:.0f} s{inside}; "
        "see the kernel log (dmesg) for NVRM and reset the GPU or reboot the node"
    )


def _deliver(job: _Job, result: object, error: BaseException | None) -> None:
    def settle() -> None:
        if job.future.done():
            return
        if error is None:
            job.future.set_result(result)
        else:
            job.future.set_exception(error)

    try:
        job.loop.call_soon_threadsafe(settle)
    except RuntimeError:
        return  # the loop ended meanwhile, and the caller with it

"""The threads in which NVML is called, one at a time, and the way to them from the event loop.

In: jobs, functions that take the `Nvml`. Out: their results; the budget is for each question to the driver. A call of
the driver may never return (a GPU fell off the bus while the kernel holds its lock). If the call is about one GPU, its
thread is given up and a new one serves the next jobs, which leave that GPU out (`hung`): the driver often answers about
the others. Otherwise the thread counts as stuck, and until it returns every further job is refused at once. Events need
no thread of their own: `nvml_session` asks for them with a wait of a millisecond between two jobs, so nothing blocks a
stop.
Invariants: a job that was cancelled before it began never runs; a thread that was given up asks nothing more.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

import msgspec

from deviceplugin.errors import GpuHangError, HardwareError
from deviceplugin.hardware.nvml import Nvml, Subject

T = TypeVar("T")

DEFAULT_BUDGET_S = 5.0
_MOST_BUDGETS = 6


class _Job(msgspec.Struct, eq=False):
    what: str
    work: Callable[[Nvml], Any]
    future: "Future[Any]" = msgspec.field(default_factory=Future)
    started: float = 0.0
    overdue: bool = False


class _Worker:
    """A daemon thread: one that hangs in the kernel must not keep the process from ending."""

    def __init__(self, nvml: Nvml) -> None:
        self.current: _Job | None = None
        self.given_up = False
        self._nvml = nvml
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="nvml", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def put(self, job: _Job | None) -> None:
        self._jobs.put(job)

    def join(self, budget: float) -> None:
        self._thread.join(budget)

    def _serve(self) -> None:
        while not self.given_up and (job := self._jobs.get()) is not None:
            job.started = time.monotonic()
            self.current = job
            if job.future.set_running_or_notify_cancel():
                self._do(job)
            self.current = None
            del job  # a finished job must not keep its handles alive until the next one comes

    def _do(self, job: _Job) -> None:
        try:
            self._nvml.take_over()
            job.future.set_result(job.work(self._nvml))
        except BaseException as error:  # the caller gets it, the thread must go on
            job.future.set_exception(error)


class NvmlExecutor:
    """One thread serves; those that were given up come back one day and end."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._worker: _Worker | None = None
        self._given_up: dict[int, tuple[_Worker, float]] = {}
        self._closed = False

    @property
    def stuck_for(self) -> float:
        """Seconds since the job began that did not come back; 0 while the thread works."""
        job = self._stuck()
        return time.monotonic() - job.started if job is not None else 0.0

    @property
    def hung(self) -> Mapping[int, float]:
        """For each GPU, by NVML's index, about which a question has not come back: since how many seconds."""
        now = time.monotonic()
        self._given_up = {index: at for index, at in self._given_up.items() if at[0].is_alive}
        return {index: now - since for index, (_worker, since) in self._given_up.items()}

    async def run(self, work: Callable[[Nvml], T], *, what: str, budget: float = DEFAULT_BUDGET_S) -> T:
        """The job's result or its own error; HardwareError once a question has taken the budget, or all of them six."""
        if self._closed:
            raise HardwareError(f"{what}: NVML is closed, because the agent is stopping")
        if (stuck := self._stuck()) is not None:
            raise HardwareError(_stuck_sentence(what, stuck))
        worker = self._worker = self._worker or _Worker(self._nvml)
        job = _Job(what, work)
        worker.put(job)
        answer: asyncio.Future[T] = asyncio.wrap_future(job.future)
        left = budget
        try:
            while left > 0 and not job.future.done():
                await asyncio.wait({answer}, timeout=left)
                left = self._patience(worker, job, budget)
            if job.future.done():
                return await answer
            job.overdue = not job.future.cancel()
        finally:
            answer.cancel()
            job.future.cancel()
        if job.overdue:
            raise self._overdue(worker, job)
        raise HardwareError(f"{what}: NVML was busy for {budget:g} s with an earlier question; try again")

    def require_all_threads(self, what: str) -> None:
        """Raises while a thread is still inside NVML: to close or unmap it then would end the process."""
        if self.hung:
            gpus = ", ".join(f"GPU {index}" for index in sorted(self.hung))
            raise HardwareError(
                f"{what}: the NVIDIA driver has not answered about {gpus} for {max(self.hung.values()):.0f} s; see the "
                "kernel log (dmesg) for NVRM and reset the GPU or reboot the node"
            )

    async def close(self, *, budget: float = DEFAULT_BUDGET_S) -> None:
        """Lets the thread finish what it does, shut NVML down and end; a stuck thread is left behind."""
        if self._worker is not None and not self._closed:
            self._worker.put(_Job("closing NVML", lambda nvml: None if self.hung else nvml.close()))
            self._worker.put(None)
        self._closed = True
        if self._worker is not None and self._stuck() is None:
            await asyncio.to_thread(self._worker.join, budget)

    def _patience(self, worker: _Worker, job: _Job, budget: float) -> float:
        """How much longer a job may take: a driver that answers one question after the other does not hang.

        On a busy machine hundreds of short questions can take long together, and no GPU is to blame for that.
        """
        if worker.current is not job:
            return 0.0
        answered_at = max(job.started, self._nvml.answered_at)
        return min(answered_at + budget, job.started + _MOST_BUDGETS * budget) - time.monotonic()

    def _overdue(self, worker: _Worker, job: _Job) -> HardwareError:
        """Gives the thread up if one GPU is to blame for it."""
        gpu = self._nvml.asking
        if gpu is None or worker.current is not job:
            return HardwareError(_stuck_sentence(job.what, job))
        worker.given_up = True
        self._nvml.disown()
        self._worker = None
        self._given_up[gpu.index] = (worker, job.started)
        worker.put(None)
        return GpuHangError(_stuck_sentence(job.what, job, gpu), index=gpu.index)

    def _stuck(self) -> _Job | None:
        job = self._worker.current if self._worker is not None else None
        return job if job is not None and job.overdue else None


def _stuck_sentence(what: str, stuck: _Job, gpu: Subject | None = None) -> str:
    inside = f" (in: {stuck.what})" if what != stuck.what else ""
    about = f" about {gpu}" if gpu is not None else ""
    return (
        f"{what}: the NVIDIA driver has not answered{about} for {time.monotonic() - stuck.started:.0f} s{inside}; "
        "see the kernel log (dmesg) for NVRM and reset the GPU or reboot the node"
    )

"""The NVML thread: one at a time, in order, each within its budget, and no pile behind a call that hangs."""

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable

import pytest

from deviceplugin.errors import GpuHangError, HardwareError
from deviceplugin.hardware.device import Device, count
from deviceplugin.hardware.nvml import Nvml, NvmlLibrary
from deviceplugin.hardware.nvml_executor import NvmlExecutor
from tests.hardware.conftest import Stub
from tests.waiting import until


@pytest.fixture
async def executor() -> AsyncIterator[NvmlExecutor]:
    one = NvmlExecutor(Nvml())
    yield one
    await one.close()


@pytest.fixture
async def asking(stub: Stub) -> AsyncIterator[NvmlExecutor]:
    """On the stub. A thread that is still inside the library when it is unmapped would end the test's process."""
    one = NvmlExecutor(Nvml(NvmlLibrary(path=stub.library)))
    yield one
    for order in ("slow", "hang.0"):
        (stub.orders / order).unlink(missing_ok=True)
    await until(lambda: one.stuck_for == 0.0 and not one.hung)
    await one.close()


def _blocks_until(event: threading.Event) -> Callable[[Nvml], str]:
    def work(_nvml: Nvml) -> str:
        assert event.wait(30)
        return "late"

    return work


def _notes(ran: list[int], number: int) -> Callable[[Nvml], None]:
    return lambda _nvml: ran.append(number)


async def test_a_result_and_an_error_go_to_who_asked(executor: NvmlExecutor) -> None:
    def fail(_nvml: Nvml) -> None:
        raise HardwareError("as ordered")

    assert await executor.run(lambda _nvml: 42, what="a question") == 42
    with pytest.raises(HardwareError, match="as ordered"):
        await executor.run(fail, what="a question")


async def test_every_job_runs_in_the_same_thread_and_none_beside_another(executor: NvmlExecutor) -> None:
    inside: set[str] = set()
    seen: list[str] = []

    def work(_nvml: Nvml) -> None:
        assert not inside
        inside.add("me")
        time.sleep(0.001)
        seen.append(threading.current_thread().name)
        inside.clear()

    await asyncio.gather(*(executor.run(work, what="work") for _ in range(30)))
    assert seen == ["nvml"] * 30


async def test_the_loop_turns_while_a_job_blocks(executor: NvmlExecutor) -> None:
    release = threading.Event()
    job = asyncio.create_task(executor.run(_blocks_until(release), what="a slow question"))
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert not job.done()
    release.set()
    assert await job == "late"


async def test_a_hung_driver_costs_its_caller_the_budget_and_everyone_else_nothing(executor: NvmlExecutor) -> None:
    release = threading.Event()
    try:
        with pytest.raises(HardwareError, match=r"^reading GPU 3: the NVIDIA driver has not answered for \d+ s; see"):
            await executor.run(_blocks_until(release), what="reading GPU 3", budget=0.05)
        assert executor.stuck_for > 0.04
        async with asyncio.timeout(4):  # shorter than any budget
            with pytest.raises(HardwareError, match=r"counting: .* \(in: reading GPU 3\); see the kernel log"):
                await executor.run(lambda _nvml: 1, what="counting", budget=20)
    finally:
        release.set()
    await until(lambda: executor.stuck_for == 0.0)
    assert await executor.run(lambda _nvml: 1, what="counting") == 1


async def test_a_job_given_up_in_the_queue_never_runs(executor: NvmlExecutor) -> None:
    release = threading.Event()
    ran: list[str] = []
    slow = asyncio.create_task(executor.run(_blocks_until(release), what="a slow question", budget=20))
    await asyncio.sleep(0)
    with pytest.raises(HardwareError, match=r"counting: NVML was busy for 0\.05 s with an earlier question"):
        await executor.run(lambda _nvml: ran.append("late"), what="counting", budget=0.05)
    cancelled = asyncio.create_task(executor.run(lambda _nvml: ran.append("cancelled"), what="counting"))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    release.set()
    assert await slow == "late"
    await executor.run(lambda _nvml: ran.append("after"), what="counting")
    assert ran == ["after"]
    assert executor.stuck_for == 0.0


async def test_jobs_do_not_pile_up_behind_a_hang(executor: NvmlExecutor) -> None:
    release = threading.Event()
    ran: list[int] = []
    try:
        with pytest.raises(HardwareError):
            await executor.run(_blocks_until(release), what="reading", budget=0.02)
        for number in range(100):
            with pytest.raises(HardwareError):
                await executor.run(_notes(ran, number), what="reading")
    finally:
        release.set()
    await until(lambda: executor.stuck_for == 0.0)
    await executor.run(lambda _nvml: ran.append(-1), what="reading")
    assert ran == [-1]


async def test_closing_ends_the_thread_and_refuses_what_comes_after() -> None:
    executor = NvmlExecutor(Nvml())
    await executor.run(lambda _nvml: None, what="counting")
    await executor.close()
    await executor.close()
    assert "nvml" not in [thread.name for thread in threading.enumerate()]
    with pytest.raises(HardwareError, match="NVML is closed"):
        await executor.run(lambda _nvml: None, what="counting")


async def test_closing_does_not_wait_for_a_hang() -> None:
    executor = NvmlExecutor(Nvml())
    release = threading.Event()
    try:
        with pytest.raises(HardwareError):
            await executor.run(_blocks_until(release), what="reading", budget=0.02)
        async with asyncio.timeout(4):
            await executor.close(budget=20)
    finally:
        release.set()
    await until(lambda: "nvml" not in [thread.name for thread in threading.enumerate()])


async def test_a_finished_job_keeps_nothing_alive(executor: NvmlExecutor) -> None:
    class Heavy:
        pass

    heavy = Heavy()
    gone = weakref.ref(heavy)

    def work(_nvml: Nvml, held: Heavy = heavy) -> bool:
        return held is not None

    assert await executor.run(work, what="holding")
    del heavy, work
    await until(lambda: gc.collect() >= 0 and gone() is None)


async def test_a_question_about_one_gpu_that_hangs_costs_a_thread_and_nothing_else(
    stub: Stub, asking: NvmlExecutor
) -> None:
    answered: list[int] = []

    def ask_each(nvml: Nvml) -> None:
        nvml.open()
        for index in range(count(nvml)):
            Device.at(nvml, index).utilization()
            answered.append(index)

    stub.order("hang.0")
    with pytest.raises(GpuHangError, match=r"asking: the NVIDIA driver has not answered about GPU 0 for \d+ s; see"):
        await asking.run(ask_each, what="asking", budget=0.1)
    assert (list(asking.hung), asking.stuck_for) == ([0], 0.0)
    assert await asking.run(count, what="counting") == 2
    with pytest.raises(HardwareError, match=r"closing: the NVIDIA driver has not answered about GPU 0 for \d+ s; see"):
        asking.require_all_threads("closing")
    stub.withdraw("hang.0")
    await until(lambda: not asking.hung)
    asking.require_all_threads("closing")
    assert answered == [], "what came too late is not used, and nothing more is asked"
    await asking.run(ask_each, what="asking")
    assert answered == [0, 1]
    await asking.close()
    assert "nvml" not in [thread.name for thread in threading.enumerate()]


async def test_a_driver_that_answers_slowly_does_not_hang(stub: Stub, asking: NvmlExecutor) -> None:
    """A busy machine made one GPU unhealthy, the one that was asked when all questions together had taken too long."""
    stub.order("slow", 150)
    assert await asking.run(_counts(10), what="counting", budget=1.0) == [2] * 10
    with pytest.raises(HardwareError, match="counting: the NVIDIA driver has not answered"):
        await asking.run(_counts(100), what="counting", budget=0.4)


def _counts(times: int) -> Callable[[Nvml], list[int]]:
    def work(nvml: Nvml) -> list[int]:
        nvml.open()
        return [count(nvml) for _ in range(times)]

    return work

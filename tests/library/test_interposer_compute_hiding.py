"""A container that hides its turns on the GPU, in real time on the emulated GPU: its neighbours keep their shares.

Tolerances as in test_interposer_compute_shares.py.
"""

import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from deviceplugin.container import activity
from deviceplugin.container.limit_monitor import GpuReading, LimitMonitor, Tolerance
from deviceplugin.model.gpu import Gpu
from sandbox.shared_gpu import SharedGpu, SharingContainer, shares
from tests.waiting import eventually

pytestmark = pytest.mark.realtime


@contextmanager
def spoiling(row: Path, how: str) -> Iterator[None]:
    """Writes into a row, until the end, what makes it say nothing of the processes that run."""
    over = threading.Event()

    def spoil() -> None:
        while not over.wait(0.005):
            with row.open("r+b") as file:
                if how == "magic":
                    file.write(bytes(8))
                elif how == "cut":
                    os.truncate(row, 100)
                else:
                    file.seek(activity.LIMITS_AT - 4)
                    file.write(bytes(4))  # no slot is in use

    spoiling = threading.Thread(target=spoil)
    spoiling.start()
    try:
        yield
    finally:
        over.set()
        spoiling.join()


@pytest.mark.parametrize(("how", "limits"), [("magic", (50, 50)), ("cut", (20, 50)), ("no-slots", (20, 30))])
def test_a_container_that_hides_its_turns_takes_nothing_from_another(
    gpu: SharedGpu, workload: Path, how: str, limits: tuple[int, int]
) -> None:
    """Security 8. Where the file can be read and says nothing, the agent has found out."""
    hiding, victim = (gpu.container(limit) for limit in limits)
    row = hiding.base / f"state/{gpu.uuid}.activity"
    with hiding.start(workload, "medium", "--seconds", 30), victim.start(workload, "medium", "--seconds", 4) as running:
        assert eventually(lambda: hiding.counters.charged_ns > 100_000_000, within=10)
        if how == "no-slots":
            hiding.assume(limits[0])
        with spoiling(row, how):
            (share,) = shares([running])
    assert share >= limits[1] - 4


def test_a_program_past_the_library_takes_nothing_but_what_it_uses(gpu: SharedGpu, workload: Path) -> None:
    """Security 8. Its container's limit is 20, it takes half of the GPU, and its row is silent. The agent tells so."""
    past, victim = gpu.container(20), gpu.container(50)
    past.assume(50)
    past.environment = gpu.native
    with past.start(workload, "medium", "--seconds", 30), victim.start(workload, "medium", "--seconds", 4) as running:
        (share,) = shares([running])
    assert share == pytest.approx(50, abs=4)


def load_of(gpu: SharedGpu, build: Path, pid: int) -> float:
    """Percent of the GPU's time, as the driver says."""
    command = [str(build / "vcuda-emulator"), "show", "--json"]
    shown = json.loads(subprocess.run(command, env=gpu.environment, check=True, capture_output=True).stdout)
    return float(sum(each["sm"] for each in shown["gpus"][0]["processes"] if each["pid"] == pid))


@contextmanager
def watched(gpu: SharedGpu, build: Path, container: SharingContainer, pid: int, limit: int) -> Iterator[list[int]]:
    """What the agent does each second: compares, and tells the neighbours. Out: what it told them."""
    over, told = threading.Event(), list[int]()
    monitor = LimitMonitor(tolerance=Tolerance(patience_s=2, window_s=3))
    one = Gpu(gpu.uuid, 0, 0, "GPU", 80 << 30)
    row = container.base / f"state/{gpu.uuid}.activity"

    def watch() -> None:
        before = activity.read(row, grant=container.grant)
        while not over.wait(0.5):
            now = activity.read(row, grant=container.grant)
            shown, before = activity.shown_percent(now, before), now
            reading = GpuReading("a/b/c", one, 1 << 40, limit, 0, None, load_of(gpu, build, pid), shown)
            monitor.check((reading,), now=time.monotonic())
            told.append(monitor.assumed_cores().get(gpu.uuid, 0))
            container.assume(told[-1])

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield told
    finally:
        over.set()
        watching.join()


@pytest.mark.parametrize("how", ["past-the-library", "silent", "honest"])
def test_the_agent_finds_a_container_that_hides_its_turns(
    gpu: SharedGpu, build: Path, workload: Path, how: str
) -> None:
    """Security 8, all of it: driver, activity file, monitor, the file for neighbours, their library."""
    hiding, victim = gpu.container(50), gpu.container(50)
    row = hiding.base / f"state/{gpu.uuid}.activity"
    if how == "past-the-library":
        hiding.environment = gpu.native
    with ExitStack() as stack:
        first = stack.enter_context(hiding.start(workload, "medium", "--seconds", 60))
        if how == "silent":
            stack.enter_context(spoiling(row, "no-slots"))
        told = stack.enter_context(watched(gpu, build, hiding, first.process.pid, 50))
        running = stack.enter_context(victim.start(workload, "medium", "--seconds", 4, "--warmup", 8))
        (share,) = shares([running])
    assert share >= 46
    assert bool(told[-1]) == (how != "honest")


def test_many_that_hide_their_turns_pay_for_each_other(gpu: SharedGpu, workload: Path) -> None:
    """Security 8: three of 20 percent, spoilt once, beside one of 40."""
    hiding, victim = [gpu.container(20) for _ in range(3)], gpu.container(40)
    with ExitStack() as stack:
        for one in hiding:
            stack.enter_context(one.start(workload, "medium", "--seconds", 30))
        running = stack.enter_context(victim.start(workload, "medium", "--seconds", 4))
        assert eventually(lambda: all(one.counters.charged_ns > 50_000_000 for one in hiding), within=20)
        for one in hiding:
            with (one.base / f"state/{gpu.uuid}.activity").open("r+b") as file:
                file.write(bytes(8))
        (share,) = shares([running])
    assert share >= 36

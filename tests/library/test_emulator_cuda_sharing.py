"""Several processes on one emulated GPU: time, memory, what is left of a dead one, and NVML's view."""

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.library.cuda_client import (
    DISABLE_TIMING,
    MIB,
    NOT_READY,
    OUT_OF_MEMORY,
    SMALL,
    SUCCESS,
    Process,
    room,
    start,
)
from tests.library.machine import Machine
from tests.waiting import eventually

pytestmark = pytest.mark.thorough

_CHILDREN = Path(__file__).parent / "children"
_MS = 1_000_000
_CONTEXT, _MODULE = 500, 2
_CAPACITY = 81920 - 618


def _gpu(machine: Machine, number: int = 0) -> dict[str, Any]:
    gpu: dict[str, Any] = machine.show()["gpus"][number]
    return gpu


def _left(process: Process) -> int:
    return int.from_bytes(process("cuMemGetInfo_v2", room(8), room(8))[0], "little") // MIB


def _milliseconds(process: Process, ns: int) -> float:
    """How long the GPU takes for work that is queued behind work."""
    stream = process.stream()
    process.launch(stream, 100 * _MS)
    before = process.record(stream)
    process.launch(stream, ns)
    return process.settled(before, process.record(stream))


@pytest.mark.parametrize("neighbours", [1, 2, 3])
def test_each_of_several_busy_processes_gets_an_equal_share(
    machine: Machine, process: Process, neighbours: int
) -> None:
    for _ in range(neighbours):
        other = start(machine)
        other.launch(other.stream(), 3_600_000 * _MS)
    assert _milliseconds(process, 20 * _MS) == pytest.approx(20.0 * (1 + neighbours), rel=0.01)


def test_work_of_different_gpus_does_not_meet(machine: Machine) -> None:
    process, other = start(machine), start(machine, ready=False)
    other.begin(1)
    other.launch(other.stream(), 3_600_000 * _MS)
    assert _milliseconds(process, 20 * _MS) == pytest.approx(20.0, rel=0.01)


def test_several_streams_of_a_process_get_no_more_than_one(machine: Machine) -> None:
    process, other = start(machine), start(machine)
    for _ in range(5):
        other.launch(other.stream(), 3_600_000 * _MS)
    assert _milliseconds(process, 20 * _MS) == pytest.approx(40.0, rel=0.01)


def test_a_killed_process_takes_no_time_any_more(machine: Machine) -> None:
    process, other = start(machine), start(machine)
    other.launch(other.stream(), 3_600_000 * _MS)
    assert _milliseconds(process, 20 * _MS) == pytest.approx(40.0, rel=0.01)
    other.kill()
    assert _milliseconds(process, 20 * _MS) == pytest.approx(20.0, rel=0.01)


def test_who_waits_sees_that_a_neighbour_died_meanwhile(machine: Machine) -> None:
    process, other = start(machine), start(machine)
    other.launch(other.stream(), 3_600_000 * _MS)
    stream = process.stream()
    before = process.record(stream)
    process.launch(stream, 400 * _MS)
    after = process.record(stream)
    process.tell(call="cuStreamSynchronize", args=[stream])
    other.kill()
    assert process.listen()["code"] == SUCCESS
    assert process.elapsed(before, after) < 700.0


def test_memory_is_one_account_for_all_processes(machine: Machine) -> None:
    one, other = start(machine), start(machine)
    free = _CAPACITY - 2 * (_CONTEXT + _MODULE)
    assert _left(one) == _left(other) == free
    one.get("cuMemAlloc_v2", 10_000 * MIB)
    assert _left(other) == free - 10_000
    assert other.code("cuMemAlloc_v2", room(8), (free - 9_999) * MIB) == OUT_OF_MEMORY
    assert other.code("cuMemAlloc_v2", room(8), (free - 10_000) * MIB) == SUCCESS
    assert one.code("cuMemAlloc_v2", room(8), 2 * MIB) == OUT_OF_MEMORY


def test_scripted_memory_and_processes_count(machine: Machine, process: Process) -> None:
    before = _left(process)
    machine.command("memory", 0, 1000)
    machine.command("process", "add", 0, 4242, 500)
    assert before - _left(process) == 1500


@pytest.mark.parametrize("look", ["allocate", "info", "show"])
def test_memory_of_a_killed_process_is_free_at_the_next_query(machine: Machine, look: str) -> None:
    process, other = start(machine), start(machine)
    other.get("cuMemAlloc_v2", 50_000 * MIB)
    other.kill()
    if look == "show":
        assert _gpu(machine)["used_mib"] == _CONTEXT + _MODULE
    elif look == "info":
        assert _left(process) == _CAPACITY - _CONTEXT - _MODULE
    else:
        assert process.code("cuMemAlloc_v2", room(8), 60_000 * MIB) == SUCCESS


def test_processes_killed_at_random_leave_time_and_memory_right(machine: Machine) -> None:
    """Killed while they launch, allocate and wait; the one that stays has the GPU to itself in the end."""
    seed = 20240
    rng = random.Random(seed)
    process = start(machine)
    free = _left(process)
    command = [sys.executable, "-S", str(_CHILDREN / "churning.py"), str(machine.build / "libcuda.so.1")]
    for _ in range(10):
        numbers = [str(rng.randrange(1 << 30)) for _ in range(3)]
        children = [
            subprocess.Popen([*command, number], env=machine.environment, stdout=subprocess.PIPE) for number in numbers
        ]
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == b"on\n"
        time.sleep(rng.uniform(0.0, 0.05))
        assert 0 <= _left(process) <= free
        for child in children:
            child.kill()
            child.communicate(timeout=10)
    assert _left(process) == free
    assert _milliseconds(process, 20 * _MS) == pytest.approx(20.0, rel=0.01)
    assert len(_gpu(machine)["processes"]) == 1


# ---- NVML's view ----


def test_nvml_lists_cuda_processes_with_their_memory(machine: Machine, process: Process) -> None:
    process.get("cuMemAlloc_v2", 1000 * MIB)
    nvml = machine.nvml()
    device = nvml.devices()[0]
    used = 1000 + _CONTEXT + _MODULE
    for generation in ("", "_v2", "_v3"):
        (listed,) = nvml.call(f"nvmlDeviceGetComputeRunningProcesses{generation}", device)
        assert (listed["pid"], listed["usedGpuMemory"]) == (process.process.pid, used * MIB)
    assert nvml.call("nvmlDeviceGetMemoryInfo", device)["used"] == (used + 618) * MIB
    assert nvml.call("nvmlDeviceGetGraphicsRunningProcesses", device) == []
    process.kill()
    assert _gpu(machine)["processes"] == []


def test_process_utilisation_has_a_sample_for_each_busy_process(machine: Machine) -> None:
    """nvmlDeviceGetProcessUtilization: samples newer than the time given; processes that used nothing have none."""
    busy, idle = start(machine), start(machine)
    busy.launch(busy.stream(), 3_600_000 * _MS)
    nvml = machine.nvml()
    device = nvml.devices()[0]
    assert eventually(lambda: _gpu(machine)["processes"][0]["sm"] == 100, within=10)
    samples = nvml.call("nvmlDeviceGetProcessUtilization", device, 0)
    assert [(sample["pid"], sample["smUtil"]) for sample in samples] == [(busy.process.pid, 100)]
    assert idle.code("cuCtxSynchronize") == SUCCESS


def test_utilisation_is_the_busy_time_of_the_last_second(machine: Machine) -> None:
    one, other = start(machine), start(machine)
    assert _gpu(machine)["gpu_util"] == 0
    for process in (one, other):
        process.launch(process.stream(), 3_600_000 * _MS)
    assert eventually(lambda: _gpu(machine)["gpu_util"] == 100, within=10)
    assert sorted(entry["sm"] for entry in _gpu(machine)["processes"]) == [50, 50]
    one.kill()
    assert eventually(lambda: [entry["sm"] for entry in _gpu(machine)["processes"]] == [100], within=10)
    other.kill()
    assert eventually(lambda: _gpu(machine)["gpu_util"] == 0, within=10)


def test_energy_counts_busy_time_and_never_runs_backwards(machine: Machine) -> None:
    machine.describe("hgx-a100")
    process, nvml = start(machine), machine.nvml()
    device = nvml.devices()[0]
    readings = [nvml.call("nvmlDeviceGetTotalEnergyConsumption", device) for _ in range(3)]
    stream = process.stream()
    process.launch(stream, 400 * _MS)
    for _ in range(40):
        readings.append(nvml.call("nvmlDeviceGetTotalEnergyConsumption", device))
        time.sleep(0.02)
    assert readings == sorted(readings)
    assert readings[-1] - readings[0] >= 0.4 * (400 - 62) * 1000


@pytest.mark.root
def test_pids_are_those_of_the_callers_namespace(machine: Machine) -> None:
    """As the open kernel modules report them: translated, and hidden where the caller cannot see the process."""
    outside = start(machine)
    show = [str(machine.build / "vcuda-emulator"), "show", "--json"]
    child = [sys.executable, "-S", str(_CHILDREN / "seeing_pids.py"), str(machine.build / "libcuda.so.1"), *show]
    command = ["unshare", "-pf", "--mount-proc", *child]
    with subprocess.Popen(
        command, env=machine.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as inside:
        assert inside.stdin is not None
        assert inside.stdout is not None
        own, seen = json.loads(inside.stdout.readline())
        assert own in seen
        assert outside.process.pid not in seen
        mine = [entry["pid"] for entry in _gpu(machine)["processes"]]
        assert outside.process.pid in mine
        assert len(set(mine)) == 2
        inside.stdin.write("\n")
        inside.stdin.flush()
        assert sorted(json.loads(inside.stdout.readline())) == sorted(mine)
        inside.stdin.close()


def test_a_process_that_only_waits_shows_no_utilisation(machine: Machine, process: Process) -> None:
    event = process.record(process.stream(), DISABLE_TIMING)
    assert process.code("cuEventQuery", event) in (SUCCESS, NOT_READY)
    assert [entry["sm"] for entry in _gpu(machine)["processes"]] == [0]
    assert process.launch_code(0, 1, SMALL) == SUCCESS

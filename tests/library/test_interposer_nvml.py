"""What NVML reports in a limited container: its share and processes, no settings; the same figures as CUDA."""

import os
import re
import subprocess
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from scripts.driver_functions import hooks
from tests.library.codes import INSUFFICIENT_SIZE, INVALID_ARGUMENT, MIB, NO_PERMISSION, SUCCESS, VERSION_MISMATCH
from tests.library.interposed import GIB, Container, device, start_time
from tests.library.machine import LIBRARY
from tests.library.test_interposer_loading import program

KINDS = {"Compute": "compute", "Graphics": "graphics", "MPSCompute": "mps"}
GENERATIONS = ("", "_v2", "_v3")
NOT_FOUND = 6
FOREIGN, HOST = 3_999_998, 3_999_999
Views = dict[str, dict[str, Any]]


def views(container: Container) -> Views:
    outcome = container.run("in_order", "shown", "shown_by_nvml")
    assert outcome.errors == ""
    return dict(zip(("cuda", "nvml"), outcome.value, strict=True))


def hold(container: Container, slot: int = 9, **uses: int) -> None:
    """Another process of the container, which lives: this one."""
    container.occupy(slot, os.getpid(), start_time(os.getpid()), **uses)


@pytest.mark.parametrize(
    ("limit", "used", "overhead"),
    [(2 * GIB, 0, 0), (2 * GIB, GIB, 0), (2 * GIB, GIB, 512 * MIB), (2 * GIB, 2 * GIB, 0), (7 * GIB + 1, 3 * GIB, 5)],
)
def test_all_views_agree_to_the_byte(container: Container, limit: int, used: int, overhead: int) -> None:
    container.grant(device(0, memory=limit))
    hold(container, used=used, overhead=overhead)
    free = limit - used - overhead
    seen = views(container)
    assert (seen["cuda"]["free"], seen["cuda"]["free alone"]) == (free, free)
    assert (seen["cuda"]["total"], seen["cuda"]["total of device"]) == (limit, limit)
    assert seen["nvml"]["v1"] == seen["nvml"]["v2"] == [limit, free, used + overhead]
    assert seen["nvml"]["reserved"] == 0


def test_use_above_the_limit_never_shows_as_less_than_nothing(container: Container) -> None:
    """After the limit was lowered, or when contexts grew."""
    container.grant(device(0, memory=GIB))
    hold(container, used=3 * GIB)
    seen = views(container)
    assert (seen["cuda"]["free"], seen["cuda"]["total"]) == (0, GIB)
    assert seen["nvml"]["v1"] == [GIB, 0, GIB]


def test_a_limit_above_what_the_gpu_has_shows_the_gpu(container: Container) -> None:
    container.grant(device(0, memory=200 * GIB))
    seen = views(container)
    assert (seen["cuda"]["free"], seen["cuda"]["total"], seen["cuda"]["total of device"]) == (
        79 * GIB,
        80 * GIB,
        80 * GIB,
    )
    assert seen["nvml"]["v1"][0] == 80 * GIB


def test_without_a_memory_limit_the_driver_is_heard(container: Container) -> None:
    unlimited = views(container)
    container.grant(device(0, memory=0))
    assert views(container) == unlimited
    assert unlimited["cuda"]["total"] == unlimited["nvml"]["v1"][0] == 80 * GIB


def test_old_programs_hear_at_most_what_32_bits_hold(container: Container) -> None:
    container.grant(device(0, memory=3 * GIB))
    hold(container, used=GIB)
    assert views(container)["cuda"]["32 bit"] == [2 * GIB, 3 * GIB, 3 * GIB]
    container.grant(device(0, memory=50 * GIB), generation=2)
    assert views(container)["cuda"]["32 bit"] == [3 * GIB, 4 * GIB - 4, 4 * GIB - 4]


def test_the_wrong_version_of_the_struct_is_still_the_drivers_to_refuse(container: Container) -> None:
    container.grant(device(0))
    assert views(container)["nvml"]["wrong version"] == VERSION_MISMATCH


@pytest.fixture
def busy(container: Container, build: Path) -> Container:
    """The driver lists: a process of the container, one by its host pid, and a neighbour; on all three lists."""
    container.grant(device(0), device(1))
    hold(container, used=GIB, overhead=MIB)
    (container.base / "pids.config").write_bytes(HOST.to_bytes(4, "little") + (12345).to_bytes(4, "little"))
    command = [str(build / "vcuda-emulator")]
    subprocess.run([*command, "init"], env=container.environment, check=True, stdout=subprocess.DEVNULL)
    for kind in KINDS.values():
        for pid in (FOREIGN, os.getpid(), HOST):
            added = ["process", "add", "0", str(pid), "77", "--type", kind]
            subprocess.run([*command, *added], env=container.environment, check=True)
            if kind != "mps":
                break
    return container


def test_a_container_sees_its_own_processes_with_what_the_ledger_says(busy: Container) -> None:
    own = sorted([[os.getpid(), GIB + MIB], [HOST, 77 * MIB]])
    told = {each: busy.run("running", 0, "MPSCompute", each, 10).value for each in GENERATIONS}
    seen = {each: (*rest, sorted(found)) for each, (*rest, found) in told.items()}
    assert seen == dict.fromkeys(GENERATIONS, (SUCCESS, 2, own))


def test_a_neighbour_is_on_no_list(busy: Container) -> None:
    asked = list(product(["Compute", "Graphics"], GENERATIONS, [10, 0]))
    assert [busy.run("running", 0, *each).value for each in asked] == [[SUCCESS, 0, []]] * len(asked)


def test_a_list_that_is_too_short_gets_the_required_length(busy: Container) -> None:
    for each in GENERATIONS:
        told = [busy.run("running", 0, "MPSCompute", each, room).value for room in (0, 1, 2)]
        assert told[:2] == [[INSUFFICIENT_SIZE, 2, []]] * 2, each
        assert told[2][:2] == [SUCCESS, 2], each


def test_malformed_questions_are_answered_by_the_driver(busy: Container) -> None:
    assert busy.run("running_without_count", 0).value == [INVALID_ARGUMENT] * 3


def test_a_gpu_that_is_not_limited_shows_everybody(busy: Container) -> None:
    busy.grant(device(1), generation=2)
    outcome = busy.run("running", 0, "MPSCompute", "_v3", 10)
    assert outcome.value[1] == 3
    assert "does not name GPU-00000000-0000-0000-0000-000000000001" in outcome.errors


def test_many_neighbours_are_filtered_too(busy: Container, build: Path) -> None:
    for pid in range(100):
        command = [str(build / "vcuda-emulator"), "process", "add", "0", str(FOREIGN - 200 + pid), "1"]
        subprocess.run(command, env=busy.environment, check=True)
    assert busy.run("running", 0, "Compute", "_v3", 1).value == [SUCCESS, 0, []]


LOADS = ("nvmlDeviceGetProcessUtilization", "nvmlDeviceGetProcessesUtilizationInfo")


@pytest.fixture
def loaded(container: Container, build: Path) -> Container:
    """The driver has loads of a process of the container, one by its host pid, and a neighbour."""
    container.grant(device(0))
    hold(container, used=GIB)
    (container.base / "pids.config").write_bytes(HOST.to_bytes(4, "little"))
    command = [str(build / "vcuda-emulator")]
    subprocess.run([*command, "init"], env=container.environment, check=True, stdout=subprocess.DEVNULL)
    for pid, percent in ((FOREIGN, 60), (os.getpid(), 20), (HOST, 10)):
        subprocess.run(
            [*command, "process", "add", "0", str(pid), "77", str(percent)], env=container.environment, check=True
        )
    return container


@pytest.mark.parametrize("function", LOADS)
def test_a_container_sees_the_load_of_its_own_processes_only(loaded: Container, function: str) -> None:
    """NVML D5. And their number, where there is too little room."""
    error, count, found = loaded.run("loads", 0, function, 10).value
    assert (error, count) == (SUCCESS, 2)
    assert sorted(found) == sorted([[os.getpid(), 20], [HOST, 10]])
    assert loaded.run("loads", 0, function, 0).value == [INSUFFICIENT_SIZE, 2, []]
    assert loaded.run("loads", 0, function, 1).value == [INSUFFICIENT_SIZE, 2, []]
    assert loaded.run("loads", 0, function, 2).value[:2] == [SUCCESS, 2]


@pytest.mark.parametrize("function", LOADS)
def test_without_a_load_of_its_own_there_is_none(loaded: Container, function: str) -> None:
    """As the driver answers where nobody uses the GPU."""
    loaded.occupy(9, 1, 1)
    (loaded.base / "pids.config").unlink()
    assert loaded.run("loads", 0, function, 10).value == [NOT_FOUND, 0, []]


def test_questions_for_loads_that_are_malformed_are_answered_by_the_driver(loaded: Container) -> None:
    assert loaded.run("loads_without_count", 0).value == [INVALID_ARGUMENT] * 2
    assert loaded.run("loads", 0, LOADS[1], 10, 9).value[0] == VERSION_MISMATCH


@pytest.mark.parametrize("function", LOADS)
def test_a_gpu_that_is_not_limited_shows_the_load_of_everybody(loaded: Container, function: str) -> None:
    loaded.grant(device(1), generation=2)
    assert loaded.run("loads", 0, function, 10).value[1] == 3


def test_the_list_of_newer_drivers_too(container: Container, short_tmp: Path) -> None:
    newer = program(short_tmp, "details.c", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1")
    container.stand_behind(nvml=newer)
    container.grant(device(0))
    (container.base / "pids.config").write_bytes(HOST.to_bytes(4, "little"))
    assert container.run("details", 5, 1).value == [SUCCESS, 1, [[HOST, 2]]]
    assert container.run("details", 0, 1).value == [INSUFFICIENT_SIZE, 1, []]
    assert container.run("details", 5, 9).value == [VERSION_MISMATCH, 5, []]


def test_a_struct_of_a_newer_version_is_refused_where_the_gpu_is_limited(container: Container, short_tmp: Path) -> None:
    """Its entries may be longer than the room that the library has for them, and may show everybody's processes."""
    newer = program(short_tmp, "details.c", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1")
    container.stand_behind(nvml=newer)
    assert container.run("details", 5, 2).value[:2] == [SUCCESS, 2]
    assert container.run("loads", 0, LOADS[1], 5, 2).value[0] == SUCCESS
    container.grant(device(0))
    assert container.run("details", 5, 2).value == [VERSION_MISMATCH, 5, []]
    assert container.run("loads", 0, LOADS[1], 5, 2).value == [VERSION_MISMATCH, 5, []]


def test_accounting_knows_the_containers_processes_only(container: Container, short_tmp: Path) -> None:
    driver = program(short_tmp, "details.c", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1")
    container.stand_behind(nvml=driver)
    assert container.run("accounted", 5).value == [SUCCESS, 2, [FOREIGN, HOST]]
    container.grant(device(0))
    (container.base / "pids.config").write_bytes(HOST.to_bytes(4, "little"))
    assert container.run("accounted", 5).value == [SUCCESS, 1, [HOST]]
    assert container.run("accounted", 0).value == [INSUFFICIENT_SIZE, 1, []]
    assert container.run("accounted_for", HOST).value == [[SUCCESS, True]] * 2
    assert container.run("accounted_for", FOREIGN).value == [[NOT_FOUND, False]] * 2


@pytest.mark.parametrize("source", ["", "details.c"], ids=["the emulated one", "with next to nothing"])
def test_a_hook_is_visible_where_nvml_has_the_function_and_nowhere_else(
    container: Container, short_tmp: Path, source: str
) -> None:
    """go-nvml takes the newest generation of a function that the linker finds."""
    if source:
        container.stand_behind(nvml=program(short_tmp, source, "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1"))
    ours = container.run("resolved", "libnvidia-ml.so.1", *hooks("nvml")).value
    real = container.run("resolved", "libnvidia-ml-real.so.1", *hooks("nvml")).value
    had = {name for name, (file, _) in real.items() if file}
    assert {name: file for name, (file, _) in ours.items() if file} == dict.fromkeys(had, "libnvidia-ml.so.1")
    assert 0 < len(had) < len(hooks("nvml"))


def test_settings_that_the_emulated_driver_does_not_have_are_refused_too(container: Container, short_tmp: Path) -> None:
    container.stand_behind(nvml=program(short_tmp, "details.c", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1"))
    declared = (LIBRARY / "include/nvml_functions.h").read_text()
    names = sorted(name for name in hooks("nvml") if re.search(r"Set|Reset|Clear", name) and f"{name}(" not in declared)
    assert len(names) == 12
    assert set(container.run("settings", *names).value.values()) == {SUCCESS}
    container.grant(device(0))
    assert set(container.run("settings", *names).value.values()) == {NO_PERMISSION}


@pytest.mark.root
def test_what_switches_the_whole_gpu_is_refused_where_it_is_shared(container: Container) -> None:
    free = container.run("switches", 0).value
    container.grant(device(0))
    limited = container.run("switches", 0).value
    assert free.pop("of no device") == limited.pop("of no device") == INVALID_ARGUMENT
    assert set(limited.values()) == {NO_PERMISSION}
    assert NO_PERMISSION not in free.values()
    assert free["compute mode"] == SUCCESS

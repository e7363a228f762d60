"""The shared state: made once, whole at every instant, and never blocked by a process that dies."""

import os
import select
import signal
import subprocess
import time
from pathlib import Path
from typing import IO

import pytest

from tests.library.codes import INVALID_ARGUMENT, NO_PERMISSION, SUCCESS, UNKNOWN, XID
from tests.library.machine import Machine, shipped

pytestmark = pytest.mark.thorough

_MS = 400


def _hammer(machine: Machine, hammer: Path, *words: object) -> subprocess.Popen[str]:
    return subprocess.Popen([hammer, *map(str, words)], env=machine.environment, stdout=subprocess.PIPE, text=True)


def _output(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdout is not None
    return process.stdout


def _end(process: subprocess.Popen[str]) -> str:
    said, _ = process.communicate(timeout=20)
    assert process.returncode == 0, said
    return said


@pytest.fixture
def empty(machine: Machine) -> Machine:
    """A machine on which nothing runs, as the hammer wants it."""
    machine.describe("hgx-a100")
    machine.command("init")
    return machine


def test_many_first_comers_make_one_state(machine: Machine) -> None:
    machine.describe("many-40")
    command = [str(machine.build / "vcuda-emulator"), "show", "--json"]
    first = [subprocess.Popen(command, env=machine.environment, stdout=subprocess.DEVNULL) for _ in range(12)]
    assert [process.wait(timeout=20) for process in first] == [0] * 12
    assert {path.name for path in machine.directory.iterdir()} == {machine.profile.name, "state"}


def test_readers_never_see_half_a_change(empty: Machine, hammer: Path) -> None:
    writers = [_hammer(empty, hammer, "write", _MS) for _ in range(2)]
    readers = [_hammer(empty, hammer, "read", _MS) for _ in range(2)]
    assert min(int(_end(process)) for process in [*writers, *readers]) > 0


def test_no_change_is_lost_between_writers(empty: Machine, hammer: Path) -> None:
    changes = [int(_end(process)) for process in [_hammer(empty, hammer, "write", _MS) for _ in range(4)]]
    assert min(changes) > 0
    assert len(empty.show()["gpus"][0]["processes"]) == sum(changes) % 256  # a change adds one, and starts again at 256


def test_threads_of_one_process_exclude_each_other_too(empty: Machine, hammer: Path) -> None:
    assert _end(_hammer(empty, hammer, "threads", _MS)) == ""


def test_a_killed_writer_blocks_no_other(empty: Machine, hammer: Path) -> None:
    nvml = empty.nvml()
    device = nvml.devices()[0]
    empty.command("util", 0, 33, 0)
    for _ in range(3):
        holder = _hammer(empty, hammer, "hold")
        assert _output(holder).readline() == "holding\n"
        assert nvml.call("nvmlDeviceGetUtilizationRates", device)["gpu"] == 33
        waiting = subprocess.Popen([str(empty.build / "vcuda-emulator"), "util", "0", "33", "0"], env=empty.environment)
        holder.kill()
        holder.communicate(timeout=10)
        assert waiting.wait(timeout=20) == 0
        assert nvml.call("nvmlDeviceGetUtilizationRates", device)["gpu"] == 33


def test_writers_killed_at_random_leave_the_state_whole(empty: Machine, hammer: Path) -> None:
    reader = _hammer(empty, hammer, "read", 1500)
    for round_ in range(12):
        writer = _hammer(empty, hammer, "write", 10_000)
        until = time.monotonic() + 0.005 * (round_ + 1)
        while time.monotonic() < until:
            time.sleep(0.002)
        writer.send_signal(signal.SIGKILL)
        writer.communicate(timeout=10)
    assert int(_end(reader)) > 0
    empty.command("util", 1, 5, 5)


def test_a_forked_child_has_a_lock_of_its_own(empty: Machine, hammer: Path) -> None:
    parent = _hammer(empty, hammer, "fork")
    words = _output(parent).readline().split()
    assert words[0] == "child"
    assert select.select([_output(parent)], [], [], 0.3)[0] == [], "the parent got in while the child was in"
    os.kill(int(words[1]), signal.SIGKILL)
    assert _end(parent) == "parent holding\n"


def test_a_state_of_another_profile_is_refused(machine: Machine) -> None:
    machine.describe("laptop")
    machine.command("show")
    machine.describe("hgx-a100")
    assert machine.nvml().error("nvmlInit") == UNKNOWN
    assert "made from another profile" in machine.errors.read_text()
    machine.command("init")
    assert len(machine.nvml().devices()) == 8


def test_a_state_needs_its_profile_no_longer(machine: Machine) -> None:
    machine.describe("laptop")
    machine.command("show")
    machine.profile.unlink()
    assert len(machine.nvml().devices()) == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not a state file"),
        (b"garbage", "not a state file"),
        (bytes(5_000_000), "not a state file"),
        (b"VCUDAUME\x63\0\0\0" + bytes(100_000), "another version"),
        (b"VCUDAUME" + b"\x01\0\0\0" + bytes(100_000), "another version"),
    ],
)
def test_what_is_not_a_state_is_refused_and_left_alone(machine: Machine, content: bytes, words: str) -> None:
    machine.describe("laptop")
    machine.state.write_bytes(content)
    done = machine.run("show")
    assert done.returncode == 2
    assert words in done.stderr
    assert machine.nvml().error("nvmlInit") == UNKNOWN
    assert machine.state.read_bytes() == content


def test_a_cut_state_is_refused(machine: Machine) -> None:
    machine.describe("laptop")
    machine.command("show")
    os.truncate(machine.state, 500_000)
    done = machine.run("show")
    assert done.returncode == 2
    assert "damaged" in done.stderr


def test_the_default_state_is_the_users_own_and_follows_the_profile(machine: Machine) -> None:
    machine.describe("laptop")
    environment = machine.environment | {"XDG_RUNTIME_DIR": str(machine.directory)}
    del environment["VCUDA_EMULATOR_STATE"]

    def paths() -> set[Path]:
        command = [str(machine.build / "vcuda-emulator"), "show"]
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, timeout=20)
        return set(machine.directory.glob("vcuda-emulator/*.state"))

    first = paths()
    assert len(first) == 1
    assert paths() == first
    machine.describe(shipped("hgx-a100"))
    assert len(paths()) == 2
    assert (machine.directory / "vcuda-emulator").stat().st_mode & 0o777 == 0o700


_NOBODY = 65534
_needs_root = pytest.mark.root


@_needs_root
def test_only_root_changes_a_gpu(machine: Machine) -> None:
    nvml, device = machine.first_gpu("hgx-a100")
    nvml.become(_NOBODY)
    for name, value in (("ComputeMode", 3), ("PersistenceMode", 0), ("PowerManagementLimit", 200_000)):
        assert nvml.error(f"nvmlDeviceSet{name}", device, value) == NO_PERMISSION
    nvml.become(0)
    assert nvml.error("nvmlDeviceSetComputeMode", device, 3) == SUCCESS
    assert nvml.error("nvmlDeviceSetPowerManagementLimit", device, 1) == INVALID_ARGUMENT


@_needs_root
def test_who_may_only_read_the_state_still_sees_it_and_its_events(machine: Machine) -> None:
    machine.describe("hgx-a100")
    machine.command("init")
    machine.directory.chmod(0o755)
    machine.state.chmod(0o644)
    nvml = machine.nvml()
    nvml.become(_NOBODY)
    device = nvml.devices()[0]
    events = nvml.call("nvmlEventSetCreate")
    nvml.call("nvmlDeviceRegisterEvents", device, XID, events)
    nvml.tell(call="nvmlEventSetWait_v2", args=[events, 20_000])
    machine.command("xid", 0, 48)
    assert nvml.listen()["value"]["eventData"] == 48
    nvml.become(0)
    assert nvml.error("nvmlDeviceSetComputeMode", device, 3) == NO_PERMISSION

"""The command's words: each does what it says, and a wrong one is refused in one line without doing anything."""

import re
import subprocess

import pytest

from tests.library.machine import Machine, shipped

pytestmark = pytest.mark.thorough


def test_an_invalid_argument_is_reported_and_nothing_is_done(machine: Machine) -> None:
    invalid = [
        (["dance"], "unknown command dance"),
        (["xid", "0"], "too few words"),
        (["xid", "0", "1", "2"], "one word too many: 2"),
        (["xid", "8", "1"], "there is no GPU 8: this machine has 8"),
        (["xid", "-1", "1"], "there is no GPU -1"),
        (["xid", "GPU-x", "1"], "there is no GPU GPU-x"),
        (["xid", "0", "x"], "an XID must be a whole number from 0 to 65535, not x"),
        (["util", "0", "101", "0"], "SM% must be a whole number from 0 to 100, not 101"),
        (["util", "0", "50"], "MEM% must be a whole number from 0 to 100, not nothing"),
        (["compute-mode", "0", "fast"], "must be one of default, exclusive_thread"),
        (["mig", "0", "maybe"], "MIG mode must be one of off, on, not maybe"),
        (["memory", "0", "81303"], "MIB must be a whole number from 0 to 81302"),
        (["process", "feed", "0", "1"], "the verb must be one of add, remove, not feed"),
        (["process", "add", "0", "0", "1"], "PID must be a whole number from 1"),
        (["process", "add", "0", "1"], "MIB must be a whole number from 0 to 16777216, not nothing"),
        (["process", "add", "0", "1", "1", "--type", "x"], "--type must be one of compute, graphics, mps"),
        (["process", "add", "0", "1", "1", "--nmae", "x"], "unknown or unfinished option --nmae"),
        (["process", "add", "0", "1", "1", "--name"], "unknown or unfinished option --name"),
        (["driver", "gone"], "must be one of load, unload, mismatch"),
    ]
    machine.describe("hgx-a100")
    before, wrong = machine.show(), []
    for words, cause in invalid:
        done = machine.run(*words)
        one_line = re.fullmatch(f"vcuda-emulator: .*{re.escape(cause)}.*\n", done.stderr)
        if (done.returncode, done.stdout) != (2, "") or not one_line or machine.show() != before:
            wrong.append((words, done))
    assert wrong == []


def test_what_cannot_be_done_ends_with_one(machine: Machine) -> None:
    machine.describe("pcie-mixed")
    done = [machine.run("mig", "4", "on"), machine.run("process", "remove", "0", "5")]
    assert [(each.returncode, each.stderr) for each in done] == [
        (1, "vcuda-emulator: GPU 4 (Tesla T4) has no MIG\n"),
        (1, "vcuda-emulator: GPU 0 has no process 5\n"),
    ]


def test_a_gpu_is_named_by_position_or_uuid(machine: Machine) -> None:
    machine.describe("pcie-mixed")
    uuid = machine.show()["gpus"][3]["uuid"]
    machine.command("util", uuid, 10, 5)
    machine.command("memory", 3, 100)
    gpu = machine.show()["gpus"][3]
    assert (gpu["gpu_util"], gpu["memory_util"], gpu["used_mib"]) == (10, 5, 100)


def test_files_may_be_named_by_options(machine: Machine) -> None:
    machine.describe("laptop")
    state = machine.directory / "another"
    command = [str(machine.build / "vcuda-emulator"), "--profile", str(machine.profile), "--state", str(state), "init"]
    done = subprocess.run(command, capture_output=True, text=True, env={}, timeout=20, check=True)
    assert done.stdout == f"{state}\n"
    assert state.exists()


def test_without_profile_and_state_the_command_says_so(machine: Machine) -> None:
    command = [str(machine.build / "vcuda-emulator"), "show"]
    done = subprocess.run(command, capture_output=True, text=True, env={}, timeout=20, check=False)
    assert done.returncode == 2
    assert "neither VCUDA_EMULATOR_PROFILE nor VCUDA_EMULATOR_STATE names a file" in done.stderr


def test_show_as_a_table_has_a_line_for_each_gpu(machine: Machine) -> None:
    machine.describe("pcie-mixed")
    machine.command("lose", 1)
    lines = machine.command("show").splitlines()
    assert len(lines) == 2 + 8
    assert lines[3].split()[-1] == "lost"
    assert "18432 /  46068" in lines[4]


def test_the_matrix_leaves_out_what_was_removed(machine: Machine) -> None:
    machine.describe("hgx-a100")
    machine.command("remove", 0)
    lines = machine.command("topo", "--underline").splitlines()
    assert lines[0].startswith("\t\033[4mGPU0\tGPU1\t")
    assert "GPU7" not in lines[0]
    assert len([line for line in lines if line.startswith("GPU")]) == 7


def test_a_reloaded_driver_applies_pending_modes(machine: Machine) -> None:
    nvml, device = machine.first_gpu("hgx-a100")
    machine.command("process", "add", 0, 71, 10)
    nvml.raw("nvmlDeviceSetMigMode", device, 1, {"out": 0})
    nvml.raw("nvmlDeviceSetEccMode", device, 0)
    assert nvml.call("nvmlDeviceGetMigMode", device) == [0, 1]
    assert nvml.call("nvmlDeviceGetEccMode", device) == [1, 0]
    machine.command("driver", "unload")
    machine.command("driver", "load")
    nvml.call("nvmlInit")
    assert nvml.call("nvmlDeviceGetMigMode", device) == [1, 1]
    assert nvml.call("nvmlDeviceGetEccMode", device) == [0, 0]


def test_names_that_need_escapes_stay_json(machine: Machine) -> None:
    name = 'a "b" \\ c'
    profile = shipped("laptop") | {"name": name}
    machine.describe(profile)
    assert machine.show()["name"] == name


def test_help_names_every_command(machine: Machine) -> None:
    machine.describe("laptop")
    said = machine.command("help")
    for name in (
        "init",
        "show",
        "topo",
        "xid",
        "lose",
        "remove",
        "recover",
        "process",
        "util",
        "clients",
        "reset",
        "driver",
    ):
        assert f"\n  {name} " in said


def test_a_gpu_in_use_cannot_be_reset(machine: Machine) -> None:
    machine.describe("hgx-a100")
    machine.command("lose", 2, "--silent")
    machine.command("ecc", 2, "uncorrected", 5)
    machine.command("process", "add", 2, 71, 10)
    assert machine.run("reset", 2).stderr == "vcuda-emulator: GPU 2 is in use by another client: process 71\n"
    machine.command("process", "remove", 2, 71)
    machine.command("reset", 2)
    nvml = machine.nvml()
    assert nvml.call("nvmlDeviceGetTotalEccErrors", nvml.devices()[2], 1, 0) == 0


def test_every_process_that_has_nvml_open_keeps_all_gpus_from_a_reset(machine: Machine) -> None:
    machine.describe("hgx-a100")
    first, second = machine.nvml(), machine.nvml()
    assert machine.command("clients") == ""
    for nvml in (first, first, second):
        nvml.call("nvmlInit")
    pids = machine.command("clients").split()
    assert sorted(map(int, pids)) == sorted((first.process.pid, second.process.pid))
    done = machine.run("reset", 0)
    assert (done.returncode, done.stderr) == (
        1,
        f"vcuda-emulator: GPU 0 is in use by another client: process {pids[0]}\n",
    )
    first.call("nvmlShutdown")
    second.kill()
    assert machine.command("clients") == f"{first.process.pid}\n", "it was opened twice"
    first.call("nvmlShutdown")
    assert machine.command("clients") == ""
    machine.command("reset", 0)

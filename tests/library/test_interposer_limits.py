"""Where the limits come from, what is said when they cannot be read, and how a running process follows them."""

import json
import os
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from deviceplugin.container.limits_file import CHECKSUM_AT, HEADER, GrantLimits, checksum_of, encode
from deviceplugin.gpu_manager.client_files import ContainerLimits, encode_limits
from deviceplugin.structs import replace
from tests.library.interposed import GIB, GRANT, INSIDE, Container, device
from tests.library.test_interposer_loading import program

REAL = 80 * GIB
GOOD = encode(GrantLimits(GRANT, (device(0), device(1, memory=3 * GIB)), 1))
CLOSED = "no device memory is given until it is mended, the GPU's time is not limited"
LEGACY = ContainerLimits(pod_uid="p", container="c", cores=20, memory_bytes=5 * GIB)


def sealed(data: bytes) -> bytes:
    """With the checksum that fits."""
    blank = data[:CHECKSUM_AT] + bytes(8) + data[CHECKSUM_AT + 8 :]
    return data[:CHECKSUM_AT] + struct.pack("<Q", checksum_of(blank)) + data[CHECKSUM_AT + 8 :]


def changed(offset: int, value: bytes) -> bytes:
    return sealed(GOOD[:offset] + value + GOOD[offset + len(value) :])


def word(value: int) -> bytes:
    return struct.pack("<I", value)


BAD: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is short (0 bytes)"),
    "short": (GOOD[:100], "is short (100 bytes)"),
    "cut": (GOOD[:-1], "has 383 bytes and says 384"),
    "longer": (GOOD + b"x", "has 385 bytes and says 384"),
    "much longer": (GOOD + bytes(100_000), "says 384"),
    "garbage": (bytes(range(256)) * 2, "is no limits file"),
    "future": (changed(8, word(2)), "has version 2, this library reads 1"),
    "torn": (GOOD[:200] + b"X" + GOOD[201:], "has a wrong checksum"),
    "flags": (changed(20, word(1)), "has flags 0x1 that this library does not know"),
    "no device": (sealed(changed(16, word(0))[: HEADER.size]).replace(word(384), word(128), 1), "checksum"),
    "more devices": (changed(16, word(17)), "has 17 devices in 384 bytes"),
    "fewer devices": (changed(16, word(1)), "has 1 devices in 384 bytes"),
    "endless name": (changed(HEADER.size, b"G" * 48), "has a malformed device at position 0"),
    "no name": (changed(HEADER.size + 128, b"\0"), "has a malformed device at position 1"),
    "no cores": (changed(HEADER.size + 88, word(0)), "has a malformed device at position 0"),
}


def line(outcome_errors: str) -> str:
    """The one line that was written."""
    lines = outcome_errors.splitlines()
    assert len(lines) == 1, outcome_errors
    assert lines[0].startswith("vcuda: ")
    return lines[0]


def test_without_a_base_directory_nothing_is_limited_and_nothing_said(container: Container) -> None:
    outcome = container.run("in_order", "shown", "shown_by_nvml")
    assert outcome.errors == ""
    assert (outcome.value[0]["total"], outcome.value[1]["v1"][0]) == (REAL, REAL)


def test_limits_are_in_force_without_a_word(container: Container) -> None:
    container.grant(device(0), device(1, memory=3 * GIB))
    outcome = container.run("in_order", "shown", "shown_by_nvml")
    assert outcome.errors == ""
    assert outcome.value[0]["total"] == 2 * GIB
    assert container.run("shown", 1).value["total of device"] == 3 * GIB


def test_a_file_that_cannot_be_used_closes_memory_with_one_line(
    container: Container, subtests: pytest.Subtests
) -> None:
    for what, (data, reason) in BAD.items():
        with subtests.test(what):
            container.write_limits(data)
            outcome = container.run("shown")
            said = line(outcome.errors)
            assert str(container.limits) in said
            assert reason in said
            assert said.endswith(CLOSED)
            assert (outcome.value["free"], outcome.value["total"]) == (0, REAL)


def test_a_base_directory_without_limits_closes_memory(container: Container) -> None:
    container.base.mkdir(parents=True)
    outcome = container.run("in_order", "shown", "shown_by_nvml")
    assert line(outcome.errors) == f"vcuda: {container.limits} is missing: {CLOSED}"
    assert outcome.value[0]["free"] == 0
    assert outcome.value[1]["v1"] == [REAL, 0, REAL]


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["directory", "pipe"])
def test_another_file_of_that_name_refuses_memory_and_blocks_nothing(
    container: Container, make: Callable[[Path], None]
) -> None:
    container.base.mkdir(parents=True)
    make(container.limits)
    outcome = container.run("shown")
    assert str(container.limits) in line(outcome.errors)
    assert outcome.value["free"] == 0


def test_vcuda_config_is_used_if_the_limits_file_is_missing(container: Container) -> None:
    container.base.mkdir(parents=True)
    (container.base / "vcuda.config").write_bytes(encode_limits(LEGACY))
    outcome = container.run("in_order", "shown", "shown_by_nvml")
    assert outcome.errors == ""
    assert (outcome.value[0]["total"], outcome.value[1]["v1"][0]) == (5 * GIB, 5 * GIB)


def test_the_old_file_of_a_whole_gpu_limits_nothing(container: Container) -> None:
    container.base.mkdir(parents=True)
    (container.base / "vcuda.config").write_bytes(encode_limits(replace(LEGACY, cores=100)))
    outcome = container.run("shown")
    assert (outcome.value["total"], outcome.errors) == (REAL, "")


def test_vcuda_config_is_used_and_named_if_the_limits_file_is_unusable(container: Container) -> None:
    container.write_limits(GOOD[:50])
    (container.base / "vcuda.config").write_bytes(encode_limits(LEGACY))
    outcome = container.run("shown")
    assert outcome.value["total"] == 5 * GIB
    assert line(outcome.errors).endswith(f"the limits of {container.base}/vcuda.config are in force")


def test_an_old_file_that_cannot_be_used_closes_memory(container: Container) -> None:
    container.base.mkdir(parents=True)
    no_memory = encode_limits(replace(LEGACY, memory_bytes=0))
    free = []
    for data in (b"", bytes(8239), bytes(8241), b"\xff" * 8240, bytes(8240), no_memory):
        (container.base / "vcuda.config").write_bytes(data)
        outcome = container.run("shown")
        assert line(outcome.errors).endswith(CLOSED), data[:8]
        free.append(outcome.value["free"])
    assert free == [0] * 6


def test_a_gpu_missing_in_the_limits_is_reported(container: Container) -> None:
    container.grant(device(0))
    outcome = container.run("shown", 1)
    assert (outcome.value["total"], outcome.value["total of device"]) == (2 * GIB, REAL)
    said = line(outcome.errors)
    assert f"{container.limits} does not name GPU-00000000-0000-0000-0000-000000000002" in said


def test_another_base_counts_by_its_absolute_path_only(container: Container) -> None:
    container.grant(device(0))
    assert container.run("shown").value["total"] == 2 * GIB
    assert container.run("shown", VCUDA_DIR="").value["total"] == REAL
    assert container.run("shown", VCUDA_DIR="vm").value["total"] == REAL


@pytest.mark.root
@pytest.mark.parametrize(("there", "total", "words"), [("limits", 2 * GIB, ""), ("nothing", REAL, CLOSED)])
def test_environment_variables_never_remove_limits(container: Container, there: str, total: int, words: str) -> None:
    """With /etc/vcuda in place VCUDA_DIR is not even looked at, whatever /etc/vcuda lacks."""
    container.grant(device(0))
    copy = f"cp -r {container.base}/. /etc/vcuda" if there == "limits" else "true"
    script = f"mount -t tmpfs none /etc && mkdir /etc/vcuda && {copy} && exec {' '.join(INSIDE)} shown []"
    with container.start_program("unshare", "--mount", "sh", "-c", script, VCUDA_DIR="/nowhere") as process:
        out, errors = process.communicate(timeout=20)
    assert process.returncode == 0, errors
    assert json.loads(out)["total"] == total
    assert words in errors
    assert bool(words) == bool(errors)


class Watched:
    """A process that prints the total it sees whenever that changes."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def next(self) -> int:
        assert self.process.stdout is not None
        told = self.process.stdout.readline()
        assert told, self.process.stderr.read() if self.process.stderr else ""
        return int(json.loads(told))

    def end(self) -> str:
        _, errors = self.process.communicate(timeout=20)
        return errors


@pytest.mark.parametrize("name", ["totals_while_told", "totals_of_nvml_while_told"])
def test_a_running_process_follows_within_a_second(container: Container, name: str) -> None:
    container.grant(device(0))
    watched = Watched(container.start(name))
    assert watched.next() == 2 * GIB
    took = []
    for generation in range(2, 6):
        container.grant(device(0, memory=generation * 2 * GIB), generation=generation)
        before = time.monotonic()
        assert watched.next() == generation * 2 * GIB
        took.append(time.monotonic() - before)
    assert min(took) < 1, "best of four, because the machine may be busy with something else"
    assert watched.end() == ""


def test_a_running_process_keeps_what_it_read_when_the_file_goes_bad(container: Container) -> None:
    container.grant(device(0))
    watched = Watched(container.start("totals_while_told"))
    assert watched.next() == 2 * GIB
    container.write_limits(b"rubbish")
    time.sleep(0.5)  # two looks of the helper: the proof is that nothing happens
    container.limits.unlink()
    time.sleep(0.5)
    container.grant(device(0, memory=GIB), generation=2)
    assert watched.next() == GIB
    said = line(watched.end())
    assert said == f"vcuda: {container.limits} is short (7 bytes): the limits read before stay in force"


def test_memory_opens_when_the_file_is_mended(container: Container) -> None:
    container.write_limits(b"rubbish")
    watched = Watched(container.start("totals_while_told"))
    assert watched.next() == REAL
    container.grant(device(0, memory=GIB))
    assert watched.next() == GIB
    assert line(watched.end()).endswith(CLOSED)


def test_a_file_that_moves_a_device_is_refused(container: Container) -> None:
    """The region and the activity rows go by position: what was charged to one GPU would count for another."""
    container.grant(device(0), device(1))
    watched = Watched(container.start("totals_while_told"))
    assert watched.next() == 2 * GIB
    container.grant(device(1), device(0, memory=GIB), generation=2)
    time.sleep(0.5)
    container.grant(device(0, memory=3 * GIB), device(1), generation=3)
    assert watched.next() == 3 * GIB
    assert "moves devices to other positions: the limits read before stay in force" in line(watched.end())


def test_readers_meet_whole_files_only_while_it_is_replaced(
    container: Container, short_tmp: Path, interposers: Path
) -> None:
    """The agent replaces by rename; 200,000 reads of four threads see one version or the next, and views stay whole."""
    container.grant(device(0, memory=1 << 20), generation=1)
    state = interposers.parents[1] / "interposer/state"
    sources = [str(path) for path in state.glob("*.c")]
    reader = program(short_tmp, "limits_reader.c", *sources)
    with container.start_program(reader, container.limits, 4, 50_000) as process:
        generation = 1
        while process.poll() is None:
            generation += 1
            container.write_limits(encode(GrantLimits(GRANT, (device(0, memory=generation << 20),), generation)))
        out, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    reads, versions = map(int, out.split())
    assert reads == 200_000
    assert versions > 10

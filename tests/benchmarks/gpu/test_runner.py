"""A check that fails, dies or hangs is reported as that, and the next one runs."""

import time
from pathlib import Path

import pytest

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.driver import Device, Driver
from benchmarks.gpu.outcome import Check, Outcome, Status
from benchmarks.gpu.runner import run


@pytest.fixture
def bench(short_tmp: Path) -> Bench:
    """Of a driver that is not used."""
    device = Device("GPU-1", "00000000:01:00.0", "NVIDIA H100", 80 << 30)
    driver = Driver(True, "/nowhere", "/nowhere", "580.95.05", "13.0", (device,), "of a test", {"A": "b"})
    return Bench(short_tmp, driver, True, 1.0, 2, "", 4000)


def outcome_of(bench: Bench, name: str, *arguments: str, limit_s: float = 20) -> Outcome:
    function = f"tests.benchmarks.gpu.checks:{name}"
    return run(Check("T0.test", "a test", "none", function, arguments, limit_s), bench)


ENDS = {
    "misses": (Status.FAILED, "got 7, not 8"),
    "does_not_apply": (Status.NOT_RUN, "PyTorch is not installed"),
    "raises": (Status.FAILED, "ValueError: what went wrong"),
    "dies": (Status.FAILED, "ended with -9 and said nothing; stderr ends: the last words"),
    "nobody_wrote_this": (Status.FAILED, "no attribute 'nobody_wrote_this'"),
}


def test_what_became_of_a_check_is_reported_with_its_reason(bench: Bench) -> None:
    """After one that passed, whose answer is not taken for another's."""
    passed = outcome_of(bench, "passes", "said")
    assert (passed.status, passed.reason, passed.figures) == (Status.PASSED, "", {"word": "said"})
    for name, (status, reason) in ENDS.items():
        found = outcome_of(bench, name)
        assert (found.status, reason in found.reason) == (status, True), (name, found)


def test_a_check_that_hangs_is_ended_with_its_children_and_fails(bench: Bench) -> None:
    pid_file = bench.scratch / "child"
    for limit_s in (2, 8, 32, 128):  # until its process has begun: on a busy machine that takes longer
        found = outcome_of(bench, "hangs_with_a_child", str(pid_file), limit_s=limit_s)
        assert found.status is Status.FAILED
        assert f"was still running after {limit_s} s" in found.reason
        if pid_file.exists() and pid_file.read_text():
            break
    assert eventually_gone(int(pid_file.read_text()))


def eventually_gone(pid: int) -> bool:
    """Gone, or a zombie for which no process has waited."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False

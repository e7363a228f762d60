"""The interposers under the sanitizers: address and undefined behaviour, and threads."""

from collections.abc import Callable
from pathlib import Path

import pytest

from deviceplugin.container.limits_file import GrantLimits, encode
from tests.library.compiler import runtime
from tests.library.driver import Driver
from tests.library.interposed import GIB, GRANT, Container, device, two_gpus
from tests.library.test_interposer_limits import BAD, CLOSED
from tests.library.test_interposer_loading import program

pytestmark = pytest.mark.thorough


@pytest.fixture
def checked(sanitized_build: Path, sanitized_interposers: Path, short_tmp: Path) -> Container:
    environment = two_gpus(short_tmp) | {
        "LD_PRELOAD": runtime("libasan.so"),
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    cuda, nvml = sanitized_build / "libcuda.so.1", sanitized_build / "libnvidia-ml.so.1"
    return Container(short_tmp, sanitized_interposers, cuda, nvml, environment)


@pytest.fixture
def thread_checked(
    thread_checked_build: Path, drivers: Callable[[Driver], Path], build: Path, short_tmp: Path
) -> Container:
    environment = {"TSAN_OPTIONS": "die_after_fork=0 exitcode=66"}
    interposers = thread_checked_build / "interposer"
    return Container(short_tmp, interposers, drivers(Driver()), build / "libnvidia-ml.so.1", environment)


def test_every_view_and_list(checked: Container) -> None:
    checked.grant(device(0), device(1))
    calls = (
        "before_init",
        "shown",
        "shown_by_nvml",
        "chained_getproc",
        "getproc_nulls",
        "contexts",
        "claims_after_fork",
    )
    assert checked.run("in_order", *calls).errors == ""
    assert checked.run("in_context", 0, "shown").value["total"] == 2 * GIB
    for generation in ("", "_v2", "_v3"):
        assert checked.run("running", 0, "Compute", generation, 3).errors == ""
    assert checked.run("switches", 0).errors == ""


def test_files_that_cannot_be_used(checked: Container) -> None:
    for data, _ in BAD.values():
        checked.write_limits(data)
        (said,) = checked.run("shown_by_nvml").errors.splitlines()
        assert said.endswith(CLOSED)
        checked.limits.unlink()
        old = checked.base / "vcuda.config"
        old.write_bytes(data[:8240].ljust(8240, b"\xff"))
        assert CLOSED in checked.run("shown_by_nvml").errors
        old.unlink()


def test_threads_that_read_while_the_limits_are_replaced(container: Container, short_tmp: Path) -> None:
    container.grant(device(0, memory=1 << 20))
    state = Path(__file__).parents[2] / "library/interposer/state"
    reader = program(short_tmp, "limits_reader.c", "-fsanitize=thread", *map(str, state.glob("*.c")))
    with container.start_program(reader, container.limits, 4, 2_000, TSAN_OPTIONS="exitcode=66") as process:
        generation = 1
        while process.poll() is None:
            generation += 1
            container.write_limits(encode(GrantLimits(GRANT, (device(0, memory=generation << 20),), generation)))
        out, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    assert out.split()[0] == "8000"


def test_threads_and_forks(thread_checked: Container, short_tmp: Path) -> None:
    thread_checked.grant(device(0))
    forking = program(short_tmp, "forking.c", "-fsanitize=thread", "-ldl")
    # gcc 12's ThreadSanitizer may stop a child in pthread_create, if another thread held a lock of its runtime.
    with thread_checked.start_program(forking, 15, 2) as process:
        out, errors = process.communicate(timeout=250)
    assert (process.returncode, out, errors) == (0, "15 children\n", "")

"""Contexts, streams and captures that come and go under a limit, on the emulated GPU (..._programs/lives.c).

The emulated driver counts what a real one might not survive: a green context that is current to two threads, handles of
what has ended.
"""

from pathlib import Path
from typing import Any

import pytest

from deviceplugin.container import region
from sandbox.shared_gpu import SharedGpu
from tests.library.compiler import compiled
from tests.library.interposed import GRANT, Container, device

pytestmark = pytest.mark.realtime

_SOURCE = Path(__file__).parent / "native/interposer_programs/lives.c"
_LIMIT = 30


@pytest.fixture(scope="session")
def lives(build: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("lives") / "lives"
    return compiled(output, _SOURCE, build / "libcuda.so.1", "-ldl")


def case(gpu: SharedGpu, lives: Path, name: str, **environment: str) -> dict[str, Any]:
    with gpu.container(_LIMIT).start(lives, name, **environment) as running:
        return running.result()


_SHARE = pytest.approx(_LIMIT, abs=2.5)


def test_streams_of_a_green_context_are_limited_and_it_stays_its_own_thread_s(gpu: SharedGpu, lives: Path) -> None:
    """CUDA: a green context can be current to one thread only. Ours never makes it current."""
    assert case(gpu, lives, "green") == {"share": _SHARE, "after": _SHARE, "violations": 0, "stale": 0}


def test_and_so_they_are_where_the_driver_makes_no_marks(gpu: SharedGpu, lives: Path) -> None:
    """What no event measures is measured by its thread: not given away, never taken for waiting, nor for work that
    ran beside that of other streams. A thread that wakes late is wrong about one launch, to its own loss, so one good
    run of three is asked for. Without a limit the share is 99.
    """
    told = [case(gpu, lives, "green", VCUDA_EMULATOR_GREEN_EVENTS="refused") for _ in range(3)]
    assert all((each["violations"], each["stale"]) == (0, 0) and each["share"] <= _LIMIT + 4 for each in told), told
    assert any(each["share"] >= _LIMIT / 3 and each["after"] == _SHARE for each in told), told


def test_a_green_context_that_was_the_last_to_hold_the_primary_one_ends_it(gpu: SharedGpu, lives: Path) -> None:
    assert case(gpu, lives, "last") == {"share": _SHARE, "stale": 0}


def test_a_context_that_is_detached_ends(gpu: SharedGpu, lives: Path) -> None:
    """cuCtxDetach: contexts in turn, all at one address."""
    assert case(gpu, lives, "detached") == {"share": _SHARE, "stale": 0}


def test_only_the_program_holds_the_primary_context(gpu: SharedGpu, lives: Path) -> None:
    assert case(gpu, lives, "references") == {"retained": 0}


def test_a_capture_ends_with_its_stream_and_its_context(gpu: SharedGpu, lives: Path) -> None:
    """Then launches do not ask any more whether they are captured."""
    assert case(gpu, lives, "captures") == {"during": 1000, "by_stream": 0, "by_context": 0, "by_end": 0}


def test_what_the_driver_did_not_say_once_is_asked_again(gpu: SharedGpu, lives: Path) -> None:
    assert case(gpu, lives, "failing", VCUDA_EMULATOR_FAIL="cuCtxPushCurrent_v2:1") == {"share": _SHARE}


def test_cancelled_threads_leave_no_lock_behind(gpu: SharedGpu, lives: Path) -> None:
    assert case(gpu, lives, "cancelled") == {"share": _SHARE}


def test_who_ends_another_stream_does_not_wait_for_a_full_queue(gpu: SharedGpu, lives: Path) -> None:
    """And no context ends while a thread marks a stream of it: it does not always, so that is tried a few times."""
    for _ in range(4):
        told = case(gpu, lives, "crowded")
        assert told.pop("other_ms") < 500
        if told["early"] == 0:
            break
    assert told == {"early": 0, "late": 1, "stale": 0}


def test_a_stream_handle_that_comes_back_on_another_device_is_that_device_s(emulated: Container, lives: Path) -> None:
    emulated.grant(device(0), device(1))
    with emulated.start_program(lives, "handles") as process:
        assert process.communicate(timeout=50) == ('{"same": true}\n', "")
    counters = region.read(emulated.region_file, grant=GRANT, devices=2).counters
    assert [one.launches for one in counters[:2]] == [1, 1]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["green", "last", "detached", "captures", "cancelled", "crowded"])
def test_with_checks(checked_gpu: tuple[SharedGpu, dict[str, str]], lives: Path, name: str) -> None:
    gpu, checks = checked_gpu
    assert case(gpu, lives, name, **checks).get("stale", 0) == 0

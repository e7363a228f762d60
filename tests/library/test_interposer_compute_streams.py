"""Streams with more in them than kernels of one shape: waits, host functions, copies, fills, changing grids.

native/interposer_programs/mixing.c has the steps. The simulated clock has the same in test_interposer_compute_core.py.
"""

from pathlib import Path

import pytest

from deviceplugin.model.gpu import GpuUuid
from sandbox.shared_gpu import PROFILE, UUID, SharedGpu
from tests.library.compiler import compiled

_PROGRAMS = Path(__file__).parent / "native/interposer_programs"


@pytest.fixture(scope="session")
def mixing(build: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("mixing") / "mixing"
    return compiled(output, _PROGRAMS / "mixing.c", build / "libcuda.so.1", "-ldl")


@pytest.mark.realtime
@pytest.mark.parametrize(
    ("kind", "limit"),
    [("mixed", 50), ("host", 10), ("shared", 25), ("grids", 50), ("value", 25)],
)
def test_a_step_that_mixes_gets_its_share(gpu: SharedGpu, mixing: Path, kind: str, limit: int) -> None:
    """Library D6 and D5. 10 %: between its kernels of 400 us the stream waits for about 260 us, which was charged.

    A wait for a value that is not recognised leaves 18 of 25.
    """
    with gpu.container(limit).start(mixing, kind, 2.5) as running:
        assert running.result()["share_percent"] == pytest.approx(limit, abs=2)


@pytest.mark.realtime
@pytest.mark.parametrize(("kind", "limit"), [("fill", 25), ("device", 25), ("box", 25)])
def test_fills_and_copies_on_the_device_are_limited(gpu: SharedGpu, mixing: Path, kind: str, limit: int) -> None:
    """They cost 4 us and their call as much: on a busy machine the stream runs empty. Free of charge it was 33 %."""
    with gpu.container(limit).start(mixing, kind, 2.5) as running:
        assert limit - 6 <= running.result()["share_percent"] <= limit + 2


@pytest.mark.realtime
def test_launches_go_on_beside_an_endless_kernel(gpu: SharedGpu, mixing: Path) -> None:
    """Library D9: four a second. The limit would allow 5,000."""
    with gpu.container(50).start(mixing, "persistent", 5) as running:
        assert running.result()["per_second"] >= 200


def test_nothing_gets_into_a_capture(gpu: SharedGpu, mixing: Path) -> None:
    """A kernel, a copy or host function, a rectangle, a fill or copy on the device, one by pointers: eight of each."""
    with gpu.container(90).start(mixing, "captured", 1) as running:
        assert running.result() == {"nodes": 3 * 8 * 5, "violations": 0}


def test_who_launches_nothing_between_pays_for_no_marks(gpu: SharedGpu, mixing: Path) -> None:
    with gpu.container(90).start(mixing, "bare", 1) as running:
        assert running.result() == {"records": 0}


def test_copies_within_the_device_are_measured_whatever_brings_them(
    interposers: Path, build: Path, short_tmp: Path, mixing: Path
) -> None:
    """Also while another stream is captured, and between contexts. The second GPU is for those that leave the first."""
    second = GpuUuid(str(UUID)[:-1] + "2")
    profile = PROFILE | {"gpus": [*PROFILE["gpus"], {"model": "gpu", "uuid": second}]}
    gpu = SharedGpu(short_tmp, interposers, build / "libcuda.so.1", profile=profile)
    with gpu.container(90, unlimited=(second,)).start(mixing, "ways", 1) as running:
        records = running.result()
    assert {way: count > 0 for way, count in records.items()} == {
        "host": False,
        "another": False,
        "pointers": True,
        "captured": True,
        "contexts": True,
        "batch": True,
        "batch from the host": False,
    }


KINDS = ("mixed", "shared", "grids", "fill", "box", "value", "captured", "persistent")


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_with_checks(checked_gpu: tuple[SharedGpu, dict[str, str]], mixing: Path, kind: str) -> None:
    gpu, checks = checked_gpu
    with gpu.container(25).start(mixing, kind, 1.5, **checks) as running:
        assert running.result()

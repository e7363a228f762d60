"""Ranks of a job in real processes, each in a container with a share of its own emulated GPU (Library D1).

Few and short: test_interposer_compute_ranks.py has the whole table, on a simulated clock.
"""

from contextlib import ExitStack
from pathlib import Path
from statistics import median

import pytest

from deviceplugin.model.gpu import GpuUuid
from sandbox.shared_gpu import PROFILE, SharedGpu
from tests.library.compiler import compiled

pytestmark = pytest.mark.realtime

RANKS = 4
STEPS = 16
KERNELS, KERNEL_MS = 40, 0.5
STALLED = 4
_PROGRAMS = Path(__file__).parent / "native/interposer_programs"
_UUIDS = [GpuUuid(f"GPU-00000000-0000-0000-0000-00000000010{number}") for number in range(RANKS)]


@pytest.fixture
def gpus(interposers: Path, build: Path, short_tmp: Path) -> SharedGpu:
    """With as many multiprocessors as a real GPU, so that the exchange is a small kernel and the others are wide."""
    models = {"gpu": PROFILE["models"]["gpu"] | {"cores": 132 * 128}}
    profile = PROFILE | {"models": models, "gpus": [{"model": "gpu", "uuid": str(uuid)} for uuid in _UUIDS]}
    return SharedGpu(short_tmp, interposers, build / "libcuda.so.1", _UUIDS[0], profile=profile)


@pytest.fixture(scope="session")
def ranks(build: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("ranks") / "ranks"
    return compiled(output, _PROGRAMS / "ranks.c", build / "libcuda.so.1")


def steps_ms(gpus: SharedGpu, program: Path, way: str, limits: list[int]) -> list[float]:
    """Of the first rank, which stalls once."""
    with ExitStack() as stack:
        running = []
        for number, (limit, uuid) in enumerate(zip(limits, _UUIDS, strict=False)):
            words = (way, len(limits), STEPS, KERNELS, int(KERNEL_MS * 1000), *([STALLED] if number == 0 else []))
            container = gpus.container(limit, uuid=uuid)
            running.append(stack.enter_context(container.start(program, *words)))
        told: list[list[float]] = [one.result()["steps_ms"] for one in running]
    return told[0]


@pytest.mark.parametrize(
    ("way", "limits"),
    [
        ("small", [25, 50]),
        ("small", [25, 25, 25, 25]),
        ("cooperative", [25, 25]),
        ("remote", [25, 25]),
    ],
    ids=str,
)
def test_step_times_settle_after_a_stall(gpus: SharedGpu, ranks: Path, way: str, limits: list[int]) -> None:
    """Without a bound on what a wait costs, a step at 25 % took 10 s by now."""
    steps = steps_ms(gpus, ranks, way, limits)
    assert steps[STALLED] > 500
    assert median(steps[-6:]) == pytest.approx(KERNELS * KERNEL_MS * 100 / min(limits), rel=0.2)

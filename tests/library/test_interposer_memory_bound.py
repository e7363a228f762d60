"""Memory that is bound to a group of GPUs: it counts until its process ends.

The emulated driver has no groups; one that agrees to everything stands in front of it (interposer_programs/groups.c).
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.library.compiler import SHARED, compiled
from tests.library.gpu_slice import GpuSlice, eventually
from tests.library.interposed import Container, two_gpus
from tests.library.memory_client import (
    NOT_SUPPORTED,
    Cuda,
)
from tests.library.memory_rig import STEP, mapped

GROUP, OTHER, AT = 3, 1, 0  # none of them is a handle or an address of memory
_SOURCE = Path(__file__).parent / "native/interposer_programs/groups.c"
WAYS = {
    "cuMulticastBindMem": (GROUP, AT, "handle", AT, STEP, 0),
    "cuMulticastBindMem_v2": (GROUP, OTHER, AT, "handle", AT, STEP, 0),
    "cuMulticastBindAddr": (GROUP, AT, "address", STEP, 0),
    "cuMulticastBindAddr_v2": (GROUP, OTHER, AT, "address", STEP, 0),
    "cuLogicalEndpointBindMem": (GROUP, OTHER, AT, "handle", AT, STEP, 0),
    "cuLogicalEndpointBindAddr": (GROUP, OTHER, AT, "address", STEP, 0),
}


@pytest.fixture(scope="session")
def groups(build: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """It needs the emulator by its path: by its SONAME it would get the interposer."""
    folder = tmp_path_factory.mktemp("groups")
    driver = compiled(folder / "named.so", *SHARED, f"-Wl,-soname,{build / 'libcuda.so.1'}", "-x", "c", "/dev/null")
    return compiled(folder / "groups.so", *SHARED, _SOURCE, "-Wl,--no-as-needed", driver)


@pytest.fixture
def grouped(interposers: Path, build: Path, groups: Path, short_tmp: Path) -> Iterator[GpuSlice]:
    with ExitStack() as processes:
        yield GpuSlice(
            Container(short_tmp, interposers, groups, build / "libnvidia-ml.so.1", two_gpus(short_tmp)), processes
        )


def shared(cuda: Cuda, way: str) -> int:
    """Memory without a holder in the process, after the call; what that answered."""
    handle = cuda.create(STEP)
    address = mapped(cuda, handle)
    of = {"handle": handle, "address": address}
    code = cuda.code(way, *[of[word] if isinstance(word, str) else word for word in WAYS[way]])
    cuda("cuMemUnmap", address, STEP)
    cuda("cuMemRelease", handle)
    return code


@pytest.mark.parametrize("way", WAYS)
def test_what_was_bound_counts_until_its_process_ends(grouped: GpuSlice, way: str) -> None:
    cuda, other = grouped.start(), grouped.start()
    assert shared(cuda, way) == 0
    for _ in range(3):
        assert other.left() == grouped.room - STEP - grouped.use(other).overhead
        assert grouped.use(cuda).used == STEP
    cuda.kill()
    assert eventually(lambda: other.left() == grouped.room)


@pytest.mark.parametrize("way", WAYS)
def test_what_the_driver_does_not_bind_is_given_back(gpu_slice: GpuSlice, user: Cuda, way: str) -> None:
    assert shared(user, way) == NOT_SUPPORTED
    assert user.left() == gpu_slice.room

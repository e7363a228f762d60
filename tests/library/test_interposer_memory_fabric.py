"""Memory that was exported by a fabric handle and given back: it counts while anybody has it, and is free then."""

from pathlib import Path

import pytest

from tests.library.compiler import SHARED, compiled
from tests.library.gpu_slice import CONTEXT, GpuSlice, eventually
from tests.library.interposed import Container
from tests.library.memory_client import (
    DEVICE,
    FABRIC,
    MIB,
    OUT_OF_MEMORY,
    POSIX_FD,
    Cuda,
    allocation_properties,
    pointer_to,
    room,
)

_NATIVE = Path(__file__).parent / "native"
SIZE = 128 * MIB
KINDS = {"fabric": (FABRIC,), "fabric and descriptor": (FABRIC, POSIX_FD), "descriptor and fabric": (POSIX_FD, FABRIC)}


@pytest.fixture
def held(emulated: Container, build: Path, short_tmp: Path) -> Path:
    """While this file is there, another process has what was exported."""
    directory, flag = short_tmp / "fabric", short_tmp / "held"
    directory.mkdir()
    real = directory / "libcudb.so.1"
    real.write_bytes((build / "libcuda.so.1").read_bytes().replace(b"\0libcuda.so.1\0", b"\0libcudb.so.1\0"))
    linking = ("-Wl,-soname,libcuda.so.1", "-Wl,--no-as-needed", f"-Wl,-rpath,{directory}")
    output = directory / "libcuda.so.1"
    compiled(output, *SHARED, f'-DFABRIC_HELD="{flag}"', *linking, _NATIVE / "fabric_driver.c", real, "-ldl")
    alias = emulated.driver / "libcuda-real.so.1"
    alias.unlink()
    alias.symlink_to(output)
    return flag


def cycle(cuda: Cuda, kinds: tuple[int, ...]) -> None:
    """Made, exported, given back: a sleep of a server that can be woken up."""
    handle = cuda.create(SIZE, allocation_properties(DEVICE, 0, POSIX_FD))
    for kind in kinds:
        out = cuda("cuMemExportToShareableHandle", room(64), handle, kind, 0)[0]
        if kind == POSIX_FD:
            cuda.ask(close=int.from_bytes(out[:4], "little"))
    cuda("cuMemRelease", handle)


@pytest.mark.parametrize("kinds", KINDS.values(), ids=KINDS)
def test_what_nobody_has_any_more_is_free_at_once(held: Path, gpu_slice: GpuSlice, kinds: tuple[int, ...]) -> None:
    user = gpu_slice.start()
    for _ in range(10):
        cycle(user, kinds)
        assert user.left() == gpu_slice.room
    assert not held.exists()


@pytest.mark.parametrize("kinds", KINDS.values(), ids=KINDS)
def test_what_another_process_has_counts_until_it_has_it_no_more(
    held: Path, gpu_slice: GpuSlice, kinds: tuple[int, ...]
) -> None:
    user = gpu_slice.start()
    held.touch()
    for _ in range(3):
        cycle(user, kinds)
    assert gpu_slice.used() == 3 * SIZE
    assert user.code("cuMemAlloc_v2", room(8), SIZE) == OUT_OF_MEMORY
    assert not eventually(lambda: user.left() > gpu_slice.room - 3 * SIZE, within=0.5)
    held.unlink()
    assert eventually(lambda: gpu_slice.used() == 0, within=2.0)
    assert user.left() == gpu_slice.limit - CONTEXT


def test_while_it_is_mapped_here_nobody_is_asked(held: Path, gpu_slice: GpuSlice) -> None:
    user = gpu_slice.start()
    handle = user.create(SIZE, allocation_properties(DEVICE, 0, POSIX_FD))
    address = user.reserve(SIZE)
    user.map(address, SIZE, handle)
    user("cuMemExportToShareableHandle", room(64), handle, FABRIC, 0)
    user("cuMemRelease", handle)
    assert user.left() == gpu_slice.room - SIZE
    user("cuMemUnmap", address, SIZE)
    assert user.left() == gpu_slice.room
    assert user.code("cuMemCreate", room(8), gpu_slice.room, pointer_to(allocation_properties()), 0) == 0
    assert not held.exists()

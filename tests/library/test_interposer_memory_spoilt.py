"""A container that writes into its own account: none of its processes gets more than the limit by that."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from deviceplugin.container import region
from tests.container.makers import put
from tests.library.gpu_slice import CONTEXT, LIMIT, GpuSlice
from tests.library.interposed import start_time
from tests.library.memory_client import MIB, OUT_OF_MEMORY, UNIT, Cuda, CudaError, pointer_to, room
from tests.library.memory_rig import image


def refused(cuda: Cuda, size: int) -> bool:
    try:
        cuda.alloc(size)
    except CudaError as error:
        return error.code == OUT_OF_MEMORY
    return False


def begun(gpu_slice: GpuSlice) -> Cuda:
    process = gpu_slice.start(context=False)
    process.begin()
    return process


SPOILT: dict[str, Callable[[Path], None]] = {
    "overwritten": lambda file: put(file, 0, bytes(8)),
    "of-another-grant": lambda file: put(file, 16, b"g-2"),
    "cut": lambda file: os.truncate(file, region.SIZE - 1),
    "gone": Path.unlink,
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_without_the_common_account_no_process_gets_memory(gpu_slice: GpuSlice, spoil: Callable[[Path], None]) -> None:
    """Security 12: each of them got the whole limit. One process alone is refused too: it cannot know that it is."""
    spoil(gpu_slice.container.region_file)
    for _ in range(3):
        process = begun(gpu_slice)
        assert refused(process, UNIT)
        assert process.left() == 0
    said = gpu_slice.errors.read_text()
    assert f"{gpu_slice.container.region_file}: " in said
    assert "this process gets no device memory; start the container again" in said


def test_without_the_common_account_no_module_brings_memory(gpu_slice: GpuSlice) -> None:
    """Its variables would be memory that nobody counts."""
    gpu_slice.container.region_file.unlink()
    process = begun(gpu_slice)
    for _ in range(2):
        codes = [
            process.code("cuModuleLoadData", room(8), pointer_to(image())),
            process.code("cuLibraryLoadData", room(8), pointer_to(image()), None, None, 0, None, None, 0),
        ]
        assert codes == [OUT_OF_MEMORY] * 2
    assert gpu_slice.outside().left() > 2 * gpu_slice.limit


def test_a_process_that_has_the_account_already_goes_on(gpu_slice: GpuSlice) -> None:
    process = gpu_slice.start()
    put(gpu_slice.container.region_file, 0, bytes(8))
    pointer = process.alloc(gpu_slice.room)
    process.free(pointer)
    assert refused(begun(gpu_slice), UNIT)


def test_a_process_without_a_slot_gets_no_memory(gpu_slice: GpuSlice) -> None:
    """Security 12: slots that are all taken, by hand, made room for the whole limit in each further process."""
    for slot in range(region.SLOTS):
        gpu_slice.container.occupy(slot, os.getpid(), start_time(os.getpid()))
    process = begun(gpu_slice)
    assert refused(process, UNIT)
    assert "has no slot left" in gpu_slice.errors.read_text()


def test_zeros_in_the_account_give_a_process_no_more_than_the_limit(gpu_slice: GpuSlice) -> None:
    """Security 12: what it has allocated it knows by itself. What its context takes is in the account only."""
    process = gpu_slice.start()
    pointer = process.alloc(gpu_slice.room)
    ((index, _),) = gpu_slice.container.slots().items()
    words = region.SLOTS_AT + region.SLOT_SIZE * index + region.SLOT.size
    put(gpu_slice.container.region_file, words, bytes(24))
    assert refused(process, CONTEXT + UNIT)
    process.free(pointer)
    put(gpu_slice.container.region_file, words, bytes(24))
    again = process.alloc(LIMIT - CONTEXT)
    process.free(again)


def test_memory_that_was_given_back_is_not_counted_again(gpu_slice: GpuSlice) -> None:
    process = gpu_slice.start()
    for _ in range(50):
        process.free(process.alloc(gpu_slice.room))
    pointers = [process.alloc(MIB * 8) for _ in range(gpu_slice.room // (MIB * 8))]
    assert refused(process, 8 * MIB)
    for pointer in pointers:
        process.free(pointer)
    process.free(process.alloc(gpu_slice.room))

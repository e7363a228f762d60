"""CUDA arrays: which descriptors are right, how much memory they take, what comes of their handles."""

import struct

import pytest

from tests.library.memory_client import (
    CAPACITY,
    INVALID_HANDLE,
    INVALID_VALUE,
    MIB,
    OUT_OF_MEMORY,
    UNIT,
    Cuda,
    pointer_to,
    room,
)

pytestmark = pytest.mark.thorough

_U8, _U16, _S32, _HALF, _FLOAT, _NV12, _BC1, _BC7, _UNORM8X4 = 1, 2, 0xA, 0x10, 0x20, 0xB0, 0x91, 0x9D, 0xC2
_LAYERED, _SURFACE, _CUBEMAP, _GATHER, _SPARSE, _DEFERRED = 1, 2, 4, 8, 0x40, 0x80
_TILE = 65536


def _descriptor(extents: tuple[int, int, int], form: int, channels: int, flags: int = 0) -> bytes:
    return struct.pack("QQQIII4x", *extents, form, channels, flags)


def _required(cuda: Cuda, descriptor: bytes, levels: int = 0) -> int:
    """Bytes of an array whose memory comes later, in whole tiles."""
    if levels:
        array = cuda.get("cuMipmappedArrayCreate", pointer_to(descriptor), levels)
        told = cuda("cuMipmappedArrayGetMemoryRequirements", room(32), array, 0)[0]
    else:
        array = cuda.get("cuArray3DCreate_v2", pointer_to(descriptor))
        told = cuda("cuArrayGetMemoryRequirements", room(32), array, 0)[0]
    size, alignment = struct.unpack("QQ", told[:16])
    assert alignment == _TILE
    return int(size)


def test_an_array_takes_its_elements_in_whole_blocks(cuda: Cuda) -> None:
    arrays = [
        ((131072, 0, 0), _U8, 1, 0, 131072),
        ((1024, 1024, 0), _FLOAT, 1, 0, 4 * MIB),
        ((1024, 1024, 0), _FLOAT, 4, 0, 16 * MIB),
        ((1024, 1024, 0), _HALF, 2, 0, 4 * MIB),
        ((1024, 1024, 0), _U16, 1, 0, 2 * MIB),
        ((1024, 1024, 0), _UNORM8X4, 4, 0, 4 * MIB),
        ((1000, 1000, 0), _FLOAT, 1, 0, 63 * 64 * 1000),
        ((256, 256, 256), _S32, 2, 0, 128 * MIB),
        ((1024, 0, 100), _U8, 4, _LAYERED, 4096 * 100),
        ((256, 256, 10), _U8, 4, _LAYERED, 256 * 256 * 4 * 10),
        ((512, 512, 6), _U8, 4, _CUBEMAP, 512 * 512 * 4 * 6),
        ((128, 128, 12), _FLOAT, 4, _CUBEMAP | _LAYERED, 128 * 128 * 16 * 12),
        ((1024, 1024, 0), _BC1, 4, 0, 512 * 1024),
        ((1024, 1024, 0), _BC7, 4, 0, MIB),
        ((1024, 1024, 0), _NV12, 3, 0, MIB * 3 // 2),
        ((1, 1, 0), _U8, 1, 0, 64 * 8),
    ]
    told = []
    for extents, form, channels, flags, _ in arrays:
        required = _required(cuda, _descriptor(extents, form, channels, flags | _DEFERRED))
        assert cuda.left() == CAPACITY, "none of it is there yet"
        array = cuda.get("cuArray3DCreate_v2", pointer_to(_descriptor(extents, form, channels, flags)))
        told.append((required, CAPACITY - cuda.left()))
        cuda("cuArrayDestroy", array)
        assert cuda.left() == CAPACITY
    sizes = [size for *_, size in arrays]
    assert told == [(-(-size // _TILE) * _TILE, -(-size // UNIT) * UNIT) for size in sizes]


def test_a_wrong_descriptor_makes_no_array(cuda: Cuda) -> None:
    wrong = [
        ((0, 0, 0), _U8, 1, 0),
        ((16, 0, 16), _U8, 1, 0),  # depth without height, and no layers
        ((16, 16, 0), _U8, 3, 0),
        ((16, 16, 0), _U8, 0, 0),
        ((16, 16, 0), _U8, 8, 0),
        ((16, 16, 0), 0x7, 1, 0),
        ((16, 16, 0), _UNORM8X4, 2, 0),
        ((16, 16, 0), _U8, 1, 0x1000),
        ((16, 16, 0), _U8, 1, _LAYERED),
        ((16, 16, 5), _U8, 1, _CUBEMAP),
        ((16, 15, 6), _U8, 1, _CUBEMAP),
        ((16, 16, 13), _U8, 1, _CUBEMAP | _LAYERED),
        ((16, 16, 16), _U8, 1, _GATHER),
        ((131073, 0, 0), _U8, 1, 0),
        ((32769, 0, 0), _U8, 1, _SURFACE),
        ((16, 65537, 0), _U8, 1, 0),
        ((16, 16, 16385), _U8, 1, 0),
        ((16, 16, 2049), _U8, 1, _LAYERED),
        ((16, 16, 4), _NV12, 3, 0),
    ]
    codes = [cuda.code("cuArray3DCreate_v2", room(8), pointer_to(_descriptor(*each))) for each in wrong]
    assert [each for each, code in zip(wrong, codes, strict=True) if code != INVALID_VALUE] == []


def test_two_dimensional_descriptors_of_both_generations(cuda: Cuda) -> None:
    newer = cuda.get("cuArrayCreate_v2", pointer_to(struct.pack("QQII", 640, 480, _FLOAT, 2)))
    assert cuda("cuArrayGetDescriptor_v2", room(24), newer)[0] == struct.pack("QQII", 640, 480, _FLOAT, 2)
    older = cuda.get("cuArrayCreate", pointer_to(struct.pack("IIII", 640, 480, _FLOAT, 2)))
    assert cuda("cuArrayGetDescriptor_v2", room(24), older)[0] == struct.pack("QQII", 640, 480, _FLOAT, 2)
    oldest = cuda.get("cuArray3DCreate", pointer_to(struct.pack("IIIIII", 8, 8, 6, _U8, 1, _CUBEMAP)))
    assert cuda("cuArray3DGetDescriptor_v2", room(40), oldest)[0] == _descriptor((8, 8, 6), _U8, 1, _CUBEMAP)


def test_a_handle_ends_with_its_array(cuda: Cuda) -> None:
    array = cuda.get("cuArrayCreate_v2", pointer_to(struct.pack("QQII", 16, 16, _U8, 1)))
    cuda("cuArrayDestroy", array)
    assert cuda.code("cuArrayDestroy", array) == INVALID_HANDLE
    assert cuda.code("cuArray3DGetDescriptor_v2", room(40), array) == INVALID_HANDLE
    assert cuda.code("cuMipmappedArrayDestroy", array) == INVALID_HANDLE


def test_requirements_are_of_arrays_whose_memory_comes_later(cuda: Cuda) -> None:
    backed = cuda.get("cuArray3DCreate_v2", pointer_to(_descriptor((16, 16, 0), _U8, 1)))
    sparse = cuda.get("cuArray3DCreate_v2", pointer_to(_descriptor((4096, 4096, 0), _U8, 4, _SPARSE)))
    for array in (backed, sparse):
        assert cuda.code("cuArrayGetMemoryRequirements", room(32), array, 0) == INVALID_VALUE
    assert CAPACITY - cuda.left() == UNIT


def test_a_mipmap_takes_the_sum_of_its_levels(cuda: Cuda) -> None:
    whole = _descriptor((1024, 1024, 0), _U8, 4, _DEFERRED)
    levels = [(1024 >> level) ** 2 * 4 for level in range(4)]
    assert _required(cuda, whole, 4) == sum(levels) // _TILE * _TILE + _TILE * (sum(levels) % _TILE > 0)
    assert _required(cuda, whole, 99) == _required(cuda, whole, 11)  # as many as the extents have


def test_a_level_is_half_of_the_one_before_and_ends_with_the_mipmap(cuda: Cuda) -> None:
    mipmap = cuda.get("cuMipmappedArrayCreate", pointer_to(_descriptor((100, 30, 8), _FLOAT, 1)), 5)
    expected = [(100, 30, 8), (50, 15, 4), (25, 7, 2), (12, 3, 1), (6, 1, 1)]
    levels = [cuda.get("cuMipmappedArrayGetLevel", mipmap, number) for number in range(5)]
    for array, extents in zip(levels, expected, strict=True):
        assert cuda("cuArray3DGetDescriptor_v2", room(40), array)[0] == _descriptor(extents, _FLOAT, 1)
    assert cuda.get("cuMipmappedArrayGetLevel", mipmap, 2) == levels[2]
    assert cuda.code("cuMipmappedArrayGetLevel", room(8), mipmap, 5) == INVALID_VALUE
    assert cuda.code("cuArrayDestroy", levels[0]) == INVALID_HANDLE
    cuda("cuMipmappedArrayDestroy", mipmap)
    assert cuda.code("cuArray3DGetDescriptor_v2", room(40), levels[1]) == INVALID_HANDLE
    assert cuda.left() == CAPACITY


def test_layers_are_not_halved(cuda: Cuda) -> None:
    mipmap = cuda.get("cuMipmappedArrayCreate", pointer_to(_descriptor((64, 64, 10), _U8, 1, _LAYERED)), 3)
    level = cuda.get("cuMipmappedArrayGetLevel", mipmap, 2)
    assert cuda("cuArray3DGetDescriptor_v2", room(40), level)[0] == _descriptor((16, 16, 10), _U8, 1, _LAYERED)


def test_an_array_larger_than_the_gpu_is_out_of_memory(cuda: Cuda) -> None:
    descriptor = pointer_to(_descriptor((16384, 16384, 16), _FLOAT, 4))
    assert cuda.code("cuArray3DCreate_v2", room(8), descriptor) == OUT_OF_MEMORY
    assert cuda.left() == CAPACITY


def test_nulls_are_invalid(cuda: Cuda) -> None:
    descriptor = pointer_to(_descriptor((16, 16, 0), _U8, 1))
    assert cuda.code("cuArray3DCreate_v2", None, descriptor) == INVALID_VALUE
    assert cuda.code("cuArray3DCreate_v2", room(8), None) == INVALID_VALUE
    assert cuda.code("cuMipmappedArrayCreate", room(8), descriptor, 0) == INVALID_VALUE
    assert cuda.code("cuMipmappedArrayCreate", None, descriptor, 1) == INVALID_VALUE

"""Modules, libraries and launches ("CUDA Driver API": Module and Library Management, Execution Control).

Kernels are found in PTX, or by the symbol table of machine code.
"""

import struct
from pathlib import Path

import pytest

from tests.library.cuda_client import (
    INVALID_HANDLE,
    INVALID_IMAGE,
    INVALID_PTX,
    INVALID_VALUE,
    MIB,
    NEW_PTX,
    NO_BINARY,
    NOT_FOUND,
    OUT_OF_MEMORY,
    SMALL,
    SUCCESS,
    TOO_LARGE,
    WORK,
    Process,
    kernel,
    pointer_to,
    ptx,
    room,
    start,
)
from tests.library.interposed import Container
from tests.library.machine import Machine
from tests.library.machine_code import cubin, fat_binary

pytestmark = pytest.mark.thorough

_MS = 1_000_000
_GATE = 1000 * _MS  # so long is a stream kept busy, so that what is queued behind has no host time in it


def _time(process: Process, function: int, shape: tuple[int, ...], parameters: list[bytes]) -> float:
    """Milliseconds of one launch."""
    stream = process.stream()
    process.launch(stream, _GATE)
    before = process.record(stream)
    arguments = {"pointers": [one.hex() for one in parameters]} if parameters else None
    process("cuLaunchKernel", function, *shape, 0, stream, arguments, None)
    return process.settled(before, process.record(stream))


def test_the_cost_directive_says_how_long_a_kernel_takes(process: Process) -> None:
    kernels: list[tuple[str, str, list[bytes], float]] = [
        ("", "", [], 0.01),
        ("2000000", "", [], 2.0),
        ("4 * param 0", ".param .u64 n", [struct.pack("Q", 500_000)], 2.0),
        ("4 * param 0", ".param .u32 n", [struct.pack("I", 500_000)], 2.0),
        ("1000 * param 1 + 500000", ".param .b8 x, .param .u32 n", [b"x", struct.pack("I", 1500)], 2.0),
        ("0.5 * param 0", ".param .u64 n", [struct.pack("Q", 4_000_000)], 2.0),
        ("1000 per thread", "", [], 2.048),
        ("1 * param 0 wide", ".param .u64 n", [struct.pack("Q", 3_000_000)], 3.0),
        ("1 * param 7", ".param .u64 n", [struct.pack("Q", 3_000_000)], 0.01),  # there is no such parameter
    ]
    told = []
    for number, (cost, parameters, given, _) in enumerate(kernels):
        function = process.function(ptx(kernel(f"costly{number}", cost, parameters)), f"costly{number}")
        told.append(_time(process, function, (2, 1, 1, 1024, 1, 1), given))
    assert told == [pytest.approx(milliseconds, abs=0.0005) for *_, milliseconds in kernels]


def test_a_kernel_is_found_among_whatever_else_the_text_has(process: Process) -> None:
    texts = [
        ptx(kernel("a"), kernel("work", "3000000"), kernel("b", "1000")),
        ptx(".func helper()\n{\n{ ret; }\n}\n", kernel("work", "3000000")),
        ptx(kernel("work", "3000000", directives=".maxntid 256, 1, 1\n.minnctapersm 2\n")),
        ptx(kernel("work", "3000000"), rest='.file 1 "a // vcuda-emulator: ns = 7 {"\n// .entry nothing ( {\n/* } */'),
        ptx(
            kernel("work", "3000000").replace(
                "// vcuda-emulator: ns = 3000000", "/* vcuda-emulator: ns = 3000000 */ { }"
            )
        ),
    ]
    told = [_time(process, process.function(text, "work"), (1, 1, 1, 256, 1, 1), []) for text in texts]
    assert told == [3.0] * len(texts)


def test_images_that_the_gpu_cannot_run_are_refused(process: Process) -> None:
    codes = {
        ptx(kernel("a"), version="99.0"): NEW_PTX,
        ptx(kernel("a"), version="8.5"): NEW_PTX,
        ptx(kernel("a"), version="8.4"): SUCCESS,
        ptx(kernel("a"), target="sm_90"): INVALID_PTX,
        ptx(kernel("a"), target="sm_50"): SUCCESS,
        ptx(".visible .entry a(.param .u64 x"): INVALID_PTX,
        ptx(".visible .entry a() {"): INVALID_PTX,
        b"nonsense\0": INVALID_PTX,
        b"\0": INVALID_PTX,
        b"\x7fELF" + bytes(60): INVALID_IMAGE,
        struct.pack("I", 0x466243B1) + bytes(60): INVALID_IMAGE,
    }
    told = {}
    for image in codes:
        given = pointer_to(image)
        told[image] = [
            process.code("cuModuleLoadData", room(8), given),
            process.code("cuModuleLoadDataEx", room(8), given, 0, None, None),
            process.code("cuLibraryLoadData", room(8), given, None, None, 0, None, None, 0),
        ]
    assert told == {image: [code] * 3 for image, code in codes.items()}


def test_a_module_pays_for_its_image_until_it_is_unloaded(process: Process) -> None:

    def left() -> int:
        return int.from_bytes(process("cuMemGetInfo_v2", room(8), room(8))[0], "little")

    before = left()
    module = process.module(ptx(kernel("a")) + b" " * 10)
    assert before - left() == 2 * MIB
    large = process.module(ptx(kernel("a"), rest="// " + "x" * (2 * MIB)))
    assert before - left() == 6 * MIB
    process("cuModuleUnload", large)
    process("cuModuleUnload", module)
    assert left() == before
    assert process.code("cuModuleUnload", module) == INVALID_HANDLE
    assert process.code("cuModuleGetFunction", room(8), module, pointer_to(b"a\0")) == INVALID_HANDLE


def test_a_module_that_does_not_fit_is_out_of_memory(process: Process) -> None:
    free = int.from_bytes(process("cuMemGetInfo_v2", room(8), room(8))[0], "little")
    process.get("cuMemAlloc_v2", free - 2 * MIB)
    process.module(ptx(kernel("a")))
    assert process.code("cuModuleLoadData", room(8), pointer_to(ptx(kernel("a")))) == OUT_OF_MEMORY


def test_names_that_are_not_in_a_module_are_not_found(process: Process) -> None:
    module = process.module(ptx(kernel("a"), rest=".global .align 4 .b8 table[4096];\n.global .u32 one;"))
    assert process.code("cuModuleGetFunction", room(8), module, pointer_to(b"b\0")) == NOT_FOUND
    assert process.code("cuModuleGetGlobal_v2", room(8), room(8), module, pointer_to(b"none\0")) == NOT_FOUND
    pointer, size, _ = process("cuModuleGetGlobal_v2", room(8), room(8), module, pointer_to(b"table\0"))
    assert int.from_bytes(size, "little") == 4096
    address = int.from_bytes(pointer, "little")
    process("cuMemcpyHtoD_v2", address, pointer_to(b"abcd"), 4)
    assert process("cuMemcpyDtoH_v2", room(4), address, 4)[0] == b"abcd"


def test_a_kernel_of_a_library_can_be_launched_as_a_function(process: Process) -> None:
    """cuLaunchKernel: the function may be a CUkernel, cast."""
    library = process.get("cuLibraryLoadData", pointer_to(WORK), None, None, 0, None, None, 0)
    handle = int.from_bytes(process("cuLibraryGetKernel", room(8), library, pointer_to(b"work\0"))[0], "little")
    assert _time(process, handle, SMALL, [struct.pack("Q", 2 * _MS)]) == 2.0
    function = process.get("cuKernelGetFunction", handle)
    assert function != handle
    assert _time(process, function, SMALL, [struct.pack("Q", 2 * _MS)]) == 2.0
    process("cuLibraryUnload", library)
    assert process.code("cuLaunchKernel", handle, *SMALL, 0, 0, {"pointers": [bytes(8).hex()]}, None) == INVALID_HANDLE


def test_a_shape_outside_of_the_limits_is_invalid(process: Process, stream: int) -> None:
    """CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"."""
    shapes = [
        (0, 1, 1, 1, 1, 1),
        (1, 0, 1, 1, 1, 1),
        (1, 1, 1, 0, 1, 1),
        (1, 1, 1, 1025, 1, 1),
        (1, 1, 1, 1, 1, 65),
        (1, 1, 1, 32, 33, 1),
        (1, 65536, 1, 1, 1, 1),
        (1, 1, 65536, 1, 1, 1),
        (2**31, 1, 1, 1, 1, 1),
    ]
    assert [shape for shape in shapes if process.launch_code(stream, 1, shape) != INVALID_VALUE] == []


def test_parameters_are_needed_and_come_one_way_only(process: Process) -> None:
    """cuLaunchKernel: kernelParams and extra together are CUDA_ERROR_INVALID_VALUE."""
    value = {"pointers": [struct.pack("Q", 1).hex()]}
    empty = {"bytes": bytes(8).hex()}
    assert process.code("cuLaunchKernel", process.work, *SMALL, 0, 0, None, None) == INVALID_VALUE
    assert process.code("cuLaunchKernel", process.work, *SMALL, 0, 0, value, empty) == INVALID_VALUE
    assert process.code("cuLaunchKernel", process.work, *SMALL, 0, 0, None, empty) == INVALID_VALUE
    assert process.code("cuLaunchKernel", process.work, *SMALL, 64 * 1024, 0, value, None) == INVALID_VALUE
    assert process.code("cuLaunchKernel", None, *SMALL, 0, 0, value, None) == INVALID_VALUE


def test_a_function_needs_no_more_threads_than_it_says(process: Process) -> None:
    function = process.function(ptx(kernel("few", directives=".maxntid 64\n")), "few")
    assert process.code("cuLaunchKernel", function, 1, 1, 1, 64, 1, 1, 0, 0, None, None) == SUCCESS
    assert process.code("cuLaunchKernel", function, 1, 1, 1, 65, 1, 1, 0, 0, None, None) == INVALID_VALUE
    assert int.from_bytes(process("cuFuncGetAttribute", room(4), 0, function)[0], "little") == 64


def test_a_cooperative_launch_must_fit_on_the_gpu(process: Process) -> None:
    value = {"pointers": [struct.pack("Q", 1).hex()]}
    fits, shape = 108 * 2, (1024, 1, 1)
    assert (
        process.code("cuLaunchCooperativeKernel", process.work, fits, 1, 1, *shape, 0, process.stream(), value)
        == SUCCESS
    )
    assert (
        process.code("cuLaunchCooperativeKernel", process.work, fits + 1, 1, 1, *shape, 0, process.stream(), value)
        == TOO_LARGE
    )
    blocks = process("cuOccupancyMaxActiveBlocksPerMultiprocessor", room(4), process.work, 1024, 0)[0]
    assert int.from_bytes(blocks, "little") == 2


def _configuration(shape: tuple[int, ...], stream: int, attributes: int = 0, count: int = 0) -> bytes:
    return struct.pack("7I4xQQI4x", *shape, 0, stream, attributes, count)


def test_a_launch_by_configuration_is_the_same_launch(process: Process, stream: int) -> None:
    process.launch(stream, _GATE)
    before = process.record(stream)
    value = {"pointers": [struct.pack("Q", 2 * _MS).hex()]}
    for variant in ("cuLaunchKernelEx", "cuLaunchKernelEx_ptsz"):
        process(variant, pointer_to(_configuration(SMALL, stream)), process.work, value, None)
    assert process.settled(before, process.record(stream)) == 4.0
    assert process.code("cuLaunchKernelEx", None, process.work, value, None) == INVALID_VALUE


def test_the_oldest_way_to_launch_still_works(process: Process, stream: int) -> None:
    """The section Execution Control [DEPRECATED]."""
    process("cuFuncSetBlockShape", process.work, 32, 1, 1)
    process("cuParamSetSize", process.work, 8)
    process("cuParamSetv", process.work, 0, pointer_to(struct.pack("Q", 2 * _MS)), 8)
    process.launch(stream, _GATE)
    before = process.record(stream)
    process("cuLaunchGridAsync", process.work, 4, 4, stream)
    assert process.settled(before, process.record(stream)) == 2.0
    process("cuParamSeti", process.work, 0, 1000)
    assert process.code("cuLaunch", process.work) == SUCCESS
    assert process.code("cuLaunchGrid", process.work, 0, 1) == INVALID_VALUE
    process("cuParamSetSize", process.work, 4)
    assert process.code("cuLaunch", process.work) == INVALID_VALUE  # fewer bytes than the kernel takes


def test_every_call_is_counted_by_its_symbol(process: Process, stream: int) -> None:
    for _ in range(3):
        process.launch(stream, 1)
    process.launch(0, 1, variant="_ptsz")
    assert [
        process.calls(name) for name in ("cuLaunchKernel", "cuLaunchKernel_ptsz", "cuInit", "cuMemAlloc_v2", "cuNone")
    ] == [3, 1, 1, 0, 0]


# ---- machine code ----


_LONG = "_Z" + "N" * 1500


def _load(process: Process, image: bytes) -> int:
    return process.code("cuModuleLoadData", room(8), pointer_to(image))


def _find(process: Process, module: int, name: str) -> int:
    return process.code("cuModuleGetFunction", room(8), module, pointer_to(name.encode() + b"\0"))


def _launch_ms(process: Process, function: int) -> float:
    stream = process.stream()
    process.launch(stream, 100_000_000)  # so that no host time is in it
    before = process.record(stream)
    process("cuLaunchKernel", function, *SMALL, 0, stream, None, None)
    return round(process.settled(before, process.record(stream)), 3)


@pytest.mark.parametrize("since_13", [True, False])
def test_kernels_and_variables_are_found_by_name(process: Process, *, since_13: bool) -> None:
    image = cubin(["work", _LONG], variables={"table": 4096}, device_functions=["helper"], since_13=since_13)
    module = process.module(image)
    assert [_find(process, module, name) for name in ("work", _LONG)] == [SUCCESS, SUCCESS]
    assert [_find(process, module, name) for name in ("helper", "table", "none")] == [NOT_FOUND] * 3
    _, size, _ = process("cuModuleGetGlobal_v2", room(8), room(8), module, pointer_to(b"table\0"))
    assert int.from_bytes(size, "little") == 4096


def test_a_library_of_machine_code_has_kernels(process: Process) -> None:
    library = process.get("cuLibraryLoadData", pointer_to(cubin()), None, None, 0, None, None, 0)
    found = process.get("cuLibraryGetKernel", library, pointer_to(b"work\0"))
    assert _launch_ms(process, found) == 0.01


@pytest.mark.parametrize(("given", "milliseconds"), [("", 0.01), ("soon", 0.01), ("3000000", 3.0)])
def test_a_kernel_takes_the_default_time_or_the_one_given(machine: Machine, given: str, milliseconds: float) -> None:
    process = start(machine, VCUDA_EMULATOR_KERNEL_NS=given)
    assert _launch_ms(process, process.function(cubin(), "work")) == milliseconds
    assert _launch_ms(process, process.function(ptx(kernel("work")), "work")) == milliseconds
    assert _launch_ms(process, process.function(ptx(kernel("work", "2000000")), "work")) == 2.0


@pytest.mark.parametrize(("target", "code"), [(80, SUCCESS), (86, NO_BINARY), (75, NO_BINARY), (90, NO_BINARY)])
def test_an_image_is_for_one_kind_of_gpu(process: Process, target: int, code: int) -> None:
    assert _load(process, cubin(target=target)) == code
    assert _load(process, fat_binary((target, cubin(target=target)))) == code


def test_a_fat_binary_gives_the_image_that_suits(process: Process) -> None:
    text = ptx(kernel("text"))
    images = [(75, cubin(["old"], target=75)), (70, text), (80, cubin(["right"])), (90, cubin(["new"], target=90))]
    module = process.module(fat_binary(*images))
    assert [_find(process, module, name) for name in ("right", "old", "new", "text")] == [SUCCESS] + [NOT_FOUND] * 3
    module = process.module(fat_binary(images[0], images[1]))
    assert _find(process, module, "text") == SUCCESS
    assert _load(process, fat_binary(images[2], compressed=True)) == NO_BINARY
    assert _load(process, fat_binary()) == NO_BINARY


def test_a_file_has_any_of_them(process: Process, short_tmp: Path) -> None:
    file = short_tmp / "image"
    for image in (cubin(), fat_binary((80, cubin())), ptx(kernel("work"))):
        file.write_bytes(image)
        module = process.get("cuModuleLoad", pointer_to(f"{file}\0".encode()))
        assert _find(process, module, "work") == SUCCESS
        library = process.get("cuLibraryLoadFromFile", pointer_to(f"{file}\0".encode()), None, None, 0, None, None, 0)
        process.get("cuLibraryGetKernel", library, pointer_to(b"work\0"))


@pytest.mark.parametrize("image", [cubin(variables={"table": 64}), fat_binary((80, cubin()))], ids=["cubin", "fat"])
def test_a_truncated_file_is_an_invalid_image(process: Process, short_tmp: Path, image: bytes) -> None:
    file = short_tmp / "image"
    for length in range(8, len(image), 40):
        file.write_bytes(image[:length])
        assert process.code("cuModuleLoad", room(8), pointer_to(f"{file}\0".encode())) == INVALID_IMAGE


def test_an_image_whose_variables_do_not_fit_is_out_of_memory(process: Process) -> None:
    assert _load(process, cubin(variables={"all": 1 << 50})) == OUT_OF_MEMORY
    assert _load(process, cubin(variables={"little": 64})) == SUCCESS


def test_the_runtime_s_wrapped_images_are_loaded(emulated: Container, build: Path) -> None:
    image = fat_binary((90, cubin(target=90))).hex()
    assert emulated.run("loads_wrapped", image, "work", LD_LIBRARY_PATH=str(build)).value == [0] * 6


@pytest.mark.parametrize(
    "image", [cubin(target=90, variables={"table": 64}), fat_binary((90, cubin(target=90)))], ids=["cubin", "fat"]
)
def test_an_image_that_ends_in_unreadable_memory_is_invalid(emulated: Container, build: Path, image: bytes) -> None:
    codes = emulated.run("loads_before_unreadable_memory", image.hex(), LD_LIBRARY_PATH=str(build)).value
    assert codes == [SUCCESS] + [INVALID_IMAGE] * (len(codes) - 1)

"""Machine code in the emulated driver: kernels and variables by the image's symbol table, and images that are wrong."""

from pathlib import Path

import pytest

from tests.library.cuda_client import (
    INVALID_IMAGE,
    NO_BINARY,
    NOT_FOUND,
    OUT_OF_MEMORY,
    SMALL,
    SUCCESS,
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


def test_good_and_damaged_images_with_memory_errors_fatal(sanitized_machine: Machine, short_tmp: Path) -> None:
    process = start(sanitized_machine)
    image = cubin(variables={"table": 64})
    file = short_tmp / "image"
    for content, code in ((image, SUCCESS), (fat_binary((80, image)), SUCCESS), (image[:600], INVALID_IMAGE)):
        file.write_bytes(content)
        assert process.code("cuModuleLoad", room(8), pointer_to(f"{file}\0".encode())) == code
    process("cuModuleUnload", process.module(image))
    process("cuDevicePrimaryCtxRelease_v2", 0)


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

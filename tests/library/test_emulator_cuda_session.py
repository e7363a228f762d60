"""What a process finds ("CUDA Driver API": Initialization, Device Management, Driver Entry Point Access).

Which driver and which GPUs; which functions, by cuGetProcAddress, over every row of cuda_functions.h.
"""

import struct
import uuid
from itertools import product
from pathlib import Path

import pytest

from tests.library.cuda_client import (
    DRIVER_MISMATCH,
    INVALID_DEVICE,
    INVALID_VALUE,
    NO_DEVICE,
    NOT_FOUND,
    NOT_INITIALIZED,
    NOT_SUPPORTED,
    SUCCESS,
    UNKNOWN,
    Argument,
    Process,
    pointer_to,
    room,
    start,
)
from tests.library.cuda_declarations import rows, unsupported
from tests.library.machine import Machine, shipped

pytestmark = pytest.mark.thorough

_MULTIPROCESSORS, _MAJOR, _MINOR, _COMPUTE_MODE, _NUMA = 16, 75, 76, 20, 134


def _uuids(machine: Machine) -> list[str]:
    return [gpu["uuid"] for gpu in machine.show()["gpus"]]


def _number(process: Process, name: str, *arguments: Argument) -> int:
    return int.from_bytes(process(name, room(4), *arguments)[0], "little", signed=True)


def _seen(process: Process) -> list[str]:
    """UUIDs by ordinal."""
    count = _number(process, "cuDeviceGetCount")
    return [f"GPU-{uuid.UUID(bytes=process('cuDeviceGetUuid', room(16), ordinal)[0])}" for ordinal in range(count)]


def test_before_cu_init_every_call_says_not_initialized(machine: Machine) -> None:
    process = start(machine, ready=False)
    calls: dict[str, list[Argument]] = {
        "cuDeviceGetCount": [room(4)],
        "cuCtxSynchronize": [],
        "cuMemAlloc_v2": [room(8), 4],
        "cuStreamQuery": [0],
    }
    codes = {name: process.code(name, *arguments) for name, arguments in calls.items()}
    assert codes == dict.fromkeys(calls, NOT_INITIALIZED)


def test_the_version_is_known_before_cu_init(machine: Machine) -> None:
    process = start(machine, ready=False)
    assert _number(process, "cuDriverGetVersion") == 12040
    assert process.code("cuDriverGetVersion", None) == INVALID_VALUE


def test_cu_init_takes_no_flags_and_may_be_called_again(machine: Machine) -> None:
    process = start(machine, ready=False)
    assert [process.code("cuInit", flags) for flags in (1, 0, 0)] == [INVALID_VALUE, SUCCESS, SUCCESS]


def test_without_a_machine_there_is_no_device(machine: Machine) -> None:
    process = start(
        machine, ready=False, VCUDA_EMULATOR_PROFILE=str(machine.directory / "none"), VCUDA_EMULATOR_STATE=""
    )
    assert process.code("cuInit", 0) == NO_DEVICE
    assert process.code("cuDeviceGetCount", room(4)) == NOT_INITIALIZED


def test_a_malformed_profile_is_an_unknown_error_that_is_explained_once(machine: Machine) -> None:
    machine.profile.write_text('{"format": 1}')
    process = start(machine, ready=False)
    assert [process.code("cuInit", 0) for _ in range(3)] == [UNKNOWN] * 3
    assert len(machine.errors.read_text().splitlines()) == 1


@pytest.mark.parametrize(("state", "code"), [("unload", NO_DEVICE), ("mismatch", DRIVER_MISMATCH)])
def test_a_driver_that_is_not_right_is_found_out_by_cu_init(machine: Machine, state: str, code: int) -> None:
    machine.describe("laptop")
    machine.command("driver", state)
    process = start(machine, ready=False)
    assert process.code("cuInit", 0) == code
    machine.command("driver", "load")
    assert process.code("cuInit", 0) == SUCCESS


def test_cuda_does_not_survive_fork(process: Process) -> None:
    calls = [["cuInit", [0]], ["cuDeviceGetCount", [room(4)]], ["cuCtxSynchronize", []]]
    assert process.ask(fork=calls)["codes"] == [NOT_INITIALIZED] * 3
    assert process.code("cuCtxSynchronize") == SUCCESS


def test_a_child_of_a_process_that_did_not_initialise_can(machine: Machine) -> None:
    process = start(machine, ready=False)
    assert process.ask(fork=[["cuInit", [0]], ["cuDeviceGetCount", [room(4)]]])["codes"] == [SUCCESS, SUCCESS]
    assert process.code("cuInit", 0) == SUCCESS


def test_cuda_visible_devices_stops_at_the_first_entry_that_names_no_gpu(machine: Machine) -> None:
    """CUDA C++ Programming Guide, "CUDA Environment Variables"."""
    machine.describe("hgx-a100")
    uuids = _uuids(machine)
    expected: dict[str, list[int]] = {
        "3,1": [3, 1],
        "2": [2],
        " 1 , 2": [1, 2],
        "0,8,1": [0],
        "1,x,2": [1],
        "5,-1,2": [5],
        "1,1,2": [1],
        "{2},{7}": [2, 7],
        "{0:.12}": [0],
        "{1},0": [1, 0],
        "GPU-ffff,1": [],
        "-1": [],
        "": [],
        "none": [],
    }
    told = {}
    for given in expected:
        process = start(machine, ready=False, CUDA_VISIBLE_DEVICES=given.format(*uuids))
        code = process.code("cuInit", 0)
        told[given] = code, _seen(process) if code == SUCCESS else []
    assert told == {
        given: (SUCCESS if places else NO_DEVICE, [uuids[place] for place in places])
        for given, places in expected.items()
    }


def test_the_fastest_gpu_comes_first_unless_the_order_is_by_pci_address(machine: Machine) -> None:
    machine.describe("pcie-mixed")
    by_address = [gpu["uuid"] for gpu in sorted(machine.show()["gpus"], key=lambda gpu: str(gpu["bus_id"]))]
    ordered, fastest = (
        start(machine, ready=False, CUDA_DEVICE_ORDER=order) for order in ("PCI_BUS_ID", "FASTEST_FIRST")
    )
    ordered("cuInit", 0)
    fastest("cuInit", 0)
    assert _seen(ordered) == by_address
    assert sorted(_seen(fastest)) == sorted(by_address)
    name = fastest("cuDeviceGetName", room(64), 64, 0)[0].split(b"\0")[0]
    models = shipped("pcie-mixed")["models"].values()
    best = max(models, key=lambda model: int(model.get("cores", 1024)) * int(model.get("sm_clock_mhz", 1000)))
    assert name.decode() == best["name"]


def test_a_lost_gpu_is_not_enumerated(machine: Machine) -> None:
    machine.describe("hgx-a100")
    machine.command("lose", 1)
    process = start(machine, ready=False)
    process("cuInit", 0)
    uuids = _uuids(machine)
    assert _seen(process) == [uuids[0], *uuids[2:]]


def test_a_gpu_lost_in_use_fails_every_call_of_its_context(machine: Machine, process: Process, stream: int) -> None:
    machine.command("lose", 0)
    assert process.launch_code(stream, 1) == UNKNOWN
    assert process.code("cuStreamSynchronize", stream) == UNKNOWN
    assert process.code("cuCtxSynchronize") == UNKNOWN


def test_attributes_are_the_profile_s(process: Process) -> None:
    expected = {
        _MULTIPROCESSORS: 6912 // 64,
        _MAJOR: 8,
        _MINOR: 0,
        _COMPUTE_MODE: 0,
        _NUMA: 0,
        33: 0x07,
        34: 0,
        50: 0,
        32: 1,
    }
    assert {which: _number(process, "cuDeviceGetAttribute", which, 0) for which in expected} == expected
    assert process.code("cuDeviceGetAttribute", room(4), 100_000, 0) == INVALID_VALUE
    assert process.code("cuDeviceGetAttribute", room(4), 1, 8) == INVALID_DEVICE


def test_an_attribute_that_no_document_describes_is_0(machine: Machine) -> None:
    process = start(machine, ready=False)
    process("cuInit", 0)
    answered = [process.code("cuDeviceGetAttribute", room(4), which, 0) for which in range(163)]
    assert [which for which, code in enumerate(answered) if code == INVALID_VALUE] == [0, 162]
    assert _number(process, "cuDeviceGetAttribute", 150, 0) == 0
    assert _number(process, "cuDeviceGetAttribute", 69, 0) == 1 << 28


def test_what_is_not_emulated_exists_and_says_so(machine: Machine) -> None:
    process = start(machine, ready=False)
    symbols = [row.symbol for row in unsupported()]
    assert {process.code(symbol) for symbol in symbols} == {NOT_INITIALIZED}
    process("cuInit", 0)
    assert {process.code(symbol) for symbol in symbols} == {NOT_SUPPORTED}


def test_memory_of_a_device_is_what_processes_can_have(process: Process) -> None:
    expected = (81920 - 618) << 20
    assert process.get("cuDeviceTotalMem_v2", 0) == expected
    _, total = process("cuMemGetInfo_v2", room(8), room(8))
    assert struct.unpack("Q", total)[0] == expected
    assert process.get("cuDeviceTotalMem", 0, size=4) == 2**32 - 1  # its number has 32 bits


def test_a_device_is_found_by_the_address_that_it_gives(process: Process) -> None:
    text = process("cuDeviceGetPCIBusId", room(32), 32, 3)[0].split(b"\0")[0]
    assert text == b"0000:4E:00.0"
    for written in (text, b"0000:4e:00.0", b"4E:00.0"):
        assert _number(process, "cuDeviceGetByPCIBusId", pointer_to(written + b"\0")) == 3
    assert process.code("cuDeviceGetByPCIBusId", room(4), pointer_to(b"0000:FF:00.0\0")) == INVALID_DEVICE
    assert process.code("cuDeviceGetPCIBusId", room(4), 4, 3) == INVALID_VALUE


def test_error_names_are_the_header_s(machine: Machine) -> None:
    process = start(machine, ready=False)
    assert process.code("cuGetErrorName", 2, room(8)) == SUCCESS
    assert process.code("cuGetErrorString", 900, room(8)) == SUCCESS
    assert process.code("cuGetErrorName", 12345, room(8)) == INVALID_VALUE
    assert process.code("cuGetErrorName", 2, None) == INVALID_VALUE


def test_the_state_can_be_made_by_a_cuda_process(machine: Machine) -> None:
    machine.describe("laptop")
    assert not machine.state.exists()
    process = start(machine)
    assert machine.state.exists()
    assert Path(f"{machine.state}.pids").exists()
    assert _number(process, "cuDeviceGetCount") == 1


# ---- cuGetProcAddress ----


_ROWS = [(row.symbol, row.base, row.version, row.stream) for row in (*rows(), *unsupported())]
_PLAIN, _LEGACY, _PER_THREAD = 0, 1, 2
_FOUND, _UNKNOWN, _TOO_OLD = 0, 1, 2


def _start(machine: Machine, cuda: str = "13.5", **environment: str) -> Process:
    machine.describe(shipped("laptop") | {"cuda": cuda})
    return start(machine, ready=False, **environment)


def _ask(process: Process, base: str, version: int, flags: int = _PLAIN) -> tuple[int, int, int]:
    """Code, address, status: by the five-argument generation."""
    arguments = [pointer_to(base.encode() + b"\0"), room(8), version, flags, pointer_to(struct.pack("i", 9))]
    answer = process.ask(call="cuGetProcAddress_v2", args=arguments)
    _, address, status = (bytes.fromhex(out) for out in answer["outs"])
    return answer["code"], struct.unpack("Q", address)[0], struct.unpack("i", status)[0]


def _address(process: Process, symbol: str) -> int:
    return int(process.ask(symbol=symbol)["value"])


def _expected(base: str, version: int, flags: int, newest: int) -> str | None:
    rows = [row for row in _ROWS if row[1] == base and row[2] <= min(version, newest)]
    if flags == _PER_THREAD and any(row[3] == "T" for row in rows):
        rows = [row for row in rows if row[3] == "T"]
    else:
        rows = [row for row in rows if row[3] == "L"]
    return max(rows, key=lambda row: row[2])[0] if rows else None


def test_the_newest_function_that_is_not_newer_than_asked_for_at_dlsym_s_address(machine: Machine) -> None:
    process = _start(machine)
    assert len(_ROWS) > 700
    addresses = {row[0]: _address(process, row[0]) for row in _ROWS}
    bases = sorted({row[1] for row in _ROWS})
    versions = (2000, 3020, 4000, 7000, 10010, 11000, 11030, 12000, 12080, 13000, 13050)
    wrong = []
    for base, version, flags in product(bases, versions, (_PLAIN, _LEGACY, _PER_THREAD)):
        symbol = _expected(base, version, flags, 13050)
        wanted = (SUCCESS, addresses[symbol], _FOUND) if symbol else (SUCCESS, 0, _TOO_OLD)
        if _ask(process, base, version, flags) != wanted:
            wrong.append((base, version, flags))
    assert wrong == []


def test_an_unknown_name_is_reported_in_the_status(machine: Machine) -> None:
    process = _start(machine)
    assert _ask(process, "cuNothing", 12000) == (SUCCESS, 0, _UNKNOWN)
    assert _ask(process, "cuMemAlloc_v2", 12000) == (SUCCESS, 0, _UNKNOWN)  # it takes base names
    assert _ask(process, "cuMemAllocAsync", 11010) == (SUCCESS, 0, _TOO_OLD)


def test_the_four_argument_generation_says_not_found(machine: Machine) -> None:
    process = _start(machine)
    answer = process.ask(call="cuGetProcAddress", args=[pointer_to(b"cuNothing\0"), pointer_to(b"x" * 8), 12000, 0])
    assert (answer["code"], answer["outs"][1]) == (NOT_FOUND, bytes(8).hex())
    found = process("cuGetProcAddress", pointer_to(b"cuMemAlloc\0"), room(8), 12000, 0)[1]
    assert struct.unpack("Q", found)[0] == _address(process, "cuMemAlloc_v2")


def test_it_finds_itself_in_the_generation_asked_for(machine: Machine) -> None:
    process = _start(machine)
    addresses = [_ask(process, "cuGetProcAddress", version)[1] for version in (11030, 12000)]
    assert addresses == [_address(process, "cuGetProcAddress"), _address(process, "cuGetProcAddress_v2")]


def test_a_version_above_the_driver_s_is_invalid(machine: Machine) -> None:
    process = _start(machine, "12.4")
    assert _ask(process, "cuMemAlloc", 12040)[0] == SUCCESS
    assert _ask(process, "cuMemAlloc", 12050)[0] == INVALID_VALUE


def test_a_driver_does_not_have_what_is_newer_than_it(machine: Machine) -> None:
    process = _start(machine, "11.0")
    assert _ask(process, "cuMemAllocAsync", 11000) == (SUCCESS, 0, _UNKNOWN)
    assert _ask(process, "cuMemCreate", 11000)[2] == _FOUND


def test_hidden_symbols_are_not_there(machine: Machine) -> None:
    process = _start(machine, VCUDA_EMULATOR_HIDE="cuMemAllocAsync,cuLaunchKernel_ptsz,cuMemAlloc_v2")
    assert _ask(process, "cuMemAllocAsync", 12000) == (SUCCESS, 0, _UNKNOWN)
    assert _ask(process, "cuLaunchKernel", 12000, _PER_THREAD)[1] == _address(process, "cuLaunchKernel")
    assert _ask(process, "cuMemAlloc", 12000)[1] == _address(process, "cuMemAlloc")


def test_arguments_that_are_missing_or_unknown_are_invalid(machine: Machine) -> None:
    process = _start(machine)
    name = pointer_to(b"cuInit\0")
    wrong: dict[str, list[int | dict[str, object] | None]] = {
        "no name": [None, room(8), 12000, 0, None],
        "no room": [name, None, 12000, 0, None],
        "empty name": [pointer_to(b"\0"), room(8), 12000, 0, None],
        "unknown flags": [name, room(8), 12000, 3, None],
    }
    codes = {what: process.code("cuGetProcAddress_v2", *arguments) for what, arguments in wrong.items()}
    assert codes == dict.fromkeys(wrong, INVALID_VALUE)


def test_the_status_may_be_left_out(machine: Machine) -> None:
    process = _start(machine)
    assert process.code("cuGetProcAddress_v2", pointer_to(b"cuInit\0"), room(8), 12000, 0, None) == SUCCESS

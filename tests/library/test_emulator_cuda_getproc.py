"""cuGetProcAddress ("CUDA Driver API, Driver Entry Point Access") over every row of cuda_functions.h."""

import struct
from itertools import product

import pytest

from tests.library.cuda_client import INVALID_VALUE, NOT_FOUND, SUCCESS, Process, pointer_to, room, start
from tests.library.cuda_declarations import rows, unsupported
from tests.library.machine import Machine, shipped

pytestmark = pytest.mark.thorough

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

"""Contexts ("CUDA Driver API": Primary Context Management, Context Management) and what they take of a GPU."""

import pytest

from tests.library.cuda_client import (
    DESTROYED,
    INVALID_CONTEXT,
    INVALID_DEVICE,
    INVALID_HANDLE,
    INVALID_VALUE,
    MIB,
    NON_BLOCKING,
    NOT_SUPPORTED,
    OUT_OF_MEMORY,
    PER_THREAD,
    SUCCESS,
    Process,
    room,
    start,
)
from tests.library.machine import Machine

pytestmark = pytest.mark.thorough

_UNAVAILABLE, _ACTIVE, _DETACHED = 46, 708, 917
_PEER_ON, _PEER_OFF = 704, 705


def _process(machine: Machine, **environment: str) -> Process:
    process = start(machine, ready=False, **environment)
    process("cuInit", 0)
    return process


def _used(machine: Machine, gpu: int = 0) -> int:
    return int(machine.show()["gpus"][gpu]["used_mib"])


def _current(process: Process) -> int:
    return process.get("cuCtxGetCurrent")


def _state(process: Process) -> tuple[int, int]:
    """Flags, active."""
    flags, active = process("cuDevicePrimaryCtxGetState", 0, room(4), room(4))
    return int.from_bytes(flags, "little"), int.from_bytes(active, "little")


def test_the_primary_context_is_one_for_the_process_and_lives_as_long_as_it_is_retained(machine: Machine) -> None:
    process = _process(machine)
    first, second = (process.get("cuDevicePrimaryCtxRetain", 0) for _ in range(2))
    assert first == second
    assert _state(process)[1] == 1
    process("cuDevicePrimaryCtxRelease_v2", 0)
    assert _state(process)[1] == 1
    process("cuDevicePrimaryCtxRelease_v2", 0)
    assert _state(process)[1] == 0
    assert process.code("cuDevicePrimaryCtxRelease_v2", 0) == INVALID_CONTEXT
    assert process.get("cuDevicePrimaryCtxRetain", 0) == first
    assert process.code("cuDevicePrimaryCtxRetain", room(8), 99) == INVALID_DEVICE


def test_a_reset_ends_everything_in_the_primary_context(machine: Machine, process: Process) -> None:
    stream, event = process.stream(), process.event()
    pointer = process.get("cuMemAlloc_v2", 100 * MIB)
    process("cuDevicePrimaryCtxReset_v2", 0)
    assert process.code("cuStreamQuery", stream) == INVALID_HANDLE
    assert process.code("cuEventQuery", event) == INVALID_HANDLE
    assert process.code("cuCtxSynchronize") == DESTROYED
    assert process.code("cuMemFree_v2", pointer) == DESTROYED
    assert _used(machine) == 0
    assert process.get("cuDevicePrimaryCtxRetain", 0) == process.context
    assert process.code("cuCtxSynchronize") == SUCCESS


def test_flags_of_the_primary_context(machine: Machine) -> None:
    process = _process(machine)
    assert process.code("cuDevicePrimaryCtxSetFlags_v2", 0, 0x100) == INVALID_VALUE
    process("cuDevicePrimaryCtxSetFlags_v2", 0, 4)
    assert _state(process) == (4, 0)
    process.get("cuDevicePrimaryCtxRetain", 0)
    assert _state(process) == (4 | 8, 1)
    assert process.code("cuDevicePrimaryCtxSetFlags", 0, 1) == _ACTIVE
    assert process.code("cuDevicePrimaryCtxSetFlags_v2", 0, 1) == SUCCESS


def test_a_thread_has_a_stack_of_contexts(machine: Machine) -> None:
    process = _process(machine)
    assert _current(process) == 0
    assert process.code("cuCtxSynchronize") == INVALID_CONTEXT
    assert process.code("cuCtxPopCurrent_v2", room(8)) == INVALID_CONTEXT
    one, other = process.get("cuCtxCreate_v2", 0, 0), process.get("cuCtxCreate_v2", 0, 1)
    assert _current(process) == other
    assert process.get("cuCtxGetDevice", size=4) == 1
    assert process.get("cuCtxPopCurrent_v2") == other
    assert _current(process) == one
    process("cuCtxSetCurrent", other)
    assert _current(process) == other
    process("cuCtxSetCurrent", None)
    assert _current(process) == 0
    assert process.get("cuCtxGetDevice_v2", one, size=4) == 0


def test_each_thread_has_its_own_current_context(process: Process) -> None:
    assert process.get("cuCtxGetCurrent", thread="other") == 0
    assert process.code("cuCtxSynchronize", thread="other") == INVALID_CONTEXT
    process("cuCtxSetCurrent", process.context, thread="other")
    assert process.code("cuCtxSynchronize", thread="other") == SUCCESS


def test_a_destroyed_context_leaves_the_stack_and_is_no_handle_any_more(process: Process) -> None:
    context = process.get("cuCtxCreate_v2", 0, 0)
    stream = process.stream()
    process("cuCtxSetCurrent", context, thread="other")
    process("cuCtxDestroy_v2", context)
    assert _current(process) == process.context
    assert process.code("cuCtxDestroy_v2", context) == INVALID_CONTEXT
    assert process.code("cuCtxPushCurrent_v2", context) == INVALID_CONTEXT
    assert process.code("cuStreamQuery", stream) == INVALID_HANDLE
    assert process.code("cuCtxSynchronize", thread="other") == DESTROYED
    assert (
        process.code("cuCtxDestroy_v2", process.context) == INVALID_CONTEXT
    )  # the primary one is released, not destroyed


@pytest.mark.parametrize(
    ("call", "before", "expected"),
    [
        ("cuCtxCreate", [0], 3010),
        ("cuCtxCreate_v2", [0], 3020),
        ("cuCtxCreate_v3", [None, 0, 0], 3020),
        ("cuCtxCreate_v4", [None, 0], 3020),
    ],
)
def test_every_generation_of_context_creation(
    machine: Machine, call: str, before: list[int | None], expected: int
) -> None:
    """Their arguments differ: (ctx, flags, dev), (ctx, affinity, n, flags, dev), (ctx, parameters, flags, dev)."""
    process = _process(machine)
    context = process.get(call, *before, 2)
    assert process.get("cuCtxGetDevice", size=4) == 2
    assert int.from_bytes(process("cuCtxGetApiVersion", context, room(4))[0], "little") == expected
    assert process.code(call, room(8), *before, 8) == INVALID_DEVICE
    assert process.code(call, None, *before, 0) == INVALID_VALUE


def test_parameters_of_creation_that_are_not_emulated(machine: Machine) -> None:
    process = _process(machine)
    assert process.code("cuCtxCreate_v4", room(8), room(16), 0, 0) == NOT_SUPPORTED


def test_the_first_context_on_a_gpu_pays_for_the_driver_s_share_and_further_ones_a_quarter(machine: Machine) -> None:
    process = _process(machine)
    machine.describe("hgx-a100")
    assert _used(machine) == 0
    process.get("cuDevicePrimaryCtxRetain", 0)
    assert _used(machine) == 500
    context = process.get("cuCtxCreate_v2", 0, 0)
    assert _used(machine) == 500 + 125
    process("cuDevicePrimaryCtxRelease_v2", 0)
    assert _used(machine) == 500
    process("cuCtxDestroy_v2", context)
    assert _used(machine) == 0


def test_a_context_that_does_not_fit_is_out_of_memory(machine: Machine) -> None:
    process = _process(machine, VCUDA_EMULATOR_CONTEXT_MIB="1000")
    machine.command("memory", 0, 81920 - 618 - 999)
    assert process.code("cuDevicePrimaryCtxRetain", room(8), 0) == OUT_OF_MEMORY
    assert process.code("cuCtxCreate_v2", room(8), 0, 0) == OUT_OF_MEMORY
    machine.command("memory", 0, 81920 - 618 - 1000)
    assert process.code("cuDevicePrimaryCtxRetain", room(8), 0) == SUCCESS
    assert process.code("cuCtxCreate_v2", room(8), 0, 1) == SUCCESS


def test_compute_modes_say_who_may_make_a_context(machine: Machine) -> None:
    first, second = _process(machine), _process(machine)
    machine.command("compute-mode", 0, "prohibited")
    assert first.code("cuDevicePrimaryCtxRetain", room(8), 0) == _UNAVAILABLE
    machine.command("compute-mode", 0, "exclusive_process")
    assert first.code("cuDevicePrimaryCtxRetain", room(8), 0) == SUCCESS
    assert second.code("cuDevicePrimaryCtxRetain", room(8), 0) == _UNAVAILABLE
    first.kill()
    assert second.code("cuDevicePrimaryCtxRetain", room(8), 0) == SUCCESS


def test_limits_are_kept(process: Process) -> None:
    process("cuCtxSetLimit", 2, 64 * MIB)
    assert process.get("cuCtxGetLimit", 2) == 64 * MIB
    assert process.get("cuCtxGetLimit", 0) == 1024
    assert process.code("cuCtxGetLimit", room(8), 99) == INVALID_VALUE


def test_peer_access_is_switched_on_and_off_between_gpus(process: Process) -> None:
    peer = process.get("cuDevicePrimaryCtxRetain", 1)
    codes = [
        process.code(name, peer, *rest)
        for name, rest in (
            ("cuCtxDisablePeerAccess", ()),
            ("cuCtxEnablePeerAccess", (0,)),
            ("cuCtxEnablePeerAccess", (0,)),
            ("cuCtxDisablePeerAccess", ()),
        )
    ]
    assert codes == [_PEER_OFF, SUCCESS, _PEER_ON, SUCCESS]
    assert process.code("cuCtxEnablePeerAccess", process.context, 0) == INVALID_DEVICE
    assert process.get("cuDeviceCanAccessPeer", 0, 1, size=4) == 1
    assert process.get("cuDeviceCanAccessPeer", 0, 0, size=4) == 0


def test_contexts_of_one_process_have_ids_of_their_own(process: Process) -> None:
    other = process.get("cuCtxCreate_v2", 0, 0)
    ids = [process("cuCtxGetId", context, room(8))[0] for context in (process.context, other)]
    assert ids[0] != ids[1]


def test_a_context_that_is_attached_ends_at_its_last_detaching(machine: Machine) -> None:
    """cuCtxAttach, cuCtxDetach: of the current context of the calling thread."""
    process = _process(machine)
    context = process.get("cuCtxCreate_v2", 0, 0)
    assert process.get("cuCtxAttach", 0) == context
    assert process.code("cuCtxAttach", room(8), 1) == INVALID_VALUE
    process("cuCtxDetach", context)
    assert process.code("cuCtxDetach", context, thread="other") == INVALID_CONTEXT
    process("cuCtxDetach", context)
    assert process.code("cuCtxPushCurrent_v2", context) == INVALID_CONTEXT
    assert _used(machine) == 0


def test_the_primary_context_is_not_detached(process: Process) -> None:
    assert process.code("cuCtxDetach", process.context) == INVALID_CONTEXT
    assert _state(process)[1] == 1


def _green(process: Process) -> tuple[int, int]:
    """A green context, and the CUcontext that stands for it."""
    green = process.get("cuGreenCtxCreate", None, 0, 1)
    return green, process.get("cuCtxFromGreenCtx", green)


def _context_of(process: Process, stream: int, getter: str = "cuStreamGetCtx") -> int:
    return int.from_bytes(process(getter, stream, room(8))[0], "little")


def test_a_green_context_has_streams_of_its_own_in_the_primary_one(process: Process) -> None:
    green, context = _green(process)
    assert context not in (green, process.context)
    made = process.get("cuGreenCtxStreamCreate", green, NON_BLOCKING, 0)
    assert process.code("cuGreenCtxStreamCreate", room(8), green, 0, 0) == INVALID_VALUE
    assert _context_of(process, made) == context
    both = [int.from_bytes(one, "little") for one in process("cuStreamGetCtx_v2", made, room(8), room(8))]
    assert both == [process.context, green]
    process("cuCtxSetCurrent", context)
    assert process.get("cuCtxGetCurrent") == context
    assert _context_of(process, process.stream()) == context
    assert _context_of(process, 0) == context
    event = process.event()
    for stream in (made, 0):  # the module is the primary context's, and so is the event
        process.launch(stream, 1000)
        process("cuEventRecord", event, stream)
    assert process.code("cuStreamGetCtx", PER_THREAD, room(8)) == INVALID_HANDLE
    process("cuCtxSetCurrent", process.context)
    assert _context_of(process, process.stream(), "cuStreamGetGreenCtx") == 0


def test_a_green_context_holds_the_primary_one_and_leaves_its_streams_detached(process: Process) -> None:
    green, _ = _green(process)
    stream = process.get("cuGreenCtxStreamCreate", green, NON_BLOCKING, 0)
    process("cuDevicePrimaryCtxRelease_v2", 0)
    assert _state(process)[1] == 1
    process.launch(stream, 1000)
    process("cuGreenCtxDestroy", green)
    assert _state(process)[1] == 0
    assert process.code("cuGreenCtxDestroy", green) == DESTROYED
    process("cuCtxSetCurrent", process.get("cuDevicePrimaryCtxRetain", 0))
    assert process.code("cuStreamSynchronize", stream) == _DETACHED
    process("cuStreamDestroy_v2", stream)


def test_a_green_context_in_two_threads_is_counted(process: Process) -> None:
    _, context = _green(process)

    def violations() -> int:
        return int(process.ask(green_violations=0)["value"])

    process("cuCtxSetCurrent", context, thread="one")
    process("cuCtxPushCurrent_v2", context, thread="one")
    assert violations() == 0
    process("cuCtxPushCurrent_v2", context, thread="two")
    assert violations() == 1

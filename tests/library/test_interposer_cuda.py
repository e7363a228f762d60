"""The hooks of start, contexts and information on the emulated driver: the share's figures, else the driver's."""

import pytest

from tests.library.codes import MIB
from tests.library.cuda_declarations import rows
from tests.library.interposed import GIB, Container, device
from tests.library.starting_line import line_of
from tests.library.test_interposer_getproc import FLAGS, OURS, VERSIONS, hooked

FIRST, SECOND = "00000000000000000000000000000001", "00000000000000000000000000000002"
NO_CONTEXT, NOT_INITIALIZED, INVALID_CONTEXT, NOT_SUPPORTED = 201, 3, 201, 801


def test_getproc_matrix_on_the_emulated_driver(emulated: Container) -> None:
    bases = sorted({row.base for row in rows()})
    for function in ("cuGetProcAddress", "cuGetProcAddress_v2"):
        for base, version, flag, ours, real in emulated.run("getproc", function, bases, VERSIONS, FLAGS).value:
            assert ours[:2] == real[:2], (base, version, flag)
            if real[3] in hooked():
                assert ours[2:4] == [OURS, real[3]], (base, version, flag)
            else:
                assert ours[4] == real[4], (base, version, flag)


@pytest.mark.parametrize("hidden", ["cuMemGetInfo_v2", "cuDeviceTotalMem_v2,cuMemGetInfo_v2"])
def test_a_function_that_is_hidden_from_getproc_is_not_routed_to(emulated: Container, hidden: str) -> None:
    answers = emulated.run(
        "getproc", "cuGetProcAddress_v2", ["cuMemGetInfo"], [12000], [0], VCUDA_EMULATOR_HIDE=hidden
    ).value
    assert [ours[2:4] for *_, ours, _ in answers] == [[OURS, "cuMemGetInfo"]]


@pytest.mark.parametrize("visible", ["0,1", "1,0", "1", "GPU-00000000-0000-0000-0000-000000000002,0"])
def test_limits_go_by_uuid_whatever_the_ordinals_are(emulated: Container, visible: str) -> None:
    emulated.grant(device(0, memory=2 * GIB), device(1, memory=3 * GIB))
    totals = emulated.run("totals_by_uuid", CUDA_VISIBLE_DEVICES=visible).value
    expected = {FIRST: 2 * GIB, SECOND: 3 * GIB}
    assert totals == {uuid: expected[uuid] for uuid in totals}
    assert set(totals) == ({SECOND} if visible == "1" else {FIRST, SECOND})


def test_each_device_shows_its_own_figures(emulated: Container) -> None:
    emulated.grant(device(0, memory=2 * GIB), device(1, memory=3 * GIB))
    assert emulated.run("in_context", 0, "shown").value["total"] == 2 * GIB
    assert emulated.run("in_context", 1, "shown", 1).value["total"] == 3 * GIB


def test_a_thread_without_a_context_hears_what_the_driver_says(emulated: Container) -> None:
    emulated.grant(device(0))
    assert emulated.run("in_context", 0, "from_a_thread", "memory_without_context").value == [INVALID_CONTEXT, 2 * GIB]


def test_the_first_call_may_be_any(emulated: Container) -> None:
    emulated.grant(device(0))
    outcome = emulated.run("before_init")
    assert outcome.value == [0, NOT_INITIALIZED, 0, 0, 0, 0, 2 * GIB]
    assert outcome.errors == ""


@pytest.mark.parametrize("location", [0, 1, 2])  # CUmemLocationType: none, device, host
def test_pools_of_managed_memory_are_refused_where_memory_is_limited(container: Container, location: int) -> None:
    """Nothing would count their memory, which moves to the GPU that uses it."""
    pinned, managed = 1, 2  # CUmemAllocationType
    assert container.run("pools_of", managed, location).value == [0, 0, 0]
    container.grant(device(0))
    assert container.run("pools_of", pinned, location).value == [0, 0, 0]
    assert container.run("pools_of", managed, location).value == [NOT_SUPPORTED] * 3


@pytest.mark.parametrize("limited", [True, False])
def test_contexts_are_made_and_ended_as_without_us(emulated: Container, *, limited: bool) -> None:
    if limited:
        emulated.grant(device(0), device(1))
    direct = emulated.run(
        "contexts", LD_LIBRARY_PATH=str((emulated.driver / "libcuda-real.so.1").resolve().parent)
    ).value
    outcome = emulated.run("contexts")
    assert outcome.value == direct
    assert direct[:4] == [0, 0, 0, 0]
    assert outcome.errors == ""


def test_unused_memory_is_free_up_to_the_limit_only(emulated: Container) -> None:
    """A neighbour without limits has most of the GPU: the limit promises more than there is."""
    emulated.grant(device(0, memory=70 * GIB))
    hungry = emulated.start("in_context", 0, "hold_memory", 40 * GIB, VCUDA_DIR="/nowhere")
    assert int(line_of(hungry)) == 0
    seen = emulated.run("in_context", 0, "shown").value
    nvml = emulated.run("shown_by_nvml").value["v1"]
    hungry.communicate()
    assert seen["total"] == nvml[0] == 70 * GIB
    assert seen["free"] < 40 * GIB
    assert abs(seen["free"] - nvml[1]) <= 600 * MIB  # the context that asks

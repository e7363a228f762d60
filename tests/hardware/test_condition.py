"""What the driver says about a GPU beside its answers: what keeps new pods away, and what does not."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deviceplugin.hardware.health import Condition, Fabric
from deviceplugin.hardware.nvml import GONE, STALE, Nvml, NvmlLibrary, Status
from deviceplugin.hardware.nvml_session import Sampler, Session
from deviceplugin.hardware.state import _EVENTS
from tests.hardware.conftest import Stub, uuid
from tests.hardware.starting import Start, reasons, starting, until_reasons
from tests.waiting import until

REMAP = "a faulty row of its memory could not be remapped; have the GPU checked and replaced"
NOT_YET = "its NVLink fabric is not set up yet; see the fabric manager (nvidia-fabricmanager)"
FAILED = "the set-up of its NVLink fabric failed (NVML error 999); see the fabric manager"
LOCKED = "confidential computing: it accepts no work yet; attest it and run `nvidia-smi conf-compute -srs 1`"


@pytest.fixture
async def start(stub: Stub) -> AsyncIterator[Start]:
    async with starting(stub.library, stub.orders) as begin:
        yield begin


def conditions(stub: Stub) -> dict[str, Condition]:
    """Of one survey."""
    nvml = Nvml(NvmlLibrary(path=stub.library))
    session = Session.begin(nvml, known=None, sampler=Sampler(period_s=1.0), sys_root=stub.orders / "sys")
    survey = session.read(listen=False, sample=False, survey=True).survey
    nvml.close()
    assert survey is not None
    return {str(found): condition for found, condition in survey.conditions.items()}


def test_a_condition_has_one_reason_or_none() -> None:
    reasons = {
        Condition(): "",
        Condition(action=0, remap_failed=False, remap_pending=True, fabric=Fabric(0, 0), locked=False): "",
        Condition(remap_failed=True): REMAP,
        Condition(fabric=Fabric(1, 0)): NOT_YET,
        Condition(fabric=Fabric(2, 999)): NOT_YET,
        Condition(fabric=Fabric(3, 0)): "",
        Condition(fabric=Fabric(3, 999)): FAILED,
        Condition(fabric=Fabric(0, 999)): "",
        Condition(fabric=Fabric(4, 999)): "",
        Condition(locked=True): LOCKED,
        Condition(action=5): "",
        Condition(action=1, fabric=Fabric(1, 0)): "the driver asks for a reset of the GPU",
    }
    assert {each: each.reason for each in reasons} == reasons


def test_what_is_not_known_any_more_stays_as_it_was() -> None:
    known = Condition(action=1, remap_pending=True, fabric=Fabric(3, 0))
    assert known.updated(Condition()) == known
    assert known.updated(Condition(action=0)) == Condition(action=0, remap_pending=True, fabric=Fabric(3, 0))


def test_everything_that_the_driver_says_is_read(stub: Stub) -> None:
    for name, value in (("remapped.0", "1 0"), ("fabric.0", "3 999"), ("action.0", 4), ("cc", 1)):
        stub.order(name, value)
    assert conditions(stub) == {
        uuid(0): Condition(4, remap_failed=False, remap_pending=True, fabric=Fabric(3, 999), locked=True),
        uuid(1): Condition(0, remap_failed=None, remap_pending=None, fabric=Fabric(0, 0), locked=True),
    }
    stub.order("cc-ready", 1)
    assert {condition.locked for condition in conditions(stub).values()} == {False}


QUESTIONS = {
    "nvmlDeviceGetRemappedRows.0": ("remap_failed", "remap_pending"),
    "nvmlDeviceGetGpuFabricInfoV.0": ("fabric",),
    "nvmlDeviceGetFieldValues.0": ("action",),
    "nvmlSystemGetConfComputeState": ("locked",),
    "nvmlSystemGetConfComputeGpusReadyState": ("locked",),
}
FIELDS = tuple(Condition.__struct_fields__)
ERRORS = sorted({*range(2, 29), 999} - STALE - GONE - {8, 10})  # 8: insufficient power, 10: for events only


def test_whatever_a_question_fails_with_only_its_answer_is_unknown(stub: Stub) -> None:
    """NVML C, extended: NOT_SUPPORTED, FUNCTION_NOT_FOUND, NO_PERMISSION, UNKNOWN and all the others."""
    for name, value in (("remapped.0", "0 1"), ("fabric.0", "1 0"), ("action.0", 1), ("cc", 1)):
        stub.order(name, value)
    unknown = {}
    for question in QUESTIONS:
        for code in ERRORS:
            stub.order(question, code)
            told = conditions(stub)[uuid(0)]
            unknown[question, code] = tuple(name for name in FIELDS if getattr(told, name) is None)
        stub.withdraw(question)
    assert unknown == {(question, code): names for question, names in QUESTIONS.items() for code in ERRORS}


def test_a_gpu_that_is_lost_in_a_survey_is_judged_by_its_probe(stub: Stub) -> None:
    stub.order("nvmlDeviceGetRemappedRows.0", Status.GPU_IS_LOST)
    assert set(conditions(stub)) == {uuid(1)}


async def test_a_gpu_whose_fabric_is_not_set_up_is_offered_when_it_is(stub: Stub, start: Start) -> None:
    """NVML E: GPUs were offered while the fabric manager was not ready, and CUDA did not start there."""
    stub.order("fabric.1", "2 0")
    hardware = await start()
    assert reasons(hardware) == {uuid(1): NOT_YET}, "never offered, not even for a moment"
    stub.order("fabric.1", "3 0")
    await until_reasons(hardware, {})


async def test_gpus_that_wait_for_attestation_are_not_offered(stub: Stub, start: Start) -> None:
    stub.order("cc", 1)
    hardware = await start()
    await until_reasons(hardware, {uuid(0): LOCKED, uuid(1): LOCKED})
    stub.order("cc-ready", 1)
    await until_reasons(hardware, {})


async def test_a_failed_remapping_of_memory_is_unhealthy_and_a_pending_one_is_shown(stub: Stub, start: Start) -> None:
    stub.order("remapped.0", "1 0")
    stub.order("remapped.1", "1 1")
    hardware = await start()
    await until_reasons(hardware, {uuid(1): REMAP})
    assert hardware.repairs_pending == {uuid(0), uuid(1)}
    stub.order("remapped.0", "0 0")
    await until(lambda: hardware.repairs_pending == {uuid(1)})


async def test_an_announced_recovery_action_is_read_at_once(stub: Stub, start: Start) -> None:
    stub.order("event-types", 0x8 | 0x8000)
    hardware = await start(rescan_period_s=1000.0)
    await until(lambda: len(hardware.samples) == 2)
    stub.order("action.1", 4)
    stub.order("event", "1 32768 4")
    await until(
        lambda: reasons(hardware) == {uuid(1): "the driver asks to drain the GPU and to reset it"},
        seen=lambda: reasons(hardware),
    )


def test_the_page_lists_every_reason() -> None:
    page = (Path(__file__).parents[2] / "docs" / "gpu-health.md").read_text()
    for reason in (REMAP, NOT_YET, FAILED.replace("999", "N"), LOCKED, *_EVENTS.values()):
        assert reason in page

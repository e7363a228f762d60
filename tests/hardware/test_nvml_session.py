"""One session of NVML after the other: what is read in it, and what the next one takes over."""

import pytest

from deviceplugin.hardware.health import Condition, Fabric
from deviceplugin.hardware.nvml import Nvml, NvmlLibrary
from deviceplugin.hardware.nvml_session import GpuEvent, Sampler, Session
from deviceplugin.model.gpu import GpuUuid
from tests.hardware.conftest import Stub, uuid


@pytest.fixture
def nvml(stub: Stub) -> Nvml:
    return Nvml(NvmlLibrary(path=stub.library))


def begin(stub: Stub, nvml: Nvml, previous: Session | None = None) -> Session:
    sampler = Sampler(period_s=1.0)
    return Session.begin(nvml, known=None, sampler=sampler, sys_root=stub.orders / "sys", previous=previous)


def events(session: Session) -> tuple[GpuEvent, ...]:
    """Those that are known already."""
    return session.read(listen=False, sample=False, survey=False).events


def test_the_last_events_before_nvml_is_opened_again_are_heard(stub: Stub, nvml: Nvml) -> None:
    """NVML is opened again while a GPU is lost; what another one raised since the last reading must not get lost."""
    first = begin(stub, nvml)
    stub.event(1, xid=79)
    second = begin(stub, nvml, previous=first)
    assert events(second) == (GpuEvent(GpuUuid(uuid(1)), 79),)
    assert events(second) == ()


def test_a_session_ends_also_where_the_driver_is_gone(stub: Stub, nvml: Nvml) -> None:
    first = begin(stub, nvml)
    stub.order("nvmlEventSetWait_v2", 9)
    stub.order("nvmlEventSetFree", 9)
    assert events(begin(stub, nvml, previous=first)) == ()


def test_a_setting_that_cannot_be_read_hides_nothing_that_the_driver_says(stub: Stub, nvml: Nvml) -> None:
    session = begin(stub, nvml)
    stub.order("nvmlDeviceGetComputeMode.0", 999)
    stub.order("fabric.0", "1 0")
    survey = session.read(listen=False, sample=False, survey=True).survey
    assert survey is not None
    assert survey.conditions[GpuUuid(uuid(0))] == Condition(action=0, fabric=Fabric(1, 0), locked=False)
    assert set(survey.gpus) == {uuid(1)}, "what was read of it before stays"

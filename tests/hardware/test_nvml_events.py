"""One event set: whose event it is, which kinds count, and what a GPU without events costs."""

import pytest

from deviceplugin.errors import NvmlCallError
from deviceplugin.hardware.device import Device
from deviceplugin.hardware.nvml import Nvml, NvmlLibrary
from deviceplugin.hardware.nvml_session import EventKind, EventSet, GpuEvent
from deviceplugin.model.gpu import GpuUuid
from tests.hardware.conftest import Stub, uuid


def event_set(stub: Stub, *indices: int, old: bool = False) -> EventSet:
    nvml = Nvml(NvmlLibrary(path=stub.old_library if old else stub.library))
    nvml.open()
    return EventSet(nvml, {GpuUuid(uuid(index)): Device.at(nvml, index) for index in indices})


def test_an_event_names_its_gpu_and_only_faults_count(stub: Stub) -> None:
    expected = {
        "1 8 79": (GpuEvent(GpuUuid(uuid(1)), 79),),
        "0 2 0": (GpuEvent(GpuUuid(uuid(0)), kind=EventKind.DOUBLE_BIT_ECC),),
        "0 16384 0": (GpuEvent(GpuUuid(uuid(0)), kind=EventKind.UNAVAILABLE),),
        "1 32768 1": (GpuEvent(GpuUuid(uuid(1)), kind=EventKind.RECOVERY_ACTION),),
        "-1 8 79": (GpuEvent(None, 79),),
        "0 4 2": (),  # a change of the P-state
        "0 1 1": (),  # a corrected memory error
    }
    events, found = event_set(stub, 0, 1), {}
    for order in expected:
        stub.order("event", order)
        found[order] = events.drain()
        assert events.drain() == ()
    assert found == expected


def test_an_event_of_another_gpu_is_reported_by_its_uuid_if_it_answers(stub: Stub) -> None:
    events = event_set(stub, 0)
    stub.event(1, xid=79)
    assert events.drain() == (GpuEvent(GpuUuid(uuid(1)), 79),)
    stub.order("nvmlDeviceGetUUID.1", 15)
    stub.event(1, xid=79)
    assert events.drain() == (GpuEvent(None, 79),)


def test_a_gpu_that_has_no_events_is_left_out(stub: Stub) -> None:
    stub.order("nvmlDeviceRegisterEvents.0", 3)
    stub.event(1, xid=79)
    assert event_set(stub, 0, 1).drain() == (GpuEvent(GpuUuid(uuid(1)), 79),)


@pytest.mark.parametrize("old", [True, False])
def test_without_any_gpu_to_listen_to_nothing_is_asked(stub: Stub, old: bool) -> None:
    stub.order("nvmlDeviceRegisterEvents", 3)
    assert event_set(stub, 0, 1, old=old).drain() == ()
    assert stub.waits == 0


def test_a_registration_that_spoils_the_set_costs_only_its_gpu(stub: Stub) -> None:
    """NVML's documentation: after UNKNOWN the event set is in undefined state and should be freed."""
    stub.order("nvmlDeviceRegisterEvents.0", 999)
    events = event_set(stub, 0, 1)
    assert (list(events.unheard), events.may_hear_more) == ([uuid(0)], True)
    stub.event(1, xid=79)
    assert events.drain() == (GpuEvent(GpuUuid(uuid(1)), 79),)


def test_a_gpu_that_has_no_events_is_not_asked_for_them_again(stub: Stub) -> None:
    again = {}
    for code in (3, 15, 999):
        stub.order("nvmlDeviceRegisterEvents.0", code)
        again[code] = event_set(stub, 0, 1).may_hear_more
    assert again == {3: False, 15: True, 999: True}


def test_a_wait_that_fails_says_why(stub: Stub) -> None:
    events = event_set(stub, 0)
    stub.order("nvmlEventSetWait_v2", 15)
    with pytest.raises(NvmlCallError, match="nvmlEventSetWait failed: NVML says 'GPU is lost'"):
        events.drain()


def test_a_driver_that_is_gone_is_not_taken_for_a_gpu_without_events(stub: Stub) -> None:
    stub.order("nvmlDeviceRegisterEvents.1", 9)
    with pytest.raises(NvmlCallError, match="Driver Not Loaded"):
        event_set(stub, 0, 1)


def test_closing_twice_or_after_nvml_harms_nothing(stub: Stub) -> None:
    events = event_set(stub, 0)
    stub.order("nvmlEventSetFree", 999)
    events.close()
    events.close()
    assert events.drain() == ()


def test_the_driver_is_asked_for_what_it_supports_and_what_counts(stub: Stub) -> None:
    expected = {
        0x8 | 0x2 | 0x1: 0x8,  # an XID tells more than the ECC error beside it: NVML E, NVIDIA's plugin skips it too
        0x2 | 0x1: 0x2,
        0x8 | 0x2 | 0x4000 | 0x8000 | 0x80: 0x8 | 0x4000 | 0x8000,
        0xFFFF: 0x8 | 0x4000 | 0x8000,
    }
    asked = {}
    for supported in expected:
        stub.order("event-types", supported)
        event_set(stub, 0)
        asked[supported] = int((stub.orders / "registered.0").read_text())
    assert asked == expected

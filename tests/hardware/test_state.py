"""What each reading makes of the inventory, without a driver."""

import pytest
from structlog.testing import capture_logs

from deviceplugin.hardware.discovery import Discovery
from deviceplugin.hardware.health import HealthChange, QuietPeriod, RecoveryRules, XidPolicy
from deviceplugin.hardware.nvml_session import EventKind, Fault, GpuEvent, GpuReport, GpuSurvey, Readings
from deviceplugin.hardware.state import HardwareState, Remembered
from deviceplugin.model.gpu import ComputeMode, GpuSample, GpuUuid, Health, Inventory
from deviceplugin.model.topology import Level, Link
from deviceplugin.structs import replace
from tests.hardware.makers import inventory

NODE = inventory(3)
ZERO, ONE, TWO = (gpu.uuid for gpu in NODE.gpus)
IDLE = GpuSample(utilization_percent=0, memory_used_bytes=0)
HEALTHY = Health()


def ill(reason: str) -> Health:
    return Health(healthy=False, reason=reason)


def found(what: Inventory = NODE, *, failed: dict[GpuUuid, str] | None = None) -> Discovery:
    return Discovery(what.gpus, what.topology, what.driver, {}, failed or {}, len(what.gpus), ())


def well(*uuids: GpuUuid, events: tuple[GpuEvent, ...] = ()) -> GpuReport:
    return GpuReport(events=events, readings=Readings(dict.fromkeys(uuids or (ZERO, ONE, TWO), IDLE), {}))


@pytest.fixture
def state() -> HardwareState:
    one = HardwareState(rules=RecoveryRules(quiet_s=100, passes=2, failures=2), xids=XidPolicy())
    one.discovered(found(), driver_reloaded=False)
    assert one.publish() is not None
    return one


def test_the_first_discovery_is_a_change_of_gpus() -> None:
    state = HardwareState(rules=RecoveryRules(), xids=XidPolicy())
    assert state.publish() is None
    state.discovered(found(failed={ONE: "GPU is lost"}), driver_reloaded=False)
    change = state.publish()
    assert change is not None
    assert change.gpus_changed
    assert change.health == (HealthChange(ONE, HEALTHY, ill("GPU is lost")),)
    assert state.inventory == change.inventory == replace(NODE, health={ONE: ill("GPU is lost")})


def test_readings_of_healthy_gpus_change_nothing_but_the_samples(state: HardwareState) -> None:
    before = state.inventory
    state.apply(well(), now=1.0)
    assert state.publish() is None
    assert state.inventory is before
    assert state.samples == {ZERO: IDLE, ONE: IDLE, TWO: IDLE}


def test_a_reading_without_samples_keeps_the_last_ones(state: HardwareState) -> None:
    state.apply(well(), now=1.0)
    state.apply(GpuReport(), now=2.0)
    assert len(state.samples) == 3


def test_a_lost_gpu_has_no_sample_and_comes_back_after_its_probes(state: HardwareState) -> None:
    state.apply(well(), now=0.5)
    state.apply(GpuReport(readings=Readings({ZERO: IDLE, TWO: IDLE}, {ONE: Fault("GPU is lost", True)})), now=1.0)
    change = state.publish()
    assert change is not None
    assert not change.gpus_changed
    assert change.health == (HealthChange(ONE, HEALTHY, ill("GPU is lost")),)
    assert (ONE in state.samples, state.lost_beside(())) == (False, True)
    assert not state.lost_beside({1}), "a GPU that hangs is not looked for"
    state.apply(well(), now=2.0)
    assert state.publish() is None
    state.apply(well(), now=3.0)
    back = state.publish()
    assert back is not None
    assert back.health == (HealthChange(ONE, ill("GPU is lost"), HEALTHY),)
    assert not state.lost_beside(())


def test_an_event_of_a_gpu_condemns_it_alone_and_one_without_a_gpu_none(state: HardwareState) -> None:
    state.apply(well(events=(GpuEvent(uuid=None, xid=79),)), now=1.0)
    assert state.publish() is None
    state.apply(well(events=(GpuEvent(ONE, kind=EventKind.RECOVERY_ACTION),)), now=1.0)
    assert state.publish() is None, "it only announces a recovery action"
    said = (
        GpuEvent(TWO, xid=79),
        GpuEvent(ZERO, kind=EventKind.DOUBLE_BIT_ECC),
        GpuEvent(ONE, kind=EventKind.UNAVAILABLE),
    )
    expected = {
        TWO: ill("XID 79 (GPU has fallen off the bus)"),
        ZERO: ill("double-bit ECC error"),
        ONE: ill("the driver calls it unavailable"),
    }
    found: dict[GpuUuid, Health] = {}
    for event in said:
        state.apply(well(events=(event,)), now=1.0)
        change = state.publish()
        assert change is not None
        found |= {each.uuid: each.new for each in change.health}
        assert change.inventory.health == found
    assert found == expected


def test_the_applications_own_xids_harm_nothing(state: HardwareState) -> None:
    state.apply(well(events=(GpuEvent(ZERO, 31), GpuEvent(ZERO, 31), GpuEvent(ONE, 13))), now=1.0)
    assert state.publish() is None


def test_xids_are_counted_by_gpu_whether_critical_or_not(state: HardwareState) -> None:
    state.apply(well(events=(GpuEvent(ZERO, 31), GpuEvent(ZERO, 31), GpuEvent(ONE, 79), GpuEvent(None, 79))), now=1.0)
    state.apply(well(events=(GpuEvent(ZERO, 31), GpuEvent(TWO, kind=EventKind.DOUBLE_BIT_ECC))), now=2.0)
    assert state.xids == {(ZERO, "31"): 3, (ONE, "79"): 1}
    assert state.critical_errors == {ONE: 1, TWO: 1}, "a double-bit error has no XID"


def test_the_same_xid_again_and_again_is_one_line_of_the_log_for_each_reading(state: HardwareState) -> None:
    """A program can raise hundreds within a second."""
    with capture_logs() as logs:
        state.apply(well(events=(GpuEvent(ZERO, 31),) * 256 + (GpuEvent(ONE, 31), GpuEvent(None, 31)) * 2), now=1.0)
    said = [(entry["event"], entry.get("gpu"), entry.get("times")) for entry in logs]
    assert said == [
        ("gpu_error_ignored", ZERO, 256),
        ("gpu_error_ignored", ONE, 2),
        ("gpu_event_unassigned", None, None),
    ]
    assert logs[0]["error"] == "XID 31 (GPU memory page fault)"
    assert state.xids == {(ZERO, "31"): 256, (ONE, "31"): 2}


def test_whatever_xids_a_driver_sends_the_numbers_counted_are_bounded(state: HardwareState) -> None:
    state.apply(well(events=tuple(GpuEvent(ZERO, xid) for xid in (0, 999, 1 << 40, 173))), now=1.0)
    assert state.xids == {(ZERO, "other"): 4}


def test_what_an_operator_changes_shows_in_the_gpu(state: HardwareState) -> None:
    changed = replace(NODE.gpus[1], compute_mode=ComputeMode.PROHIBITED, mig_enabled=True)
    state.apply(GpuReport(survey=GpuSurvey({ONE: changed}, conditions={}, counted=3, topology=NODE.topology)), now=1.0)
    change = state.publish()
    assert change is not None
    assert change.gpus_changed
    assert change.inventory.gpu(ONE) == changed


def test_links_that_came_up_are_a_change_of_gpus(state: HardwareState) -> None:
    linked = replace(NODE.topology, links={(0, 1): Link(Level.PIX, nvlinks=12)})
    state.apply(GpuReport(survey=GpuSurvey(gpus={}, conditions={}, counted=3, topology=linked)), now=1.0)
    change = state.publish()
    assert change is not None
    assert change.gpus_changed
    assert change.inventory.topology == linked


def test_a_driver_that_is_gone_makes_every_gpu_unhealthy_and_none_disappear(state: HardwareState) -> None:
    state.apply(well(), now=1.0)
    state.driver_gone("Driver Not Loaded")
    change = state.publish()
    assert change is not None
    assert change.inventory.gpus == NODE.gpus
    assert {health.reason for health in change.inventory.health.values()} == {"Driver Not Loaded"}
    assert state.samples == {}


def test_a_reloaded_driver_ends_the_quiet_period(state: HardwareState) -> None:
    state.apply(well(events=(GpuEvent(uuid=TWO, xid=79),)), now=1.0)
    state.discovered(found(), driver_reloaded=True)
    for moment in (2.0, 3.0):
        state.apply(well(), now=moment)
    state.publish()
    assert state.inventory == NODE


def test_a_hang_ends_with_the_first_answer(state: HardwareState) -> None:
    state.driver_hangs()
    change = state.publish()
    assert change is not None
    assert len(change.inventory.health) == 3
    state.apply(well(), now=1.0)
    assert state.publish() is not None
    assert state.inventory == NODE


def test_a_restart_remembers_the_gpus_and_what_ails_them(state: HardwareState) -> None:
    state.apply(well(events=(GpuEvent(uuid=TWO, xid=79),)), now=1.0)
    state.publish()
    kept = state.remembered()
    assert kept == Remembered(
        replace(NODE, health={TWO: ill("XID 79 (GPU has fallen off the bus)")}),
        {TWO: QuietPeriod("XID 79 (GPU has fallen off the bus)", 101.0)},
    )
    after = HardwareState(rules=RecoveryRules(quiet_s=100, passes=2), xids=XidPolicy())
    after.adopt(kept)
    after.publish()
    assert after.inventory == kept.inventory
    after.discovered(found(), driver_reloaded=False)
    for moment in (2.0, 3.0, 4.0):
        after.apply(well(), now=moment)
    assert after.publish() is None
    after.apply(well(), now=101.0)
    after.publish()
    assert after.inventory == NODE

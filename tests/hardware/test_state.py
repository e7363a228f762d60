"""What each look makes of the inventory, without a driver."""

from dataclasses import replace

import pytest

from deviceplugin.hardware.cache import Remembered
from deviceplugin.hardware.discovery import Discovery
from deviceplugin.hardware.events import GpuEvent
from deviceplugin.hardware.health import HealthChange, QuietPeriod, RecoveryRules
from deviceplugin.hardware.sampling import Fault, Readings
from deviceplugin.hardware.session import Look, Survey
from deviceplugin.hardware.state import NodeState
from deviceplugin.hardware.xid import XidPolicy
from deviceplugin.model.gpu import ComputeMode, GpuSample, GpuUuid, Health, Inventory
from tests.hardware.makers import inventory

NODE = inventory(3)
ZERO, ONE, TWO = (gpu.uuid for gpu in NODE.gpus)
IDLE = GpuSample(utilization_percent=0, memory_used_bytes=0)
HEALTHY = Health()


def ill(reason: str) -> Health:
    return Health(healthy=False, reason=reason)


def found(what: Inventory = NODE, *, failed: dict[GpuUuid, str] | None = None) -> Discovery:
    return Discovery(what.gpus, what.topology, what.driver, {}, failed or {}, len(what.gpus), ())


def well(*uuids: GpuUuid, events: tuple[GpuEvent, ...] = ()) -> Look:
    return Look(events=events, readings=Readings(dict.fromkeys(uuids or (ZERO, ONE, TWO), IDLE), {}))


@pytest.fixture
def state() -> NodeState:
    one = NodeState(rules=RecoveryRules(quiet_s=100, passes=2, failures=2), xids=XidPolicy())
    one.discovered(found(), driver_reloaded=False)
    assert one.settle() is not None
    return one


def test_the_first_discovery_is_a_change_of_gpus() -> None:
    state = NodeState(rules=RecoveryRules(), xids=XidPolicy())
    assert state.settle() is None
    state.discovered(found(failed={ONE: "GPU is lost"}), driver_reloaded=False)
    change = state.settle()
    assert change is not None
    assert change.gpus_changed
    assert change.health == (HealthChange(ONE, HEALTHY, ill("GPU is lost")),)
    assert state.inventory == change.inventory == replace(NODE, health={ONE: ill("GPU is lost")})


def test_looks_at_healthy_gpus_change_nothing_but_the_samples(state: NodeState) -> None:
    before = state.inventory
    state.looked(well(), now=1.0)
    assert state.settle() is None
    assert state.inventory is before
    assert state.samples == {ZERO: IDLE, ONE: IDLE, TWO: IDLE}


def test_a_look_without_samples_keeps_the_last_ones(state: NodeState) -> None:
    state.looked(well(), now=1.0)
    state.looked(Look(), now=2.0)
    assert len(state.samples) == 3


def test_a_lost_gpu_has_no_sample_and_comes_back_after_its_probes(state: NodeState) -> None:
    state.looked(Look(readings=Readings({ZERO: IDLE, TWO: IDLE}, {ONE: Fault("GPU is lost", True)})), now=1.0)
    change = state.settle()
    assert change is not None
    assert not change.gpus_changed
    assert change.health == (HealthChange(ONE, HEALTHY, ill("GPU is lost")),)
    assert (ONE in state.samples, state.lost) == (False, True)
    state.looked(well(), now=2.0)
    assert state.settle() is None
    state.looked(well(), now=3.0)
    back = state.settle()
    assert back is not None
    assert back.health == (HealthChange(ONE, ill("GPU is lost"), HEALTHY),)
    assert not state.lost


def test_an_event_without_a_gpu_condemns_none(state: NodeState) -> None:
    state.looked(well(events=(GpuEvent(uuid=None, xid=79),)), now=1.0)
    assert state.settle() is None


def test_an_event_of_a_gpu_condemns_it_alone(state: NodeState) -> None:
    state.looked(well(events=(GpuEvent(uuid=TWO, xid=79),)), now=1.0)
    change = state.settle()
    assert change is not None
    assert change.inventory.health == {TWO: ill("XID 79 (GPU has fallen off the bus)")}


def test_a_double_bit_error_is_critical(state: NodeState) -> None:
    state.looked(well(events=(GpuEvent(uuid=ZERO, xid=None),)), now=1.0)
    state.settle()
    assert state.inventory is not None
    assert state.inventory.health == {ZERO: ill("double-bit ECC error")}


def test_the_applications_own_xids_are_counted_and_harm_nothing(state: NodeState) -> None:
    state.looked(well(events=(GpuEvent(ZERO, 31), GpuEvent(ZERO, 31), GpuEvent(ONE, 13))), now=1.0)
    assert state.settle() is None
    assert state.xid_counts == {(ZERO, 31): 2, (ONE, 13): 1}


def test_what_an_operator_changes_shows_in_the_gpu(state: NodeState) -> None:
    changed = replace(NODE.gpus[1], compute_mode=ComputeMode.PROHIBITED, mig_enabled=True)
    state.looked(Look(survey=Survey(gpus={ONE: changed}, actions={ONE: 0}, counted=3)), now=1.0)
    change = state.settle()
    assert change is not None
    assert change.gpus_changed
    assert change.inventory.gpu(ONE) == changed


def test_a_driver_that_is_gone_makes_every_gpu_unhealthy_and_none_disappear(state: NodeState) -> None:
    state.looked(well(), now=1.0)
    state.driver_gone("Driver Not Loaded")
    change = state.settle()
    assert change is not None
    assert change.inventory.gpus == NODE.gpus
    assert {health.reason for health in change.inventory.health.values()} == {"Driver Not Loaded"}
    assert state.samples == {}


def test_a_driver_loaded_anew_ends_the_quiet_period(state: NodeState) -> None:
    state.looked(well(events=(GpuEvent(uuid=TWO, xid=79),)), now=1.0)
    state.discovered(found(), driver_reloaded=True)
    for moment in (2.0, 3.0):
        state.looked(well(), now=moment)
    state.settle()
    assert state.inventory == NODE


def test_a_hang_ends_with_the_first_answer(state: NodeState) -> None:
    state.driver_hangs()
    change = state.settle()
    assert change is not None
    assert len(change.inventory.health) == 3
    state.looked(well(), now=1.0)
    assert state.settle() is not None
    assert state.inventory == NODE


def test_a_restart_remembers_the_gpus_and_what_ails_them(state: NodeState) -> None:
    state.looked(well(events=(GpuEvent(uuid=TWO, xid=79),)), now=1.0)
    state.settle()
    kept = state.remembered()
    assert kept == Remembered(
        replace(NODE, health={TWO: ill("XID 79 (GPU has fallen off the bus)")}),
        {TWO: QuietPeriod("XID 79 (GPU has fallen off the bus)", 101.0)},
    )
    after = NodeState(rules=RecoveryRules(quiet_s=100, passes=2), xids=XidPolicy())
    after.adopt(kept)
    after.settle()
    assert after.inventory == kept.inventory
    after.discovered(found(), driver_reloaded=False)
    for moment in (2.0, 3.0, 4.0):
        after.looked(well(), now=moment)
    assert after.settle() is None
    after.looked(well(), now=101.0)
    after.settle()
    assert after.inventory == NODE

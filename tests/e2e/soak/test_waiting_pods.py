"""Which pods count as stuck, and what is kept of refused ones."""

import pytest

from sandbox.cluster.client import JsonObject
from tests.e2e.soak.waiting_pods import (
    AFTER_DAMAGE_S,
    LONG_S,
    LONGEST_S,
    ONLY_A_NEW_POD_HELPS,
    WaitingPods,
    why_unbound,
    why_waiting,
)


def item(
    *,
    phase: str = "Pending",
    reason: str = "",
    message: str = "",
    node: str = "node",
    blocks: str = "5",
    **status: object,
) -> JsonObject:
    waiting = [{"state": {"waiting": {"reason": reason, "message": message}}}] if reason else []
    return {
        "metadata": {"name": "soak-1", "uid": "uid-1"},
        "spec": {"nodeName": node, "containers": [{"env": [{"name": "SOAK_BLOCKS", "value": blocks}]}]},
        "status": {"phase": phase, "containerStatuses": waiting, **status},
    }


REFUSED_START = item(reason="CreateContainerConfigError", message="was given two GPU slices")


def test_a_pod_is_stuck_after_the_bound_and_is_told_once() -> None:
    pods = WaitingPods()
    assert pods.look([REFUSED_START], 0) == []
    assert pods.look([REFUSED_START], LONGEST_S) == []

    (said,) = pods.look([REFUSED_START], LONGEST_S + 1)

    assert said == ("pod soak-1 (uid-1) waits for more than 180 s: CreateContainerConfigError was given two GPU slices")
    assert pods.look([REFUSED_START], LONGEST_S + 2) == []
    assert list(pods.stuck.values()) == [said]


def test_a_pod_that_waits_for_long_is_late_until_it_is_stuck() -> None:
    pods = WaitingPods()
    late = []
    for now in (0, LONG_S + 1, LONGEST_S + 1, LONGEST_S + 2):
        pods.look([REFUSED_START], now)
        late.append(pods.late)

    assert late == [frozenset(), {"soak-1"}, {"soak-1"}, frozenset()]


def test_time_counts_anew_after_a_pod_ran() -> None:
    pods = WaitingPods()
    pods.look([REFUSED_START], 0)
    pods.look([item(phase="Running")], 1)
    assert pods.look([REFUSED_START], LONGEST_S + 1) == []


@pytest.mark.parametrize(
    "waits",
    [
        pytest.param(item(), id="Pending without a word"),
        pytest.param(item(phase="Running", reason="ContainerCreating"), id="a container of a running pod"),
        pytest.param(item(initContainerStatuses=[{"state": {"waiting": {"reason": "PodInitializing"}}}]), id="init"),
    ],
)
def test_these_wait(waits: JsonObject) -> None:
    assert why_waiting(waits)


@pytest.mark.parametrize(
    "runs",
    [
        pytest.param(item(phase="Running"), id="it runs"),
        pytest.param(item(phase="Succeeded"), id="it has ended"),
        pytest.param(item(phase="Failed"), id="it was refused"),
        pytest.param(item(node=""), id="there is no room"),
        pytest.param(item(phase="Running", reason="CrashLoopBackOff"), id="it crashes"),
        pytest.param(REFUSED_START | {"metadata": {"name": "a", "deletionTimestamp": "now"}}, id="it is being deleted"),
    ],
)
def test_these_do_not(runs: JsonObject) -> None:
    assert not why_waiting(runs)


@pytest.mark.parametrize("words", ONLY_A_NEW_POD_HELPS)
def test_a_pod_that_lost_its_devices_with_kubelets_checkpoint_is_counted_and_not_stuck(words: str) -> None:
    pods = WaitingPods(damaged_at=10)
    forgotten = item(reason="CreateContainerConfigError", message=f"{words}, so that it is admitted again")
    pods.look([forgotten], 9)

    assert pods.look([forgotten], LONGEST_S + 10) == []
    assert pods.forgotten == {"uid-1"}


@pytest.mark.parametrize("words", ONLY_A_NEW_POD_HELPS)
def test_without_damage_in_its_life_nothing_excuses_that(words: str) -> None:
    pods = WaitingPods(damaged_at=10)
    refused = item(reason="CreateContainerConfigError", message=f"{words}, so that it is admitted again")
    pods.look([refused], 11 + AFTER_DAMAGE_S)

    assert pods.look([refused], 12 + AFTER_DAMAGE_S + LONGEST_S)
    assert not pods.forgotten


def test_refused_pods_are_counted_by_what_was_said() -> None:
    pods = WaitingPods()
    for number in range(3):
        refused = item(phase="Failed")
        refused["metadata"]["uid"] = f"uid-{number}"
        refused["status"] |= {"reason": "UnexpectedAdmissionError", "message": f"GPU {number} has {number} cores"}
        pods.look([refused], 0)
    pods.look([item(phase="Failed")], 0)  # its process failed: nobody refused it

    assert pods.reasons() == {"UnexpectedAdmissionError: GPU # has # cores": 3}


def test_at_the_end_a_share_must_be_bound_and_whole_gpus_may_wait_for_room() -> None:
    waits = item(node="", conditions=[{"message": "0/1 nodes are available"}])
    assert why_unbound(waits) == "0/1 nodes are available"
    assert why_unbound(item(node="")) == "no scheduler says why it is not bound"
    assert why_unbound(item(node="", blocks="0")) == ""
    assert why_unbound(item()) == ""

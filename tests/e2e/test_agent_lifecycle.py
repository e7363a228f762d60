"""The agent against a real kubelet: single pods through every turn that a pod's life can take."""

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from sandbox.cluster import pods
from sandbox.cluster.client import Client, JsonObject
from sandbox.cluster.cluster import Cluster
from sandbox.cluster.kubelet import NODE
from sandbox.cluster.waiting import wait_until
from tests.e2e.conftest import StartAgent
from tests.e2e.node.agent import ALLOCATION_CHECK_S
from tests.e2e.node.inside import processes_of
from tests.e2e.node.scene import check_everything, wait_all_running, wait_ledger_empty
from tests.e2e.node.view import View, parse_view
from tests.e2e.node.workload import CORE, MEMORY, WHOLE, GpuContainer, GpuPod, share

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

CHECKS = 3

REPLICA_SETS = "/apis/apps/v1/namespaces/default/replicasets"


def test_a_container_that_crashes_comes_back_to_its_slice(empty_cluster: Cluster, start_agent: StartAgent) -> None:
    agent, admin = start_agent(), empty_cluster.admin
    pods.create(admin, share("crashing", 20, 8).manifest())
    first = _view(admin, "crashing")
    before = agent.usage()

    _kill(admin, "crashing")

    assert _view(admin, "crashing", restarts=1) == first
    assert agent.usage().held() == before.held()


def test_a_terminating_pod_holds_its_slice_until_its_container_ended(
    empty_cluster: Cluster, start_agent: StartAgent
) -> None:
    agent, admin = start_agent(), empty_cluster.admin
    script = "trap 'echo asked' TERM; echo ready; while :; do sleep 3600 & wait $!; done"
    stubborn = pods.container("main", script, GpuContainer("main", 20, 8).limits())
    pods.create(admin, pods.pod("stubborn", [stubborn]))
    pods.wait_running(admin, ["stubborn"])
    wait_until(lambda: "ready" in pods.log(admin, "stubborn", "main"), "the container ignores SIGTERM")
    held = agent.usage().held()

    pods.delete(admin, ["stubborn"], grace_s=3600)
    wait_until(lambda: "asked" in pods.log(admin, "stubborn", "main"), "kubelet has asked the container to end")

    began = time.monotonic()

    def still_held() -> bool:
        """The ledger is asked first: a container that is seen to run afterwards ran at that moment too."""
        assert agent.usage().held() == held
        assert pods.states(admin)["stubborn"].is_running
        return time.monotonic() - began > CHECKS * ALLOCATION_CHECK_S

    wait_until(still_held, "the agent has compared pods and ledger")
    _kill(admin, "stubborn")
    wait_ledger_empty(agent)


def test_a_pod_that_counts_as_ended_keeps_its_slice_as_long_as_its_container_runs(
    empty_cluster: Cluster, start_agent: StartAgent
) -> None:
    """A kubelet that starts again may refuse a pod that runs. The soak found a running container without its files."""
    agent, admin = start_agent(), empty_cluster.admin
    pods.create(admin, share("counted-out", 20, 8).manifest())
    _view(admin, "counted-out")
    held = agent.usage().held()

    empty_cluster.kubelet.kill()
    try:
        status = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "containerStatuses": []}
        admin.merge(f"{pods.PODS}/counted-out/status", {"status": status})
        wait_until(lambda: "grant_kept" in agent.log(), "the agent finds that the container still runs")
        assert agent.usage().held() == held
        assert agent.grant_folders()
    finally:
        empty_cluster.kubelet.start()
    wait_ledger_empty(agent)  # kubelet ends the container of a pod that has failed


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        pytest.param({CORE: 150, MEMORY: 10}, "150", id="one and a half GPUs"),
        pytest.param({CORE: 50}, MEMORY, id="a share without memory"),
        pytest.param({MEMORY: 10}, CORE, id="memory without cores"),
    ],
)
def test_what_cannot_be_served_is_refused_with_one_sentence(
    empty_cluster: Cluster, start_agent: StartAgent, limits: dict[str, int], says: str
) -> None:
    agent, admin = start_agent(), empty_cluster.admin

    pods.create(admin, pods.pod("refused", [pods.container("main", "sleep 60", limits)]))

    refused = pods.wait_for(admin, ["refused"], lambda pod: pod.phase == "Failed", what="Failed")["refused"]
    assert refused.reason == "UnexpectedAdmissionError"
    assert says in refused.message
    assert "\n" not in refused.message.strip()
    assert "Traceback" not in refused.message
    wait_ledger_empty(agent)


def test_a_pod_refused_while_no_agent_was_there_comes_back(empty_cluster: Cluster, start_agent: StartAgent) -> None:
    """A controller makes a new pod beside the refused one; the agent removes the refused ones when it is back."""
    agent, admin = start_agent(), empty_cluster.admin
    agent.process.kill()
    with _replica_set(admin, "returning", share("returning", 30, 16)):
        wait_until(lambda: _failed(admin), "kubelet refuses the pod")

        agent.start()

        def recovered() -> bool:
            states = pods.states(admin).values()
            return not _failed(admin) and [state.is_running for state in states] == [True]

        wait_until(recovered, "one pod runs, none is left refused", evidence=lambda: _list(admin))


def test_kubelet_takes_an_agent_once_after_both_were_killed(empty_cluster: Cluster, start_agent: StartAgent) -> None:
    """As after a boot: kubelet dials the sockets that the killed agent left, by their paths, for 10 s."""
    agent, kubelet = start_agent(), empty_cluster.kubelet
    agent.process.kill()
    kubelet.kill()
    (left,) = empty_cluster.layout.plugins_registry.glob("*-vmemory.sock")  # one of its two names
    before = len(kubelet.process.log.read_text())
    kubelet.start()

    def said() -> str:
        return kubelet.process.log.read_text()[before:]

    wait_until(lambda: f"plugins_registry/{left.name}" in said(), "kubelet has dialled it in vain")
    agent.start()
    time.sleep(3)  # nothing is to happen, so there is nothing to wait for
    assert "ListAndWatch ended" not in said()
    pods.create(empty_cluster.admin, share("first", 20, 8).manifest())
    pods.wait_running(empty_cluster.admin, ["first"])


def test_a_pod_that_can_never_start_is_made_again_or_its_owner_reads_what_to_type(
    empty_cluster: Cluster, start_agent: StartAgent
) -> None:
    """Faults D1: kubelet tried such a start for ever. Here its checkpoint loses both recorded answers."""
    agent, admin = start_agent(), empty_cluster.admin
    pods.create(admin, share("naked", 20, 8).manifest())
    with _replica_set(admin, "owned", share("owned", 30, 16)):
        owned = wait_until(lambda: next((name for name in pods.states(admin) if name != "naked"), ""), "two pods")
        pods.wait_running(admin, ["naked", owned])
        _forget_answers(empty_cluster.layout.device_plugins / "kubelet_internal_checkpoint")
        _kill(admin, "naked")
        wait_until(
            lambda: any("run `kubectl delete pod -n default naked`" in each for each in pods.events(admin, "naked")),
            "an event says what to type",
            evidence=lambda: "\n".join(pods.events(admin, "naked")),
        )
        _kill(admin, owned)

        def is_made_again() -> bool:
            states = [state for name, state in pods.states(admin).items() if name not in ("naked", owned)]
            return owned not in pods.states(admin) and [state.is_running for state in states] == [True]

        wait_until(is_made_again, "a new pod runs instead", evidence=lambda: _list(admin))
        assert not pods.states(admin)["naked"].is_running
        assert len([line for line in agent.log().splitlines() if "refused_pod_deleted" in line and owned in line]) == 1


def test_a_static_pod_gets_its_slice_and_gives_it_back(empty_cluster: Cluster, start_agent: StartAgent) -> None:
    agent, admin = start_agent(), empty_cluster.admin
    asked, name = share("static", 15, 9), f"static-{NODE}"
    manifest = asked.manifest()
    manifest["metadata"]["namespace"] = pods.NAMESPACE
    file = empty_cluster.layout.static_pods / "static.json"
    file.write_text(json.dumps(manifest))
    try:
        pods.wait_running(admin, [name])
        view = _view(admin, name)
        (holder,) = agent.usage().containers
        assert view.limits is not None
        assert (view.limits.cores, view.limits.pod_uid) == (15, holder.uid)
        assert {each.minor for each in holder.gpus} == view.reachable_gpus
        _wait_annotated(admin, name, sorted(view.reachable_gpus))
        mirror = admin.get(f"{pods.PODS}/{name}")["metadata"]
        said = json.loads(mirror["annotations"]["tencent.com/vcuda-allocation"])
        assert said["pod"] == mirror["uid"] != holder.uid
    finally:
        file.unlink()
    pods.wait_gone(admin, [name])
    wait_ledger_empty(agent)


def test_a_forged_mirror_changes_nothing_of_the_pod_that_it_names(
    empty_cluster: Cluster, start_agent: StartAgent
) -> None:
    """Security 9, where no webhook and no policy refuses it: neither kubelet nor the agent believes it."""
    agent, admin = start_agent(), empty_cluster.admin
    victim = share("victim", 20, 8).manifest()
    victim["metadata"]["annotations"] = {"tencent.com/vcuda-core-limit": "90"}
    pods.create(admin, victim)
    pods.wait_running(admin, ["victim"])
    (holder,) = agent.usage().containers
    before, logged = _view(admin, "victim"), len(agent.log())
    node = admin.get(f"/api/v1/nodes/{NODE}")["metadata"]
    forged = share("forged", 20, 8).manifest()
    forged["metadata"]["annotations"] = {"kubernetes.io/config.mirror": holder.uid}
    owner = {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": node["uid"], "controller": True}
    forged["metadata"]["ownerReferences"] = [owner]
    forged["spec"] |= {"nodeName": NODE, "automountServiceAccountToken": False}
    pods.create(admin, forged)
    wait_until(lambda: "forged" not in pods.states(admin), "kubelet removes the mirror of no static pod")
    assert _view(admin, "victim") == before
    assert [each.uid for each in agent.usage().containers] == [holder.uid]
    said = agent.log()[logged:]
    assert "forged" not in said
    assert "limits_changed" not in said


def test_linked_gpus_and_the_annotations_that_name_them(empty_cluster: Cluster, start_agent: StartAgent) -> None:
    agent, admin = start_agent(), empty_cluster.admin
    asked = [GpuPod("linked", (GpuContainer("main", 2 * WHOLE, 0),)), share("beside", 40, 30)]
    for pod in asked:
        pods.create(admin, pod.manifest())
    wait_all_running(empty_cluster, asked)

    scene = check_everything(empty_cluster, agent, asked)

    for pod in asked:
        _wait_annotated(admin, pod.name, sorted(scene.views[pod.name, "main"].reachable_gpus))


def test_the_agent_ends_cleanly_and_finds_everything_again(empty_cluster: Cluster, start_agent: StartAgent) -> None:
    agent, asked = start_agent(), [share("kept", 40, 30), share("kept-too", 70, 50)]
    for pod in asked:
        pods.create(empty_cluster.admin, pod.manifest())
    wait_all_running(empty_cluster, asked)
    before = check_everything(empty_cluster, agent, asked).usage

    agent.process.stop()
    assert agent.process.running is not None
    assert agent.process.running.returncode == 0
    agent.start()

    assert agent.usage().held() == before.held()


@contextmanager
def _replica_set(admin: Client, name: str, asked: GpuPod) -> Iterator[None]:
    """Bound by name, because the scheduler would wait for the node to offer what it needs."""
    labels = {"app": name}
    pod: JsonObject = asked.manifest(labels=labels)
    pod["spec"]["nodeName"] = NODE
    template = {"metadata": {"labels": labels}, "spec": pod["spec"]}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    body = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": name}, "spec": spec}
    admin.post(REPLICA_SETS, body)
    try:
        yield
    finally:
        admin.delete(f"{REPLICA_SETS}/{name}")


def _forget_answers(checkpoint: Path) -> None:
    """Kubelet keeps its own memory of them, and writes the file again at its next Allocate."""
    document = json.loads(checkpoint.read_text())
    for entry in document["Data"]["PodDeviceEntries"]:
        entry["AllocResp"] = ""
    checkpoint.write_text(json.dumps(document))


def _failed(admin: Client) -> list[str]:
    return [name for name, state in pods.states(admin).items() if state.phase == "Failed"]


def _list(admin: Client) -> str:
    return "\n".join(map(str, pods.states(admin).values()))


def _kill(admin: Client, name: str) -> None:
    """All processes of the pod's one container, from the host."""
    (container,) = pods.states(admin)[name].containers
    for pid in processes_of(container.container_id):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _restarts(pod: pods.PodState) -> int:
    return sum(container.restarts for container in pod.containers)


def _view(admin: Client, name: str, *, restarts: int = 0) -> View:
    pods.wait_for(
        admin,
        [name],
        lambda pod: pod.is_running and _restarts(pod) >= restarts,
        what=f"running after {restarts} restarts",
    )
    return wait_until(lambda: parse_view(pods.log(admin, name, "main")), f"{name} says what it sees")


def _wait_annotated(admin: Client, name: str, minors: list[int]) -> None:
    expected = {"tencent.com/gpu-assigned": "true", "tencent.com/predicate-gpu-idx-0": ",".join(map(str, minors))}
    wait_until(
        lambda: expected.items() <= pods.states(admin)[name].annotations.items(),
        f"{name} is annotated with {expected}",
        evidence=lambda: str(pods.states(admin)[name].annotations),
    )

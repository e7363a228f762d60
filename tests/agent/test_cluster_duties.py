"""What the agent does at the API server: annotations that agree with the ledger, refused pods that come back."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from deviceplugin.agent.reconciler import corrections, sync
from deviceplugin.agent.unallocated import delete_refused, warn_unallocated
from deviceplugin.kube.client import KubeClient
from deviceplugin.kube.events import EventRecorder
from deviceplugin.kube.pods import pods_of_node
from deviceplugin.ledger.grant import Checkpoint
from deviceplugin.ledger.journal import Journal
from deviceplugin.ledger.ledger import Ledger
from deviceplugin.model.allocation import OwnerKey
from deviceplugin.model.annotation_names import AnnotationNames
from deviceplugin.model.annotations import parse_allocation
from deviceplugin.model.pod import ContainerState, Pod
from deviceplugin.structs import replace
from sandbox.apiserver import ApiServer
from sandbox.station import Json, pod_json
from tests.kube.kubeconfigs import open_transport
from tests.kubelet.makers import grant, inventory
from tests.kubelet.makers import pod as running

NAMES = AnnotationNames()
NODE = inventory(4)


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as running:
        yield running


@pytest.fixture
async def client(server: ApiServer, tmp_path: Path) -> AsyncIterator[KubeClient]:
    connected = KubeClient(await open_transport(server.kubeconfig(tmp_path / "kubeconfig")))
    yield connected
    await connected.close()


async def stored(client: KubeClient, server: ApiServer, *pods: Json) -> tuple[Pod, ...]:
    for pod in pods:
        server.store.create("pods", pod)
    return tuple((await client.list(pods_of_node("node-1"))).items.values())


def annotations(server: ApiServer, name: str) -> dict[str, str]:
    found: dict[str, str] = server.store.get("pods", name, namespace="default")["metadata"].get("annotations", {})
    return found


async def test_the_ledger_is_written_back_where_the_annotations_disagree(client: KubeClient, server: ApiServer) -> None:
    wrong = {"tencent.com/predicate-gpu-idx-0": "3", "tencent.com/gpu-assigned": "false", "mine": "stays"}
    (pod,) = await stored(client, server, pod_json("p", ("a", 20, 4), ("cpu", 0, 0), ("b", 200, 0), annotations=wrong))
    a, _, b = pod.containers
    grants = [grant(a, (1, 20, 4), proved=True), grant(b, (3, 100, 64), (2, 100, 64), grant_id="g-2", proved=True)]
    await sync(client, [pod], {pod.ref.uid: grants}, NODE, NAMES)
    written = annotations(server, "p")
    assert written["tencent.com/predicate-gpu-idx-0"] == "1"
    assert written["tencent.com/predicate-gpu-idx-2"] == "2,3"
    assert "tencent.com/predicate-gpu-idx-1" not in written
    assert written["tencent.com/gpu-assigned"] == "true"
    assert written["mine"] == "stays"
    allocation = parse_allocation(written["tencent.com/vcuda-allocation"])
    assert allocation.pod == pod.ref.uid
    assert {name: [share.cores for share in shares] for name, shares in allocation.containers.items()} == {
        "a": [20],
        "b": [100, 100],
    }
    (again,) = (await client.list(pods_of_node("node-1"))).items.values()
    assert corrections(again, grants, NODE, NAMES) == {}


async def test_nothing_is_written_before_kubelet_has_proved_all_of_it(client: KubeClient, server: ApiServer) -> None:
    (pod,) = await stored(client, server, pod_json("p", ("a", 20, 4), ("b", 20, 4)))
    a, b = pod.containers
    one, two = grant(a, (1, 20, 4), proved=True), grant(b, (1, 20, 4), grant_id="g-2")
    assert corrections(pod, [one], NODE, NAMES) == {}
    assert corrections(pod, [one, two], NODE, NAMES) == {}
    assert corrections(pod, [one, replace(two, proved=True)], NODE, NAMES)


async def test_one_pod_that_cannot_be_patched_does_not_keep_the_others_back(
    client: KubeClient, server: ApiServer
) -> None:
    first, second = await stored(client, server, pod_json("a", ("c", 20, 4)), pod_json("b", ("c", 20, 4)))
    server.store.delete("pods", "a", namespace="default", grace=0)
    grants = {pod.ref.uid: [grant(pod.containers[0], (0, 20, 4), proved=True)] for pod in (first, second)}
    await sync(client, [first, second], grants, NODE, NAMES)
    assert annotations(server, "b")["tencent.com/gpu-assigned"] == "true"


def refused(name: str, *, owner: str = "", reason: str = "UnexpectedAdmissionError", cores: int = 20) -> Json:
    pod = pod_json(name, ("c", cores, 4 if cores else 0))
    pod["status"] = {"phase": "Failed", "reason": reason, "message": "Allocate failed due to ..."}
    if owner:
        pod["metadata"]["ownerReferences"] = [
            {"apiVersion": "apps/v1", "kind": owner, "name": "o", "uid": "u", "controller": True}
        ]
    return pod


def left(server: ApiServer) -> set[str]:
    pods = server.store.objects("pods")
    return {pod["metadata"]["name"] for pod in pods if "deletionTimestamp" not in pod["metadata"]}


async def test_refused_pods_go_only_where_a_controller_makes_them_again(client: KubeClient, server: ApiServer) -> None:
    pods = await stored(
        client,
        server,
        refused("of-a-replicaset", owner="ReplicaSet"),
        refused("of-a-pod", owner="Pod"),
        refused("of-nobody"),
        refused("evicted", owner="ReplicaSet", reason="Evicted"),
        refused("without-gpu", owner="ReplicaSet", cores=0),
    )
    await delete_refused(client, pods)
    assert left(server) == {"of-a-pod", "of-nobody", "evicted", "without-gpu"}


async def test_pods_that_can_never_start_go_only_where_a_controller_makes_them_again(
    client: KubeClient, server: ApiServer
) -> None:
    names = ("of-a-replicaset", "bare", "well")
    made = [refused(name, owner="" if name == "bare" else "ReplicaSet", reason="") for name in names]
    for pod in made:
        pod["status"] = {"phase": "Pending"}
    pods = await stored(client, server, *made)
    await delete_refused(client, pods, unstartable={pod.ref.uid for pod in pods if pod.ref.name != "well"})
    assert left(server) == {"bare", "well"}


async def test_a_container_is_accused_if_two_rounds_in_a_row_find_it_without_its_gpu(
    client: KubeClient, tmp_path: Path
) -> None:
    """Faults D10: one round compared what kubelet showed with a ledger from which the pod had just been removed."""
    ledger, events = Ledger(Journal.open(tmp_path / "ledger.journal")), EventRecorder(client, node="node-1")
    runs = running("p", ("c", 20, 4), state=ContainerState.RUNNING)
    seen: dict[OwnerKey, int] = {}
    with capture_logs() as logs:
        for pods in ([runs], [], [runs], [replace(runs, deleting=True)], [runs]):
            seen = warn_unallocated(pods, ledger, Checkpoint(), events, seen=seen)
        assert logs == []
        warn_unallocated([runs], ledger, Checkpoint(), events, seen=seen)
    assert [each["event"] for each in logs] == ["container_without_gpu"]
    ledger.close()


async def test_many_refused_pods_go_in_several_rounds(client: KubeClient, server: ApiServer) -> None:
    pods = await stored(client, server, *(refused(f"p{number:02}", owner="ReplicaSet") for number in range(25)))
    await delete_refused(client, pods)
    assert len(left(server)) == 5

"""The two listings of kubelet's pods: GET /pods and PodResources."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest

from deviceplugin.wire import podresources_pb2 as pb
from deviceplugin.wire import podresources_pb2_grpc as rpc
from sandbox.apiserver import container, pod
from sandbox.barenode import CORE, BareNode, bare_node, fast
from sandbox.kubelet import Kubelet
from sandbox.kubelet.options import PodResourcesForm

pytestmark = pytest.mark.thorough


async def get(kubelet: Kubelet, *, token: str = "", timeout_s: float = 5.0) -> tuple[int, Any]:
    """Status and body of GET /pods, as a client that does not verify the serving certificate."""
    headers = {"Authorization": f"Bearer {token or kubelet.options.token}"}
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout_s)) as session,
        session.get(kubelet.pods_url, headers=headers, ssl=False) as response,
    ):
        body = await response.json() if response.content_type == "application/json" else await response.text()
        return response.status, body


async def ask(node: BareNode, name: str) -> dict[str, list[str]]:
    """`Get` of one pod: containers and their device IDs."""
    async with grpc.aio.insecure_channel(f"unix:{node.kubelet.options.podresources_socket}") as channel:
        request = pb.GetPodResourcesRequest(pod_name=name, pod_namespace="default")
        answer = await rpc.PodResourcesListerStub(channel).Get(request, timeout=5)
    return {
        item.name: [device for one in item.devices for device in one.device_ids]
        for item in answer.pod_resources.containers
    }


async def test_pods_shows_whole_objects_with_kubelets_annotations(node: BareNode) -> None:
    verdict = await node.kubelet.admit(pod("a", container(cores=3)))
    status, body = await get(node.kubelet)
    assert (status, body["kind"], body["apiVersion"]) == (200, "PodList", "v1")
    metadata = body["items"][0]["metadata"]
    assert metadata["uid"] == verdict.uid
    assert metadata["annotations"]["kubernetes.io/config.source"] == "api"
    assert metadata["annotations"]["kubernetes.io/config.seen"].endswith("Z")
    assert body["items"][0]["spec"]["containers"][0]["resources"]["limits"][CORE] == "3"


async def test_both_listings_are_in_another_order_each_time(node: BareNode) -> None:
    """Kubelet makes them from a map."""
    names = [f"p{number}" for number in range(8)]
    for name in names:
        await node.kubelet.admit(pod(name, container(cores=1)))
    orders = set()
    for _ in range(5):
        _, body = await get(node.kubelet)
        orders.add(tuple(each["metadata"]["name"] for each in body["items"]))
        orders.add(tuple(await listed(node)))
    assert len(orders) > 5
    assert {tuple(sorted(order)) for order in orders} == {tuple(names)}


async def test_a_refused_pod_stays_listed_and_looks_pending_until_its_status_has_come_back(short_tmp: Path) -> None:
    async with bare_node(replace(fast(short_tmp), status_lag_s=5.0)) as node:
        verdict = await node.kubelet.admit(pod("a", container(cores=500)))
        _, body = await get(node.kubelet)
        assert body["items"][0]["status"]["phase"] == "Pending"
        await node.kubelet.wait_phase(verdict.uid, "Failed")
        _, body = await get(node.kubelet)
        assert body["items"][0]["status"]["reason"] == "UnexpectedAdmissionError"


@pytest.mark.parametrize(("status", "said"), [(401, "Unauthorized"), (403, "Forbidden"), (500, "stand-in failure")])
async def test_pods_can_be_refused(short_tmp: Path, status: int, said: str) -> None:
    async with Kubelet(fast(short_tmp)) as kubelet:
        kubelet.pods_faults.status = status
        code, text = await get(kubelet)
    assert code == status
    assert said in text


async def test_a_wrong_token_is_unauthorised(short_tmp: Path) -> None:
    async with Kubelet(fast(short_tmp)) as kubelet:
        assert await get(kubelet, token="wrong") == (401, "Unauthorized")


async def test_pods_can_hang_be_slow_be_garbled_or_absent(short_tmp: Path) -> None:
    async with Kubelet(fast(short_tmp)) as kubelet:
        kubelet.pods_faults.hang = True
        with pytest.raises(TimeoutError):
            await get(kubelet, timeout_s=0.2)
        kubelet.pods_faults.hang = False
        kubelet.pods_faults.garbled = True
        with pytest.raises(ValueError, match=r"Expecting|Unterminated"):
            await get(kubelet)
    async with Kubelet(replace(fast(short_tmp), pods_api=False, pods_port=9)) as kubelet:
        with pytest.raises(aiohttp.ClientConnectorError):
            await get(kubelet)


async def test_pods_over_plain_http(short_tmp: Path) -> None:
    async with Kubelet(replace(fast(short_tmp), pods_tls=False)) as kubelet:
        assert kubelet.pods_url.startswith("http://")
        assert (await get(kubelet))[0] == 200


async def test_podresources_leaves_out_plain_init_containers(node: BareNode) -> None:
    init = (container("init", cores=2), container("side", cores=1, sidecar=True))
    verdict = await node.kubelet.admit(pod("a", container("app", cores=1), init=init))
    shown = await ask(node, "a")
    assert shown.keys() == {"side", "app"}
    assert set(shown["app"]) == node.kubelet.devices_of(verdict.uid, "app")[CORE]


async def test_podresources_does_not_know_a_pod_before_kubelet_does(node: BareNode) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="pod a in namespace default not found"):
        await ask(node, "a")


async def test_podresources_refuses_after_a_burst_of_ten(node: BareNode) -> None:
    await node.kubelet.admit(pod("a", container(cores=1)))
    async with grpc.aio.insecure_channel(f"unix:{node.kubelet.options.podresources_socket}") as channel:
        stub = rpc.PodResourcesListerStub(channel)
        calls = [stub.List(pb.ListPodResourcesRequest(), timeout=5) for _ in range(40)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, grpc.aio.AioRpcError)]
    assert {error.code() for error in refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert 10 <= len(answers) - len(refused) < 40


async def shown(node: BareNode, name: str) -> str:
    """What `Get` says of a pod: `shown`, or kubelet's code and sentence."""
    try:
        await ask(node, name)
    except grpc.aio.AioRpcError as error:
        return f"{error.code().name}: {error.details()}"
    return "shown"


async def listed(node: BareNode) -> list[str]:
    async with grpc.aio.insecure_channel(f"unix:{node.kubelet.options.podresources_socket}") as channel:
        answer = await rpc.PodResourcesListerStub(channel).List(pb.ListPodResourcesRequest(), timeout=5)
    return [each.name for each in answer.pod_resources]


@pytest.mark.parametrize(
    ("form", "got", "hides"),
    [
        ("1.36", "UNKNOWN: pod refused in namespace default not found", True),
        ("1.34", "shown", True),
        ("1.27", "UNKNOWN: PodResources API Get method disabled", False),
        ("1.26", "UNIMPLEMENTED: unknown method Get for service v1.PodResourcesLister", False),
    ],
)
async def test_what_shows_a_refused_and_an_ended_pod_differs_between_kubelets(
    short_tmp: Path, form: PodResourcesForm, got: str, hides: bool
) -> None:
    async with bare_node(replace(fast(short_tmp), podresources_form=form)) as node:
        assert not (await node.kubelet.admit(pod("refused", container(cores=500)))).admitted
        once = pod("ended", container(cores=1))
        once["spec"]["restartPolicy"] = "Never"
        ended = await node.kubelet.admit(once)
        await node.kubelet.wait_running(ended.uid)
        node.kubelet.exit_container(ended.uid, "main", code=0)
        await node.kubelet.wait_phase(ended.uid, "Succeeded")
        assert await shown(node, "refused") == got
        assert await shown(node, "ended") == got.replace("refused", "ended")
        assert sorted(await listed(node)) == ([] if hides else ["ended", "refused"])


async def test_static_pods_have_names_and_uids_of_kubelets_making(short_tmp: Path) -> None:
    static = pod("web", container())
    async with Kubelet(replace(fast(short_tmp), static_pods=(static,))) as kubelet:
        uid = kubelet.static.uids[0]
        await kubelet.wait_running(uid)
        _, body = await get(kubelet)
        metadata = body["items"][0]["metadata"]
        assert (metadata["name"], metadata["uid"], len(uid)) == ("web-node-1", uid, 32)
        assert metadata["annotations"]["kubernetes.io/config.source"] == "file"
        assert body["items"][0]["status"]["phase"] == "Running"

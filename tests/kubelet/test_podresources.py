"""Kubelet's PodResources socket, as kubelets of several versions serve it: what is there, and what is off."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from deviceplugin.errors import KubeletError
from deviceplugin.kubelet.identity_sources import PodResources
from deviceplugin.wire import podresources_pb2 as pb
from deviceplugin.wire import podresources_pb2_grpc as rpc
from sandbox.kubelet import Kubelet, KubeletOptions
from sandbox.kubelet.options import PodResourcesForm
from sandbox.station import pod_json


@asynccontextmanager
async def asked(kubelet: Kubelet, *, without_get_s: float = 300.0) -> AsyncIterator[PodResources]:
    client = PodResources(kubelet.options.podresources_socket, without_get_s=without_get_s)
    try:
        yield client
    finally:
        await client.close()


@pytest.mark.parametrize("namespace", ["default", "disabled", "disabled-team", "not-found"])
@pytest.mark.parametrize("name", ["web-disabled", "disabled", "not-found", "web"])
async def test_a_pod_that_is_not_there_is_none_whatever_its_name_is(short_tmp: Path, namespace: str, name: str) -> None:
    """Kubelet's sentence has the names in it: one pod `web-disabled` took `Get` from the agent until it restarted."""
    async with Kubelet(KubeletOptions(root=short_tmp / "k")) as kubelet, asked(kubelet) as client:
        assert await client.get(namespace, name) is None
        kubelet.submit(pod_json("here", ("c", 0, 0)))
        await kubelet.changes.until(lambda: bool(kubelet.pod_list()), what="the pod is there", deadline_s=60)
        found = await client.get("default", "here")
        assert found is not None
        assert found.name == "here"


@pytest.mark.parametrize("form", ["1.27", "1.26"])
async def test_a_kubelet_without_get_says_so_and_is_not_asked_again_at_once(
    short_tmp: Path, form: PodResourcesForm
) -> None:
    options = KubeletOptions(root=short_tmp / "k", podresources_form=form)
    async with Kubelet(options) as kubelet, asked(kubelet) as client:
        for _ in range(20):  # more than the burst that all clients share
            with pytest.raises(KubeletError, match="has no Get"):
                await client.get("default", "a")
        assert await client.list() == []


async def test_get_that_comes_with_another_kubelet_is_found_out(short_tmp: Path) -> None:
    """An upgrade of kubelet does not restart the agent."""
    root = short_tmp / "k"
    old = KubeletOptions(root=root, podresources_form="1.27")
    async with Kubelet(old) as kubelet, asked(kubelet, without_get_s=0.2) as client:
        with pytest.raises(KubeletError, match="has no Get"):
            await client.get("default", "a")
        await kubelet.stop()
        async with Kubelet(KubeletOptions(root=root)):
            await asyncio.sleep(0.2)
            assert await client.get("default", "a") is None


class Lister(rpc.PodResourcesListerServicer):
    """Shows pods with many containers, as anybody may make them; counts its calls."""

    def __init__(self, pods: int) -> None:
        self.calls = self.at_once = self.most_at_once = 0
        containers = [pb.ContainerResources(name=f"container-of-another-{number:05}") for number in range(1000)]
        one = pb.PodResources(namespace="tenant", containers=containers)
        self._answer = pb.ListPodResourcesResponse(pod_resources=[one] * pods)

    async def List(self, request: object, context: object) -> pb.ListPodResourcesResponse:  # noqa: N802 - as in the API
        self.calls += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0.1)
        self.at_once -= 1
        return self._answer


@asynccontextmanager
async def listed(root: Path, pods: int) -> AsyncIterator[tuple[Lister, PodResources]]:
    server, lister = grpc.aio.server(), Lister(pods)
    rpc.add_PodResourcesListerServicer_to_server(lister, server)
    server.add_insecure_port(f"unix:{root / 's'}")
    await server.start()
    client = PodResources(root / "s")
    try:
        yield lister, client
    finally:
        await client.close()
        await server.stop(None)


async def test_a_list_beyond_the_bound_counts_as_no_answer(short_tmp: Path) -> None:
    async with listed(short_tmp, 700) as (_, client):
        with pytest.raises(KubeletError, match="answered resource_exhausted"):
            await client.list()


async def test_all_who_wait_share_a_list(short_tmp: Path) -> None:
    async with listed(short_tmp, 20) as (lister, client):
        found = await asyncio.gather(*(client.list() for _ in range(20)))
        assert {len(each) for each in found} == {20}
        assert {len(pod.containers) for pod in found[0]} == {1000}
        assert lister.most_at_once == 1
        assert lister.calls <= 2

"""A Binding sets node and allocation in one write, and its errors differ."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deviceplugin.errors import KubeError
from deviceplugin.kube.cluster_client import ClusterClient
from deviceplugin.kube.transport import Timeouts
from deviceplugin.model.allocation import PodRef, PodUid
from sandbox.apiserver import ApiServer, Harm, container, node, pod
from tests.kube.kubeconfigs import open_transport

TIMEOUTS = Timeouts(connect=5.0, request=5.0, silence=1.0)
PATIENT = Timeouts(connect=30.0, request=30.0, silence=30.0)


@pytest.fixture
async def cluster(server: ApiServer, tmp_path: Path) -> AsyncIterator[ClusterClient]:
    async with ClusterClient(await open_transport(server.kubeconfig(tmp_path / "kc"), timeouts=TIMEOUTS)) as connected:
        yield connected


def made(server: ApiServer, name: str = "a", *, namespace: str = "default") -> PodRef:
    item = pod(name, container(cores=50, blocks=8), annotations={"mine": "stays"}, namespace=namespace)
    meta = server.store.create("pods", item, namespace=namespace)["metadata"]
    return PodRef(PodUid(meta["uid"]), meta["namespace"], meta["name"])


async def test_node_and_allocation_become_visible_in_one_write(server: ApiServer, cluster: ClusterClient) -> None:
    ref = made(server, namespace="team-a")
    before = server.store.version
    await cluster.bind(ref, "n1", {"tencent.com/vcuda-allocation": "{}"})
    assert server.store.version == before + 1
    found = server.store.get("pods", "a", namespace="team-a")
    assert found["spec"]["nodeName"] == "n1"
    assert found["metadata"]["annotations"] == {"mine": "stays", "tencent.com/vcuda-allocation": "{}"}


async def test_any_other_refusal_is_neither(
    server: ApiServer, cluster: ClusterClient, subtests: pytest.Subtests
) -> None:
    for code in [500, 503, 429]:
        with subtests.test(code=code):
            ref = made(server, f"p{code}")
            server.faults.fail(code, path="/binding")
            with pytest.raises(KubeError) as refusal:
                await cluster.bind(ref, "n1", {})
            assert type(refusal.value) is KubeError
            assert refusal.value.code == code


@pytest.mark.parametrize(("harm", "node_after"), [(Harm.LOST, "n1"), (Harm.RESET, ""), (Harm.HANG, "")])
async def test_a_bind_without_an_answer_may_have_worked_and_can_be_read(
    server: ApiServer, cluster: ClusterClient, harm: Harm, node_after: str
) -> None:
    ref = made(server)
    server.faults.add(harm, path="/binding")
    with pytest.raises(KubeError) as silence:
        await cluster.bind(ref, "n1", {})
    assert silence.value.code == 0
    assert (await cluster.get_pod(ref)).node == node_after


async def test_a_node_is_annotated_to_wake_the_scheduler(server: ApiServer, cluster: ClusterClient) -> None:
    server.store.create("nodes", node("n1"))
    await cluster.annotate_node("n1", {"tencent.com/vcuda-wake": "1"})
    version = server.store.version
    await cluster.annotate_node("n1", {"tencent.com/vcuda-wake": "2"})
    assert server.store.version == version + 1
    assert server.store.get("nodes", "n1")["metadata"]["annotations"] == {"tencent.com/vcuda-wake": "2"}


async def test_many_binds_at_once_use_many_connections(server: ApiServer, tmp_path: Path) -> None:
    """Each answer takes 2 s: 32 of them one after the other, or eight at a time, would take longer."""
    refs = [made(server, f"p{number}") for number in range(32)]
    server.faults.slow(seconds=2, times=32, path="/binding")
    loop = asyncio.get_running_loop()
    async with ClusterClient(
        await open_transport(server.kubeconfig(tmp_path / "kc"), timeouts=PATIENT, connections=32)
    ) as client:
        started = loop.time()
        await asyncio.gather(*(client.bind(ref, "n1", {}) for ref in refs))
        assert loop.time() - started < 6
    assert all(item["spec"]["nodeName"] == "n1" for item in server.store.objects("pods"))

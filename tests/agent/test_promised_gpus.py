"""Volcano's pods: kubelet may ask the agent before vcuda has written the GPUs, which it does after the Binding only."""

import asyncio
import time
from pathlib import Path

import pytest

from deviceplugin.model.allocation import GpuShare, PodUid
from deviceplugin.model.annotation_names import AnnotationNames
from deviceplugin.model.annotations import PodAllocation, format_allocation
from deviceplugin.model.gpu import GpuUuid
from sandbox.gpunode import GpuNode
from sandbox.station import Json, pod_json
from tests.agent.harness import NODE, PATIENCE_S, create, minors, node_with_agent, settled, share, start_unsynced

NAMES = AnnotationNames()
FLAGS = {"volcano-scheduler": "volcano"}


def volcanos(pod: Json, name: str = "volcano") -> Json:
    pod["spec"]["schedulerName"] = name
    return pod


async def promise(pod: Json, node: GpuNode, minor: int, *, uid: str = "", where: str = NODE) -> dict[str, str]:
    """The annotations that give the pod's first container this GPU."""
    usage = await node.agent.usage()
    uuid = GpuUuid(next(gpu.uuid for gpu in usage.gpus if gpu.minor == minor))
    said = PodAllocation(PodUid(uid or pod["metadata"]["uid"]), {"c": (GpuShare(uuid, 20, 8),)})
    return {NAMES.allocation: format_allocation(said), NAMES.predicate_node: where}


def write(node: GpuNode, pod: Json, annotations: dict[str, str]) -> None:
    node.server.store.patch(
        "pods", pod["metadata"]["name"], {"metadata": {"annotations": annotations}}, namespace="default"
    )


async def started(node: GpuNode, pod: Json) -> list[int]:
    """The minors of its first container, once it runs."""
    await settled(node, pod["metadata"]["name"])
    await node.kubelet.wait_running(pod["metadata"]["uid"], deadline_s=PATIENCE_S)
    return minors(node, pod["metadata"]["uid"])


async def test_the_agent_gives_what_is_written_after_the_binding(short_tmp: Path) -> None:
    async with node_with_agent(short_tmp, flags=FLAGS) as node:
        pods = [volcanos(share(f"member-{number}")) for number in range(3)]
        wanted = [await promise(pod, node, 5 - number) for number, pod in enumerate(pods)]
        create(node, *pods)
        await asyncio.sleep(0.3)
        for pod, annotations in zip(pods, wanted, strict=True):
            write(node, pod, annotations)
        assert [await started(node, pod) for pod in pods] == [[5], [4], [3]]
        assert node.agent.entries("gpus_not_promised") == []


@pytest.mark.parametrize("kind", ["of another pod", "of another node"])
async def test_what_is_not_about_this_pod_and_node_is_waited_over(short_tmp: Path, kind: str) -> None:
    async with node_with_agent(short_tmp, flags=FLAGS) as node:
        pod = volcanos(share("member"))
        other = {"uid": "another"} if kind == "of another pod" else {"where": "elsewhere"}
        pod["metadata"]["annotations"] = await promise(pod, node, 6, **other)
        create(node, pod)
        await asyncio.sleep(0.3)
        write(node, pod, await promise(pod, node, 5))
        assert await started(node, pod) == [5]


async def test_without_a_word_the_agent_chooses_and_has_waited_once_for_the_whole_pod(short_tmp: Path) -> None:
    async with node_with_agent(short_tmp, flags=FLAGS) as node:
        pod = volcanos(pod_json("member", ("c", 20, 8), ("d", 20, 8), init=[("setup", 10, 4)]))
        began = time.monotonic()
        create(node, pod)
        assert await started(node, pod) == [0]
        assert time.monotonic() - began >= 1
        (said,) = node.agent.entries("gpus_not_promised")
        assert said["pod"] == "default/member"


@pytest.mark.parametrize(("flag", "scheduler"), [("volcano", "default-scheduler"), ("", "volcano"), ("", "")])
async def test_pods_of_other_schedulers_do_not_wait(short_tmp: Path, flag: str, scheduler: str) -> None:
    async with node_with_agent(short_tmp, flags={"volcano-scheduler": flag}) as node:
        pod = volcanos(share("other"), scheduler)
        create(node, pod)
        assert await started(node, pod) == [0]
        assert node.agent.entries("gpus_not_promised") == []


async def test_while_the_api_server_is_away_nothing_is_waited_for(short_tmp: Path) -> None:
    flags = FLAGS | {"identity-budget": "8s"}  # on a busy machine too, kubelet alone says which pod it is
    async with node_with_agent(short_tmp, flags=flags, started=False, fed_by_server=False) as node:
        pod = volcanos(share("member"))
        async with node.server.refuse():
            await start_unsynced(node)
            uid = node.kubelet.submit(pod)
            assert (await node.kubelet.verdict(uid, deadline_s=PATIENCE_S)).admitted
            await node.kubelet.wait_running(uid, deadline_s=PATIENCE_S)
            assert node.agent.entries("gpus_not_promised") == []

"""The API server is away from the start: kubelet is served, and the server gets what it missed when it comes."""

import asyncio
from functools import partial
from pathlib import Path

from deviceplugin.model.annotation_names import AnnotationNames
from deviceplugin.model.annotations import parse_allocation
from deviceplugin.model.node import parse_inventory
from sandbox.gpunode import GpuNode
from sandbox.station import Json, pod_json
from tests.agent.harness import (
    PATIENCE_S,
    annotations,
    events,
    grants,
    limits,
    minors,
    node_with_agent,
    share,
    start_unsynced,
    until_held_by,
)

NAMES = AnnotationNames()


def company() -> list[Json]:
    """Equal and unequal ones, so that a guess by counts would be wrong."""
    alike = [share(f"alike-{number}", 20, 8) for number in range(4)]
    return [
        *alike,
        pod_json("two", ("c", 20, 8), ("d", 10, 4), init=[("setup", 30, 4)]),
        pod_json("whole", ("c", 100, 0)),
    ]


async def feed(node: GpuNode, pods: list[Json]) -> list[str]:
    """To kubelet alone, all at once."""
    uids = [node.kubelet.submit(pod) for pod in pods]
    for uid in uids:
        verdict = await node.kubelet.verdict(uid, deadline_s=PATIENCE_S)
        assert verdict.admitted, verdict.message
        await node.kubelet.wait_running(uid, deadline_s=PATIENCE_S)
    return uids


async def test_kubelet_is_served_exactly_and_the_cluster_is_updated_later(short_tmp: Path) -> None:
    flags = {"allocation-check-period": "500ms", "node-labels": "pool=gpus"}
    async with node_with_agent(short_tmp, flags=flags, started=False, fed_by_server=False) as node:
        pods = company()
        async with node.server.refuse():
            assert await start_unsynced(node) == "the pods of this node were not listed yet\n"
            uids = await feed(node, pods)
            for pod, uid in zip(pods, uids, strict=True):
                for container in pod["spec"]["containers"]:
                    seen = limits(node, uid, container["name"])
                    asked = container["resources"]["limits"]
                    assert (seen.pod_uid, seen.container) == (uid, container["name"])
                    assert seen.cores == int(asked[node.names.core])
            usage = await until_held_by(node, uids)
            assert {entry.source for entry in usage.containers} == {"pods"}
            assert all(entry.proved for entry in usage.containers)
            assert not node.agent.entries("grant_repaired"), "exact from the first"

            await node.kubelet.remove(uids[0], deadline_s=PATIENCE_S)
            held = grants(await until_held_by(node, uids[1:]))

            node.server.store.create("nodes", {"metadata": {"name": "node-1"}})
            for pod in pods[1:]:
                node.server.store.create("pods", pod)
        await node.agent.wait_ready(deadline_s=PATIENCE_S)
        await check_the_cluster_is_told(node, pods[1:], uids[1:])
        assert grants(await until_held_by(node, uids[1:])) == held


async def test_a_static_pod_that_nobody_shows_starts_and_keeps_its_grant(short_tmp: Path) -> None:
    """Faults D3: kubelet refuses the agent's token, and PodResources shows names. Rounds go by while it starts."""
    flags = {"allocation-check-period": "100ms"}
    async with node_with_agent(short_tmp, flags=flags, image_pull_s=40.0, fed_by_server=False) as node:
        known = share("before")
        node.server.store.create("pods", known)
        (before,) = await feed(node, [known])
        node.kubelet.pods_faults.status = 401
        async with node.server.refuse():
            (uid,) = await feed(node, [share("static", 30, 4)])
            for _ in range(10):
                await asyncio.sleep(0.2)
                await until_held_by(node, [before, uid])
            seen = limits(node, uid)
            assert (seen.pod_uid, seen.container, seen.cores) == (uid, "c", 30)
            assert not node.agent.entries("grant_released")


def is_written_back(node: GpuNode, pod: Json) -> bool:
    return NAMES.allocation in annotations(node, pod)


async def check_the_cluster_is_told(node: GpuNode, pods: list[Json], uids: list[str]) -> None:
    shown = node.server.store
    labels = {"pool": "gpus", "tencent.com/gpu-count": "8"}

    def labelled() -> bool:
        found = shown.get("nodes", "node-1")["metadata"].get("labels") or {}
        return labels.items() <= found.items()

    await node.server.until(labelled, seconds=PATIENCE_S)
    inventory, share_mode = parse_inventory(shown.get("nodes", "node-1")["metadata"]["annotations"][NAMES.inventory])
    assert (len(inventory.gpus), share_mode) == (8, True)
    for pod, uid in zip(pods, uids, strict=True):
        await node.server.until(partial(is_written_back, node, pod), seconds=PATIENCE_S)
        written = annotations(node, pod)
        assert written[NAMES.gpu_assigned] == "true"
        assert written[NAMES.gpu_indices(0)] == ",".join(map(str, minors(node, uid)))
        assert parse_allocation(written[NAMES.allocation]).pod == uid

    def about() -> set[str]:
        return {event["involvedObject"]["uid"] for event in events(node, "GPUAllocated")}

    await node.server.until(lambda: set(uids) <= about(), seconds=PATIENCE_S)

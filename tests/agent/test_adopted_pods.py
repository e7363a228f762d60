"""Pods that another scheduler bound, or none: the agent places them on arrival and tells the extender within seconds.

The period of the reconciler is ten minutes here, so whatever is written in time was written because of the pod.
"""

import json
from pathlib import Path

from deviceplugin.cluster.extender.cache.pod_hold import bound_hold
from deviceplugin.kube.pods import PodListReader
from deviceplugin.model.allocation import GpuShare, PodUid
from deviceplugin.model.annotation_names import AnnotationNames
from deviceplugin.model.annotations import PodAllocation as Written
from deviceplugin.model.annotations import format_allocation, parse_allocation, trusted_allocation
from deviceplugin.model.gpu import GpuUuid
from deviceplugin.model.pod import ClusterPod, Pod
from sandbox.gpunode import GpuNode
from sandbox.station import Json, pod_json
from tests.agent.harness import annotations, check_consistency, create, node_with_agent, run, share, stored

NAMES = AnnotationNames()
SELDOM = {"allocation-check-period": "10m"}
SOON_S = 10.0  # a second, on a machine that has nothing else to do


async def told(node: GpuNode, pod: Json) -> Written:
    """What the pod says of itself, once it says that it is assigned."""

    def is_told() -> bool:
        return trusted_allocation(shown(node, pod), NAMES).allocation is not None

    await node.server.until(is_told, seconds=SOON_S)
    assert annotations(node, pod)[NAMES.gpu_assigned] == "true"
    return parse_allocation(annotations(node, pod)[NAMES.allocation])


def shown(node: GpuNode, pod: Json) -> Pod:
    (found,) = PodListReader().read(json.dumps({"items": [stored(node, pod)]}).encode())
    return found


STALE = {
    "bare": {},
    "broken": {NAMES.allocation: "{broken", NAMES.gpu_assigned: "false"},
    "copied": {
        NAMES.allocation: format_allocation(
            Written(PodUid("of-another-pod"), {"c": (GpuShare(GpuUuid("GPU-gone"), 20, 8),)})
        ),
        NAMES.predicate_time: "1",
    },
    "of-another-node": {
        NAMES.allocation: "{broken",
        NAMES.gpu_assigned: "true",
        NAMES.predicate_node: "another-node",
        NAMES.gpu_indices(0): "7",
        NAMES.gpu_indices(5): "7",
    },
}
"""Annotations that pods come with, by the pods' names."""


async def test_a_pod_that_no_extender_chose_gpus_for_says_soon_what_it_holds(short_tmp: Path) -> None:
    """Also while its init container runs: kubelet asks for all containers at once; the last may start hours later."""
    async with node_with_agent(short_tmp, flags=SELDOM, init_run_s=600.0) as node:
        for name, stale in STALE.items():
            pod = pod_json(name, ("c", 20, 8), ("d", 200 if name == "bare" else 100, 0), annotations=stale)
            (uid,) = await run(node, pod)
            written = await told(node, pod)
            hold = bound_hold(ClusterPod(shown(node, pod)), node.names)
            assert (hold.unlocated, hold.problem) == ((), ""), f"the extender's hold of {name} is exact"
            assert {each.owner.name: each.shares for each in hold.allocations} == written.containers
            assert NAMES.gpu_indices(5) not in annotations(node, pod)
            entries = [entry for entry in (await check_consistency(node)).containers if entry.uid == uid]
            held = {entry.container: {gpu.uuid for gpu in entry.gpus} for entry in entries}
            assert written.pod == uid
            assert {each: {gpu.uuid for gpu in shares} for each, shares in written.containers.items()} == held

        slow = pod_json("slow", ("c", 20, 8), init=(("first", 30, 4),))
        create(node, slow)
        assert set((await told(node, slow)).containers) == {"first", "c"}


async def test_where_the_annotation_agrees_nothing_is_written_out_of_turn(short_tmp: Path) -> None:
    """The extender has chosen and knows; hundreds of such pods must not make hundreds of rounds."""
    async with node_with_agent(short_tmp, flags=SELDOM) as node:
        gpu = GpuUuid(sorted(each.uuid for each in (await node.agent.usage()).gpus)[3])
        tried = []
        for number in range(3):  # a round that comes for another reason may be under way, once
            chosen = share(f"chosen-{number}")
            said = format_allocation(Written(PodUid(chosen["metadata"]["uid"]), {"c": (GpuShare(gpu, 20, 8),)}))
            chosen["metadata"]["annotations"] = {NAMES.allocation: said}
            await run(node, chosen)
            tried.append(annotations(node, chosen) == {NAMES.allocation: said})
            if tried[-1]:
                break
        assert any(tried)

        adopted = share("adopted")
        await run(node, adopted)
        await told(node, adopted)

        await node.server.until(lambda: NAMES.gpu_assigned in annotations(node, chosen), seconds=SOON_S)
        assert (await told(node, chosen)).containers["c"][0].uuid == gpu, "the round for the other pod looks at all"

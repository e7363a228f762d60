"""What the agent does for the cluster: deletes refused pods, corrects annotations, reports pods without their GPU."""

import json
from pathlib import Path

from deviceplugin.model.annotation_names import AnnotationNames
from deviceplugin.model.annotations import parse_allocation
from sandbox.gpunode import GpuNode
from sandbox.station import Json, pod_json
from tests.agent.harness import (
    PATIENCE_S,
    annotations,
    check_consistency,
    create,
    events,
    grant_directories,
    grants,
    minors,
    node_with_agent,
    owned,
    phase,
    refused,
    run,
    settled,
    share,
    until_event,
    until_held_by,
)

NAMES = AnnotationNames()
QUICK = {"allocation-check-period": "300ms"}


def tamper(node: GpuNode, pod: Json, **wrong: str | None) -> None:
    written = {f"tencent.com/{name.replace('_', '-')}": value for name, value in wrong.items()}
    name = pod["metadata"]["name"]
    node.server.store.patch("pods", name, {"metadata": {"annotations": written}}, namespace="default")


async def until_true(node: GpuNode, pod: Json, wanted: dict[str, str]) -> None:
    await node.server.until(lambda: wanted.items() <= annotations(node, pod).items(), seconds=PATIENCE_S)


def without_answers(checkpoint: Path) -> None:
    document = json.loads(checkpoint.read_text())
    for entry in document["Data"]["PodDeviceEntries"]:
        entry["AllocResp"] = ""
    checkpoint.write_text(json.dumps(document))


async def test_a_pod_that_can_never_start_goes_where_a_controller_makes_it_again(short_tmp: Path) -> None:
    """Faults D1: kubelet would try its start for ever."""
    async with node_with_agent(short_tmp, flags=QUICK, retry_s=0.5) as node:
        uids = await run(node, owned(share("of-replicaset")), share("bare"))
        without_answers(node.kubelet.checkpoint_path)
        for uid in uids:
            node.kubelet.exit_container(uid, "c")
        await node.server.until(lambda: not phase(node, "of-replicaset"), seconds=PATIENCE_S)
        command = "run `kubectl delete pod -n default bare` and create the pod again"
        await node.server.until(
            lambda: any(command in event["message"] for event in node.server.store.objects("events")),
            seconds=PATIENCE_S,
        )
        assert phase(node, "bare"), "its owner has yet to read why"
        await until_held_by(node, uids[1:])


async def test_refused_pods_go_where_a_controller_makes_them_again_and_tampered_annotations_are_put_right(
    short_tmp: Path,
) -> None:
    async with node_with_agent(short_tmp, flags=QUICK) as node:
        impossible = ("c", 150, 4)
        await refused(node, pod_json("bare", impossible))
        create(node, owned(pod_json("of-replicaset", impossible)), owned(pod_json("of-job", impossible), "Job"))
        await node.server.until(
            lambda: not phase(node, "of-replicaset") and not phase(node, "of-job"), seconds=PATIENCE_S
        )
        await run(node, share("fits"))
        assert phase(node, "bare") == "Failed", "its owner has yet to read why"
        assert len(node.agent.entries("refused_pod_deleted")) == 2
        (said,) = {event["message"] for event in await until_event(node, "GPUAllocationFailed")}
        assert "write 100 or 200" in said

        pods = [share("one"), pod_json("two", ("c", 200, 0), ("d", 10, 4))]
        one, two = await run(node, *pods)
        true = {
            one: {NAMES.gpu_assigned: "true", NAMES.gpu_indices(0): ",".join(map(str, minors(node, one)))},
            two: {
                NAMES.gpu_assigned: "true",
                NAMES.gpu_indices(0): ",".join(map(str, minors(node, two))),
                NAMES.gpu_indices(1): ",".join(map(str, minors(node, two, "d"))),
            },
        }
        for uid, pod in zip((one, two), pods, strict=True):
            await until_true(node, pod, true[uid])
        before = grants(await check_consistency(node))
        written = annotations(node, pods[0])[NAMES.allocation]
        assert parse_allocation(written).pod == one

        tamper(node, pods[0], gpu_assigned="false", predicate_gpu_idx_0="7", vcuda_allocation="{broken")
        tamper(node, pods[1], gpu_assigned=None, predicate_gpu_idx_0=None, predicate_gpu_idx_1="0,1,2", mine="stays")
        await until_true(node, pods[0], {**true[one], NAMES.allocation: written})
        await until_true(node, pods[1], {**true[two], "tencent.com/mine": "stays"})
        assert grants(await check_consistency(node)) == before, (
            "annotations are read by schedulers, never believed by us"
        )


async def test_a_container_that_runs_without_the_gpu_it_asked_for_is_named_once(short_tmp: Path) -> None:
    """Kubelet admits it without a call, because no plugin has registered the resource yet."""
    async with node_with_agent(short_tmp, flags=QUICK, started=False) as node:
        unallocated = pod_json("unallocated", ("c", 20, 8), ("plain", 0, 0))
        create(node, unallocated)
        await settled(node, "unallocated")
        assert phase(node, "unallocated") == "Running"
        assert not node.kubelet.calls.of("Allocate")
        await node.start_agent()
        (event,) = await until_event(node, "GPUAllocationFailed")
        assert event["type"] == "Warning"
        assert event["involvedObject"]["name"] == "unallocated"
        assert "container c runs without the GPU it asked for" in event["message"]
        assert "delete the pod" in event["message"]

        pod = share("proper")
        (uid,) = await run(node, pod)
        for _ in range(2):  # rounds go by
            await until_true(node, pod, {NAMES.gpu_assigned: "true"})
            tamper(node, pod, gpu_assigned="no")
        usage = await until_held_by(node, [uid])
        assert grant_directories(node) == {usage.containers[0].grant}
        assert [event["count"] for event in events(node, "GPUAllocationFailed")] == [1]
        assert len(node.agent.entries("container_without_gpu")) == 1

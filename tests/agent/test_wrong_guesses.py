"""A wrong guess that cannot be repaired: with the API server as only source, kubelet admits in another order."""

from pathlib import Path

import pytest

from sandbox.apiserver import ApiError
from sandbox.gpunode import GpuNode
from sandbox.station import Json
from tests.agent.harness import PATIENCE_S, create, events, node_with_agent, owned, share, stored

BY_GUESS = {"identity": "apiserver", "allocation-check-period": "1h"}


@pytest.mark.parametrize("has_owner", [True, False], ids=["of a ReplicaSet", "alone"])
async def test_pods_that_were_given_another_number_of_gpus_are_deleted_or_told_how(
    short_tmp: Path, has_owner: bool
) -> None:
    """Lineage S18: the devices of an answer cannot change, and kubelet tries such a start for ever."""
    pods = [
        share("one", 40, 16, annotations={"tencent.com/predicate-time": "1000"}),
        share("two", 40, 16, annotations={"tencent.com/predicate-time": "2000", "tencent.com/vcuda-gpus": "2"}),
    ]
    if has_owner:
        pods = [owned(pod) for pod in pods]
    async with node_with_agent(short_tmp, flags=BY_GUESS, fed_by_server=False) as node:
        create(node, *pods)
        for pod in reversed(pods):
            assert (await node.kubelet.admit(pod, deadline_s=PATIENCE_S)).admitted

        await node.server.until(lambda: told(node).keys() == {"one", "two"}, seconds=PATIENCE_S)
        what = "vcuda deletes the pod" if has_owner else "run `kubectl delete pod -n default two`"
        assert f"container c can never start in this pod, so {what}" in told(node)["two"]
        if has_owner:
            await node.server.until(lambda: all(is_deleted(node, pod) for pod in pods), seconds=PATIENCE_S)
        assert [node.kubelet.started(pod["metadata"]["uid"], "c") for pod in pods] == [False, False]
        assert has_owner or not any(is_deleted(node, pod) for pod in pods)


def told(node: GpuNode) -> dict[str, str]:
    """By pod, why it never starts."""
    said = events(node, "GPUStartFailed")
    return {each["involvedObject"]["name"]: each["message"] for each in said if "never start" in each["message"]}


def is_deleted(node: GpuNode, pod: Json) -> bool:
    """This kubelet does not follow the API server, so a deleted pod stays there until its end of grace."""
    try:
        return "deletionTimestamp" in stored(node, pod)["metadata"]
    except ApiError:
        return True
